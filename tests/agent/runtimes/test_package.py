"""OpenVINO's package as the agent imports it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("openvino")

PROGRAM = """
import sys
from agent_sdk.runtimes.openvino.package import ov

assert not any(name.startswith("openvino_telemetry") for name in sys.modules), "what would send is loaded"
import openvino_telemetry  # others may import it all the same

print(ov.Core().available_devices)
"""


def test_importing_openvino_tells_nobody() -> None:
    """Whoever imports it for the agent loads nothing that sends, and leaves that package to others as it is."""
    ran = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60, check=False)
    assert ran.returncode == 0, ran.stderr
    assert "CPU" in ran.stdout


def test_threads_find_all_element_types_or_ask_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who asks while another is still asking the library does not take what is known by then for all there is."""
    from agent_sdk.runtimes.openvino import capi

    known = capi.api()
    if known is None:
        pytest.skip("OpenVINO's C API is not beside its module")
    fresh, make, beside = capi.Api(Path(known.library._name)), capi.Api.make, list[int]()

    def asking(self: capi.Api, name: str, *given: object) -> object:
        made = make(self, name, *given)
        if name == "ov_model_const_input_by_index" and given[-1].value == 2 and not beside:  # type: ignore[attr-defined]
            beside.append(0)
            beside[0] = len(self.element_types)
        return made

    monkeypatch.setattr(capi.Api, "make", asking)
    assert len(fresh.element_types) == beside[0] == len(capi.ONNX_TYPES)
