"""What of one network is ready to run: a bounded number of prepared models, one for each set of input shapes."""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from agent_sdk.errors import DeviceClosedError
from agent_sdk.forking import Forks, watch_forks
from agent_sdk.journey.demand import ShapeKey
from agent_sdk.journey.prepared import Prepared

KEPT: Final = 8
"""Sets of shapes for which a plan is kept ready; the one used longest ago makes room."""


@dataclass(frozen=True)
class Stats:
    """What a session has done so far.

    Attributes:
        answered: how many runs each has answered: ``plan``, a processor, or ``whole:`` and the runtime.
        switches: how often somebody else than before has answered at the same shapes.
        prepared: for how many sets of shapes a plan is ready.
    """

    answered: Mapping[str, int]
    switches: int
    prepared: int


class Ready(Forks):
    """Prepared models by the shapes of their inputs. May be used from any number of threads.

    Attributes:
        lock: held while somebody takes over from somebody else.
        last: what was made ready or has answered last; None where the whole network answers.
        closed: whether nothing is taken in any more.
    """

    def __init__(self) -> None:
        self.last: Prepared | None = None
        self.closed = False
        self._models: OrderedDict[ShapeKey, Prepared] = OrderedDict()
        self._answered: Counter[str] = Counter()
        self._switches = 0
        self.in_child()
        watch_forks(self)

    def in_child(self) -> None:
        """The lock is as if nobody had ever held it."""
        self.lock = threading.RLock()

    def __contains__(self, key: ShapeKey) -> bool:
        return key in self._models

    def all(self) -> list[Prepared]:
        """All of them. Raises DeviceClosedError once this is closed."""
        with self.lock:
            if self.closed:
                raise DeviceClosedError("the session is closed")
            return list(self._models.values())

    def at(self, key: ShapeKey | None) -> Prepared | None:
        """What is ready at these shapes, which is used now; None stands for those that ran last."""
        if key is None:
            return self.last
        with self.lock:
            prepared = self._models.get(key)
            if prepared is not None:
                self._models.move_to_end(key)
                self.last = prepared
            return prepared

    def holds(self, prepared: Prepared) -> bool:
        """Whether this one is still among them."""
        return prepared in self._models.values()

    def keep(self, key: ShapeKey, prepared: Prepared) -> tuple[Prepared, list[ShapeKey]]:
        """Take one in, unless somebody else was faster; return which stays, and the shapes that made room.

        Raises DeviceClosedError, and frees it, once this is closed.
        """
        gone: dict[ShapeKey, Prepared] = {}
        with self.lock:
            if self.closed or key in self._models:
                superfluous = prepared
                prepared = self._models.get(key, prepared)
            else:
                superfluous = None
                self._models[key] = self.last = prepared
                while len(self._models) > KEPT:
                    old, evicted = self._models.popitem(last=False)
                    self._answered += evicted.serving.answered
                    self._switches += evicted.serving.switches
                    gone[old] = evicted
        for each in [*gone.values(), *([superfluous] if superfluous else [])]:
            each.close()
        if self.closed:
            raise DeviceClosedError("the session is closed")
        return prepared, list(gone)

    def count(self, answered: str, switches: int = 0) -> None:
        """Take note of an answer that none of these gave, or of a switch to one of these."""
        with self.lock:
            self._answered += Counter([answered] if answered else [])
            self._switches += switches

    @property
    def stats(self) -> Stats:
        """What has been answered so far, and by whom."""
        with self.lock:
            servings = [prepared.serving for prepared in self._models.values()]
            answered = sum((serving.answered for serving in servings), self._answered)
            switches = self._switches + sum(serving.switches for serving in servings)
            return Stats(dict(answered), switches, len(servings))

    def empty(self) -> list[Prepared]:
        """Take nothing in any more; return what was ready, for the caller to close. Idempotent."""
        with self.lock:
            self.closed = True
            models, self._models = list(self._models.values()), OrderedDict()
            return models
