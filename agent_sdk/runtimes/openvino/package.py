"""OpenVINO's package, imported without the usage events that it sends to its makers when it is imported.

An agent tells nobody anything whom its owner did not name. Where the application has imported OpenVINO before, what
that sends stays the application's affair.
"""

import sys
from typing import Final

TELEMETRY: Final = "openvino_telemetry"

if untold := TELEMETRY not in sys.modules:
    sys.modules[TELEMETRY] = None  # type: ignore[assignment]  # an import fails; OpenVINO takes its own stub then
try:
    import openvino as ov
finally:
    if untold:
        del sys.modules[TELEMETRY]

__all__ = ["ov"]
