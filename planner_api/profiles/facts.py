"""What a computation asks for while it runs, in a child or in a thread: what only the database knows."""

from collections.abc import Callable, Iterable
from typing import Literal

import msgspec

from planner_api.prediction.features import Features


class Question(msgspec.Struct):
    """Features of ops by ``names``, the richest profile besides the SoC ``names[0]``, or a profile's statistics."""

    what: Literal["features", "richest", "statistics"]
    names: tuple[str, ...] = ()
    profile_id: int = 0


class Facts:
    """Asks; ``ask`` takes a question and returns its answer, both as bytes."""

    def __init__(self, ask: Callable[[bytes], bytes]) -> None:
        self._ask = ask

    def features(self, signatures: Iterable[str]) -> dict[str, Features]:
        """Features of those of these ops that any model has."""
        names = tuple(dict.fromkeys(signatures))
        found = msgspec.msgpack.decode(self._answer(Question("features", names)), type=dict[str, bytes])
        return {signature: msgspec.json.decode(body, type=Features) for signature, body in found.items()}

    def richest(self, besides: str) -> bytes | None:
        """The newest version of the profile, of another SoC, with the most latencies; compressed."""
        return self._answer(Question("richest", (besides,))) or None

    def statistics(self, profile_id: int) -> bytes | None:
        return self._answer(Question("statistics", profile_id=profile_id)) or None

    def _answer(self, question: Question) -> bytes:
        return self._ask(msgspec.msgpack.encode(question))
