"""OpenVINO's package as the agent imports it."""

from __future__ import annotations

import subprocess
import sys

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
