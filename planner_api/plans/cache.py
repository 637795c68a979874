"""Plans in memory: least recently used first out, bounded by bytes, never older than the last word on a plan."""

from cachetools import LRUCache

from planner_api.plans.stored import StoredPlan

OVERHEAD_BYTES = 2048
"""What an entry costs beside its body."""

Key = tuple[str, int | None]
"""A plan's id, and one of its versions; None: the one that is served."""


class PlanCache:
    """The plans this process serves without asking the database. Used from one event loop, so it takes no locks.

    ``generation`` counts what was forgotten: a plan read from the database before something was forgotten may be the
    very thing that was superseded, so ``put`` refuses it.
    """

    def __init__(self, capacity_bytes: int) -> None:
        self._plans: LRUCache[Key, StoredPlan] = LRUCache(capacity_bytes, getsizeof=_size)
        self.generation = 0

    def __len__(self) -> int:
        return len(self._plans)

    def __contains__(self, plan_id: str) -> bool:
        return (plan_id, None) in self._plans

    def get(self, plan_id: str, version: int | None = None) -> StoredPlan | None:
        return self._plans.get((plan_id, version))

    def put(self, stored: StoredPlan, generation: int, version: int | None = None) -> None:
        """Keep a plan that was read from the database when ``generation`` stood."""
        if generation == self.generation and _size(stored) <= self._plans.maxsize:
            self._plans[stored.plan_id, version] = stored

    def forget(self, plan_id: str | None, version: int = 0) -> None:
        """Drop a plan that has a newer version; None drops them all (news may have been missed)."""
        self.generation += 1
        if plan_id is None:
            self._plans.clear()
        elif (found := self._plans.get((plan_id, None))) is not None and (version == 0 or found.version < version):
            del self._plans[plan_id, None]


def _size(stored: StoredPlan) -> int:
    return len(stored.body_zstd) + OVERHEAD_BYTES
