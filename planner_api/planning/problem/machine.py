"""The machine as planner and engine see it: processors on resources, places, channels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from planner_api.planning.problem.arrays import BoolArray, FloatArray, IntArray, PlanningError, check_shapes

HOST = "host"
"""The place where graph inputs start and outputs must end."""


@dataclass(frozen=True, eq=False)
class Machine:
    """P processors on R resources, computing from and to L places.

    Attributes:
        processors: P names.
        uses: (P, R) True where a processor takes its share of a resource.
        places: L names; one of them is ``host``.
        place: (P,) index of the place each processor computes from and to.
        busy: (L, L) which of the queues carries a move over the channel from place to place, -1: none.
        queues: names of what carries moves one after the other (copy engines, links).
        launch_us: (P,) what an op pays on its own time when it newly takes in a tensor made elsewhere.
        end_us: (P,) how much later than the op's finish its tensors can be taken in by others.
        slowdown: (P,) factor >= 1 on latencies while all of the memory's other resources work.
        memory: (P,) number of the memory whose resources slow each other.
        hop: (L, L) the place before the second one on the way from the first: where no channel joins two places, a
            tensor goes over several (see `routes`). None: a channel joins every two.
        owner: (L,) number of the host that each place belongs to; None: there is one.
        spread: (P,) standard deviation of an op's latency from run to run, relative to its mean, each op's by itself.
            None: runs are alike.

    Raises:
        PlanningError: a figure that makes no sense; the message names it.
    """

    processors: tuple[str, ...]
    uses: BoolArray
    places: tuple[str, ...]
    place: IntArray
    busy: IntArray
    queues: tuple[str, ...]
    launch_us: FloatArray
    end_us: FloatArray
    slowdown: FloatArray
    memory: IntArray
    hop: IntArray | None = None
    owner: IntArray | None = None
    spread: FloatArray | None = None

    def __post_init__(self) -> None:
        p, places = len(self.processors), len(self.places)
        if p == 0:
            raise PlanningError("there is no processor to plan for")
        check_shapes(
            self,
            uses=(p, self.uses.shape[-1]),
            place=(p,),
            busy=(places, places),
            launch_us=(p,),
            end_us=(p,),
            slowdown=(p,),
            memory=(p,),
            hop=(places, places),
            owner=(places,),
            spread=(p,),
        )
        if HOST not in self.places or len(set(self.places)) != places:
            raise PlanningError(f"places must be different and one of them '{HOST}': {', '.join(self.places)}")
        if not self.uses.any(axis=1).all():
            raise PlanningError("a processor uses no resource")
        if self.place.min() < 0 or self.place.max() >= places:
            raise PlanningError("a processor computes at a place that does not exist")
        if self.busy.min() < -1 or self.busy.max() >= len(self.queues):
            raise PlanningError("a channel keeps a queue busy that does not exist")
        for name, least in (("launch_us", 0), ("end_us", 0), ("slowdown", 1), ("spread", 0)):
            figures = getattr(self, name)
            if figures is not None and not (np.isfinite(figures) & (figures >= least)).all():
                raise PlanningError(f"{name} must be finite and at least {least}")

    @classmethod
    def apart(cls, processors: Sequence[str]) -> Machine:
        """Every processor at a place of its own, nothing shared, nothing but moves between them: HOPE's machine."""
        p = len(processors)
        return cls(
            processors=tuple(processors),
            uses=np.eye(p, dtype=np.bool_),
            places=(*(f"@{name}" for name in processors), HOST),
            place=np.arange(p),
            busy=np.full((p + 1, p + 1), -1, dtype=np.int64),
            queues=(),
            launch_us=np.zeros(p),
            end_us=np.zeros(p),
            slowdown=np.ones(p),
            memory=np.arange(p),
        )

    @cached_property
    def host(self) -> int:
        """Index of the host among the places."""
        return self.places.index(HOST)

    @cached_property
    def owners(self) -> IntArray:
        """``owner`` where there are several hosts or not."""
        return np.zeros(len(self.places), dtype=np.int64) if self.owner is None else self.owner

    @cached_property
    def hops(self) -> IntArray:
        """``hop`` where there are several channels on a way or not."""
        n = len(self.places)
        return np.repeat(np.arange(n)[:, None], n, axis=1) if self.hop is None else self.hop

    def way(self, source: int, target: int) -> list[tuple[int, int]]:
        """The channels on the way from a place to another, each as its two ends."""
        found, hops = [], self.hops
        while target != source:
            before = int(hops[source, target])
            found.append((before, target))
            target = before
        return found[::-1]

    def along(self, cost_us: FloatArray) -> FloatArray:
        """(..., L, L) costs of channels as those of ways: what no channel joins costs what its way does."""
        if self.hop is None:
            return cost_us
        total = cost_us.copy()
        for pair, channels in self._detours:
            total[..., *pair] = cost_us[..., *channels].sum(axis=-1)
        return total

    @cached_property
    def carried(self) -> BoolArray:
        """(L, L) True where a queue is on the way from place to place."""
        found = self.busy >= 0
        for pair, channels in self._detours:
            found[pair] = (self.busy[channels] >= 0).any()
        return found

    @cached_property
    def most_hops(self) -> int:
        """The most channels on any way."""
        return max((len(channels[0]) for _, channels in self._detours), default=1)

    @cached_property
    def _detours(self) -> list[tuple[tuple[int, int], tuple[IntArray, IntArray]]]:
        """The pairs of places that no channel joins, and the ends of the channels on the way, as indices."""
        n = len(self.places)
        pairs = np.argwhere((self.hops != np.arange(n)[:, None]) & ~np.eye(n, dtype=bool)).tolist()
        ways = (np.array(self.way(source, target)).T for source, target in pairs)
        return [
            ((source, target), (begins, ends)) for (source, target), (begins, ends) in zip(pairs, ways, strict=True)
        ]

    @cached_property
    def conflicts(self) -> BoolArray:
        """(P, P) True where two processors share a resource, the diagonal included."""
        uses = self.uses.astype(np.int64)
        return uses @ uses.T > 0

    @cached_property
    def near(self) -> BoolArray:
        """(P, R) the resources that any processor of the same memory uses."""
        return np.array([self.uses[self.memory == memory].any(axis=0) for memory in self.memory])


def routes(direct_us: FloatArray, fixed: BoolArray) -> IntArray:
    """Return for every two places the one before the second on the way from the first: `Machine.hop`.

    The ways from one place make a tree, so a tensor reaches every place over one channel, whoever wants it there.

    Args:
        direct_us: (L, L) what the channel from place to place costs; ``inf`` where there is none.
        fixed: (L, L) True where the way is the channel, however cheap a detour were: figures of one host are measured
            as its engine moves tensors. Between hosts the cheapest way is taken.
    """
    cost = direct_us.copy()
    for k in range(len(cost)):
        cost = np.minimum(cost, cost[:, k, None] + cost[None, k, :])
    # A channel to which there is a cheaper way is on no way at all.
    channel = np.where(fixed | (direct_us <= cost), direct_us, np.inf)
    found, hop = channel.copy(), np.repeat(np.arange(len(cost))[:, None], len(cost), axis=1)
    changed = True
    while changed:
        changed = False
        for k in range(len(cost)):
            longer = found[:, k, None] + channel[None, k, :]
            better = ~fixed & (longer < found)
            if better.any():
                found, hop, changed = np.where(better, longer, found), np.where(better, k, hop), True
    return hop
