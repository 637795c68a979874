"""The mixes: equal networks, a small one beside a large one, five, bursts, a best-effort loop, a chain."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agent_sdk.scheduling.mixes import Mix


def cases(alone_ms: Mapping[str, float]) -> list[Mix]:
    """Every mix at a load of about 1; ``alone_ms`` says what each network takes with the machine to itself."""

    def stream(model: str, share: float, name: str = "", **more: Any) -> dict[str, Any]:
        """So often that the network alone takes this share of the time."""
        period = alone_ms[model] / share
        return {"name": name or model, "model": model, "period_ms": period, "on_late": "drop"} | more

    def mix(name: str, *streams: dict[str, Any]) -> Mix:
        return Mix.model_validate({"name": name, "streams": streams})

    return [
        mix("twins", stream("inception_v1", 0.5), stream("inception_v1", 0.5, "inception_v1#2")),
        mix("small beside large", stream("squeezenet", 0.5), stream("resnet50", 0.5)),
        mix(
            "five",
            *(stream(name, 0.2) for name in ("squeezenet", "shufflenet", "inception_v1", "inception_v2", "resnet50")),
        ),
        mix(
            "bursts",
            stream("squeezenet", 0.5, arrival="poisson", deadline_ms=3 * alone_ms["squeezenet"] / 0.5),
            stream("inception_v1", 0.5, jitter_ms=0.5 * alone_ms["inception_v1"]),
        ),
        mix(
            "best effort",
            stream("squeezenet", 0.5),
            {"name": "loop", "model": "inception_v2", "arrival": "closed"},
        ),
        mix(
            "chain",
            stream("squeezenet", 0.6),
            {
                "name": "then",
                "model": "inception_v1",
                "after": {"stream": "squeezenet", "probability": 0.5},
                "deadline_ms": 2 * alone_ms["squeezenet"] / 0.6,
                "on_late": "drop",
            },
        ),
    ]


MODELS = ("squeezenet", "shufflenet", "inception_v1", "inception_v2", "resnet50")
