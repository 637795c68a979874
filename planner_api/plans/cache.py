"""Plans in memory: least recently used first out, bounded by bytes, never older than the last word on a plan."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Collection

from planner_api.plans.stored import StoredPlan

OVERHEAD_BYTES = 2048
"""What an entry costs beside its bodies."""


class PlanCache:
    """The plans this process serves without asking the database. Used from one event loop, so it takes no locks.

    ``generation`` counts what was forgotten: a plan read from the database before something was forgotten may be the
    very thing that was superseded, so ``put`` refuses it.
    """

    def __init__(self, capacity_bytes: int) -> None:
        self._capacity = capacity_bytes
        self._plans: OrderedDict[str, StoredPlan] = OrderedDict()
        self._bytes = 0
        self._diverted: frozenset[str] = frozenset()
        self.generation = 0
        self.hits: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._plans)

    def __contains__(self, plan_id: str) -> bool:
        return plan_id in self._plans

    def get(self, plan_id: str) -> StoredPlan | None:
        """Return a plan, if it is here."""
        return self._plans.get(plan_id)

    def hit(self, plan_id: str) -> None:
        """Count that a plan is served, and keep it longest."""
        self.hits[plan_id] += 1
        if plan_id in self._plans:
            self._plans.move_to_end(plan_id)

    def put(self, stored: StoredPlan, generation: int) -> None:
        """Keep a plan that was read from the database when ``generation`` stood."""
        if generation != self.generation or _size(stored) > self._capacity or stored.plan_id in self._diverted:
            return
        self._drop(stored.plan_id)
        self._plans[stored.plan_id] = stored
        self._bytes += _size(stored)
        while self._bytes > self._capacity:
            self._drop(next(iter(self._plans)))

    def forget(self, plan_id: str | None, version: int = 0) -> None:
        """Drop a plan that has a newer version; None drops them all (news may have been missed)."""
        self.generation += 1
        if plan_id is None:
            self._plans.clear()
            self._bytes = 0
        elif (found := self._plans.get(plan_id)) is not None and (version == 0 or found.version < version):
            self._drop(plan_id)

    def divert(self, plan_ids: frozenset[str], changed: Collection[str]) -> None:
        """Keep none of these plans: not every device gets the same version. Drop those that changed, too."""
        self._diverted = plan_ids
        for plan_id in {*plan_ids, *changed}:
            self.forget(plan_id)

    def take_hits(self) -> Counter[str]:
        """Return the hits per plan since the last call."""
        hits, self.hits = self.hits, Counter()
        return hits

    def _drop(self, plan_id: str) -> None:
        found = self._plans.pop(plan_id, None)
        if found is not None:
            self._bytes -= _size(found)


def _size(stored: StoredPlan) -> int:
    return len(stored.body_zstd) + len(stored.body_gzip) + OVERHEAD_BYTES
