"""``python -m agent_sdk.compiling RUNTIME TARGET FILE``: compile a network and end; ``runtimes/probe.py`` starts it.

Here and not there, because ``agent_sdk.runtimes`` takes longer to import than most networks to compile.
"""

from __future__ import annotations

import sys


def main(runtime: str, target: str, file: str) -> int:
    """Compile. A refusal is no crash; it is told where it is met again."""
    try:
        if runtime == "openvino":
            import openvino

            openvino.Core().compile_model(file, target, {"INFERENCE_PRECISION_HINT": "f32"})
        else:
            import onnxruntime

            onnxruntime.InferenceSession(file, providers=[target])
    except Exception as error:  # noqa: BLE001  the runtimes raise their own unrelated classes
        print(error, file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
