"""Who answers a network's first run: kept beside the plans, because a start knows neither graph nor plan yet."""

from collections.abc import Collection
from pathlib import Path
from typing import Final

from agent_sdk.journey.prepared import Prepared
from agent_sdk.journey.trial import plain_runtime
from agent_sdk.model import Content, Shapes
from agent_sdk.records import Records
from hope_schema.base import Contract
from hope_schema.hashing import digest

MAX_STARTS: Final = 1024
"""Networks of which it is remembered how to begin."""


class Start(Contract):
    """Who was best when a network was tried.

    Attributes:
        planned: whether what was prepared has to answer from the first run on, because who answers first goes on.
    """

    planned: bool


def start_after(prepared: Prepared) -> Start:
    return Start(planned=prepared.pinned and plain_runtime(prepared.current) != "onnxruntime")


class Starts:
    """Starts by network in a directory: a wrong guess costs time, never the answer."""

    def __init__(self, directory: Path, kinds: Collection[str]) -> None:
        self._records = Records(directory, Start, MAX_STARTS)
        self._kinds = sorted(kinds)

    def known(self, content: Content, shapes: Shapes | None) -> Start | None:
        return self._records.get(self._key(content, shapes))

    def keep(self, content: Content, shapes: Shapes | None, start: Start) -> None:
        self._records.keep(self._key(content, shapes), start)

    def _key(self, content: Content, shapes: Shapes | None) -> str:
        bound = sorted((name, [*shape]) for name, shape in (shapes or {}).items())
        return digest([content.fingerprint, bound, self._kinds])[:32]
