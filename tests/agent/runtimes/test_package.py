"""The runtimes' packages as the agent imports them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("openvino")

TELLING = "ORT_DISABLE_TELEMETRY"
PROGRAM = """
import sys
from agent_sdk.runtimes.openvino.package import ov

assert not any(name.startswith("openvino_telemetry") for name in sys.modules), "what would send is loaded"
import openvino_telemetry  # others may import it all the same

print(ov.Core().available_devices)
"""


@pytest.mark.parametrize("owner", [{}, {"ORT_DISABLE_TELEMETRY": "0"}], ids=["nobody asked", "the owner wants it"])
def test_onnx_runtime_tells_nobody_unless_its_owner_says_so(tmp_path: Path, owner: dict[str, str]) -> None:
    """It keeps neither an id nor a queue of events for its makers; what an owner sets stays as it is."""
    environment = {name: value for name, value in os.environ.items() if name not in (TELLING, "XDG_CACHE_HOME")}
    environment |= {"HOME": str(tmp_path), **owner}
    program = f"import os, agent_sdk.runtimes.ort.options; print(os.environ['{TELLING}'])"
    ran = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, timeout=60, check=True)
    if owner:
        assert ran.stdout == b"0\n"
    else:
        assert not [path for path in tmp_path.rglob("*") if path.is_file()]


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
