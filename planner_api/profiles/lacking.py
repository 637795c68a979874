"""What a profile lacks of a model, and what of it a device is to measure: said by a child, or by a thread if small.

Statistics stay in memory while devices of one SoC ask in a row.
"""

import threading
from collections.abc import Sequence
from typing import Any

import msgspec
from cachetools import LRUCache

from hope_schema.base import MAX_ROWS
from planner_api.compression import loaded
from planner_api.errors import RefusedError
from planner_api.jobs.computing import Ask
from planner_api.models.figures import Figures, Latency, Transfer, figure_hash
from planner_api.profiles.facts import Facts
from planner_api.profiles.folding import wanted
from planner_api.profiles.predictions import Predictions
from planner_api.profiles.statistics import Statistics, device_hash

REMEMBERED_BYTES = 64 * 2**20
"""Statistics that stay in memory."""

Figure = Latency | Transfer


class Asked(msgspec.Struct):
    """What a device asks, of a profile as it stands (``profile_id`` 0: there is none).

    ``name`` is what its statistics are called as they stand, ``snapshot`` its newest version, if it has one; ``places``
    has one per processor. Where ``device`` is said, it is also asked for ``confirmations`` of what others said. It is
    willing to measure ``most`` figures (null: any number), but none of ``taken``: hashes, one after the other, of what
    others were asked for just now.
    """

    profile_id: int
    name: str
    version: int
    snapshot: bytes
    figures: bytes
    kinds: tuple[str, ...]
    places: tuple[str, ...]
    device: str | None
    confirmations: int
    most: int | None
    taken: bytes


class Lack(msgspec.Struct):
    """The ``Missing`` as JSON, the hashes of what it asks for that nobody said, and those of all that it asks for."""

    reply: bytes
    unknown: bytes
    hashes: bytes


class Looking:
    """Looks into the profiles of one database, whose statistics and predictors stay in memory."""

    def __init__(self) -> None:
        self._statistics: LRUCache[tuple[int, str], Statistics] = LRUCache(
            REMEMBERED_BYTES, getsizeof=lambda one: one.size_bytes
        )
        self._predictions = Predictions()
        self._turn = threading.Lock()

    def answer(self, asked: Asked, ask: Ask) -> Lack:
        """Say what is lacking. Raises RefusedError for more figures than an upload may have rows."""
        facts = Facts(ask)
        figures = loaded(Figures, asked.figures)
        _refuse_too_many(figures, asked)
        unknown, unsure = _open_figures(asked, figures, self._statistics_of(asked, facts))
        latencies = [key for key in unknown if len(key) == 2]
        if latencies and asked.snapshot:
            counts = dict(zip(figures.signatures, figures.counts, strict=False))
            ordered = self._predictions.ordered(asked.snapshot, latencies, counts, facts)
            unknown = [*ordered, *(key for key in unknown if len(key) == 4)]
        chosen = unknown + unsure
        count = len(unknown)
        if asked.most is not None:
            taken = {asked.taken[at : at + 8] for at in range(0, len(asked.taken), 8)}
            free = [key for key in unknown if figure_hash(key) not in taken] if taken else unknown
            count, chosen = min(len(free), asked.most), [*free, *unsure][: asked.most]
        elsewhere = 0 if asked.most is None else max(0, len(unknown) - len(chosen))
        return _lack(asked.version, chosen, count, elsewhere)

    def _statistics_of(self, asked: Asked, facts: Facts) -> Statistics | None:
        if not asked.profile_id:
            return None
        key = asked.profile_id, asked.name
        with self._turn:
            known = self._statistics.get(key)
            if known is None:
                known = Statistics.load(facts.statistics(asked.profile_id))
                if known.size_bytes <= REMEMBERED_BYTES:
                    self._statistics[key] = known
        return known


_looking = Looking()


def answer(asked: Asked, ask: Ask) -> Lack:
    """Answer in a child, which belongs to one planner."""
    return _looking.answer(asked, ask)


def _open_figures(asked: Asked, figures: Figures, statistics: Statistics | None) -> tuple[list[Figure], list[Figure]]:
    """Return the figures that nobody has said, and those that a device should say too."""
    latencies, transfers = list(figures.latencies(asked.kinds)), list(figures.transfers(asked.places))
    if statistics is None:
        return [*latencies, *transfers], []
    known = statistics.latencies.known(), statistics.transfers.known()
    unknown: list[Figure] = [key for key in latencies if key not in known[0]]
    unknown += [key for key in transfers if key not in known[1]]
    if asked.device is None:
        return unknown, []
    name, most = device_hash(asked.device), asked.confirmations
    unsure: list[Any] = [
        *wanted(statistics.latencies, name, latencies, most),
        *wanted(statistics.transfers, name, transfers, most),
    ]
    return unknown, unsure[:most]


def _lack(version: int, chosen: Sequence[Figure], unknown: int, elsewhere: int) -> Lack:
    """Ask for figures, of which the first ``unknown`` nobody said; without one object of the contract for each."""
    hashes = b"".join(map(figure_hash, chosen))
    reply = msgspec.json.encode(
        {
            "profile_version": version,
            "latencies": [{"signature": key[0], "kind": key[1]} for key in chosen if len(key) == 2],
            "transfers": [
                {"tensor": {"shape": key[1], "dtype": key[0]}, "source": key[2], "target": key[3]}
                for key in chosen
                if len(key) == 4
            ],
            "elsewhere": elsewhere,
        }
    )
    return Lack(reply, hashes[: 8 * unknown], hashes)


def _refuse_too_many(figures: Figures, asked: Asked) -> None:
    count = len(figures.signatures) * len(asked.kinds) + figures.count_transfers(asked.places)
    if count > MAX_ROWS:
        raise RefusedError(
            f"this model has {count} figures on {len(asked.kinds)} kinds of processor in {len(set(asked.places))} "
            f"places; at most {MAX_ROWS} are asked for: name fewer processors at a time"
        )
