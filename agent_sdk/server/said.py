"""What the server says of itself and its networks: the same over both transports."""

from collections.abc import Callable, Mapping
from typing import Any, Final

from agent_sdk.protocol.extensions import LENDS
from agent_sdk.server.models import PLATFORM, VERSION, Models, Served
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


def questions(models: Models) -> Mapping[str, Callable[[str, str], dict[str, Any]]]:
    """By the protocol's name of a call, what answers it; given a network's name and version, which may be empty.

    They raise RefusedError where there is no such network.
    """
    return {
        "ServerMetadata": lambda _, __: {
            "name": NAME,
            "version": RELEASE,
            "extensions": [*EXTENSIONS, *([LENDS] if models.lends else [])],
        },
        "ModelMetadata": lambda name, version: models.find(name, version).metadata(),
        "ModelConfig": lambda name, version: {"config": _config(models.find(name, version))},
        "ModelStatistics": lambda name, version: {
            "model_stats": [_statistics(one) for one in ([models.find(name, version)] if name else models.all)]
        },
        "RepositoryIndex": lambda _, __: {
            "models": [{"name": one.name, "version": VERSION, "state": "READY", "reason": ""} for one in models.all]
        },
    }


def _config(served: Served) -> dict[str, Any]:
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
