"""What the server says of itself and its networks: the same over both transports."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from agent_sdk.server.models import PLATFORM, VERSION, Served
from hope_schema.version import VERSION as RELEASE

NAME: Final = "hope-agent"
EXTENSIONS: Final = (
    "binary_tensor_data",
    "model_configuration",
    "model_repository",
    "schedule_policy",
    "statistics",
)
_CONFIGURED: Final = {"BYTES": "TYPE_STRING"}
"""Types whose names differ in a model's configuration."""


def server_metadata() -> dict[str, Any]:
    """What the server is."""
    return {"name": NAME, "version": RELEASE, "extensions": list(EXTENSIONS)}


def model_config(served: Served) -> dict[str, Any]:
    """A network as the model-configuration extension describes it: whatever batch its shapes have is one request."""
    about = served.metadata()
    tensors = {
        end: [
            {
                "name": tensor["name"],
                "data_type": _CONFIGURED.get(tensor["datatype"], f"TYPE_{tensor['datatype']}"),
                "dims": tensor["shape"],
            }
            for tensor in about[f"{end}s"]
        ]
        for end in ("input", "output")
    }
    return {"name": served.name, "platform": PLATFORM, "max_batch_size": 0, **tensors}


def model_statistics(served: Sequence[Served]) -> dict[str, Any]:
    """How networks have answered so far."""
    return {"model_stats": [_statistics(one) for one in served]}


def repository_index(served: Sequence[Served]) -> list[dict[str, str]]:
    """The networks that there are, all of them ready."""
    return [{"name": one.name, "version": VERSION, "state": "READY", "reason": ""} for one in served]


def _statistics(served: Served) -> dict[str, Any]:
    counted = served.statistics
    with counted.lock:
        well = {"count": counted.succeeded, "ns": counted.succeeded_ns}
        return {
            "name": served.name,
            "version": VERSION,
            "last_inference": counted.last_ms,
            "inference_count": counted.succeeded,
            "execution_count": counted.succeeded,
            "inference_stats": {
                "success": well,
                "fail": {"count": counted.failed, "ns": counted.failed_ns},
                "compute_infer": well,
            },
        }
