"""A model at one set of shapes, ready to run: its plan beside the single processors that it must never lose to."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from agent_sdk.closing import Closes
from agent_sdk.engine import Executor
from agent_sdk.errors import DeviceClosedError, ExecutionError
from agent_sdk.journey.reference import Reference
from agent_sdk.journey.serving import Serving
from agent_sdk.journey.trial import PLAN
from agent_sdk.journey.verify import Judge, Verdict
from agent_sdk.model import Model
from agent_sdk.model.bounds import ordinary
from agent_sdk.model.feeds import Drawn
from agent_sdk.planner.supplier import Obtained


class Prepared(Closes):
    """A model ready to run; made by ``Session.prepare``. ``serving`` runs it, from any number of threads.

    Attributes:
        model: what was read.
        reference: the file that it was read from.
        obtained: how the plan was come by.
        drawn: feeds that it takes.
        serving: the plan and its rivals by name, whichever is fastest of which answers.
        notes: everything that was not as it should be, in sentences.
    """

    def __init__(
        self,
        model: Model,
        reference: Reference,
        obtained: Obtained,
        serving: Serving,
        drawn: Drawn,
        notes: Sequence[str] = (),
    ) -> None:
        self.model, self.reference = model, reference
        self._changing, self._swap = threading.Lock(), threading.Lock()
        self._closed = False
        self._set(obtained, serving, drawn, notes)

    def _set(self, obtained: Obtained, serving: Serving, drawn: Drawn, notes: Sequence[str]) -> None:
        self.obtained, self.serving, self.drawn, self.notes = obtained, serving, drawn, list(notes)

    def admits(self, feed: Mapping[str, Any]) -> bool:
        """Whether all who may answer mean the same by a feed; if not, the whole network answers it."""
        serving = self.serving
        return not serving.trusting or (not serving.given_up and self.model.guard.admits(feed))

    def taking(self, feed: Mapping[str, Any]) -> Serving | None:
        """Who may run a feed, if anybody. Floats are looked at meanwhile: ``Trace.ordinary`` says what was seen.

        Where one answer has to stay for one input they are looked at now, once some were odd: it stays the same, but
        is not computed twice. A newer plan that takes over meanwhile was not asked, and is not run.
        """
        serving, guard = self.serving, self.model.guard
        if not serving.trusting:
            return serving
        looks = guard.admits if serving.doubted else guard.bounds
        return serving if not serving.given_up and looks(feed) else None

    def learn(self, feed: Mapping[str, Any], answer: Mapping[str, Any]) -> None:
        """Take note of what the whole network has answered: whether its feed and the answer are odd."""
        serving = self.serving
        if serving.trusting:
            arrays = (value for value in answer.values() if isinstance(value, np.ndarray))
            serving.doubted = not (ordinary(*arrays) and self.model.guard.finite(feed))

    def judged(
        self, inputs: Mapping[str, Any], executors: Collection[Executor], tolerance: float | None = None
    ) -> Verdict:
        """Judge executors of it by the network's file. Raises like ``Reference.outputs``."""
        return Judge(self.model, inputs, self.reference).verdict(executors, tolerance)

    @property
    def executor(self) -> Executor:
        """What answers at present."""
        return self.serving.executor

    @property
    def plan_executor(self) -> Executor:
        """The plan's own executor, whether or not it is what answers at present."""
        return self.serving.contenders.get(PLAN, self.serving.executor)

    def said(self) -> str:
        """Who answers, in words."""
        program, current = self.executor.program, self.serving.current
        if current != PLAN:
            return f"{current} alone" + (", faster here than the plan" if PLAN in self.serving.contenders else "")
        steps = Counter(program.plan.step[step].processor for each in program.segments for step in each.steps)
        return "the plan: " + ", ".join(f"{count} super-ops on {name}" for name, count in steps.items())

    @contextmanager
    def changing(self) -> Iterator[None]:
        """Meanwhile nobody else changes it; who closes it need not wait. Raises DeviceClosedError once it is closed."""
        with self._changing:
            if self._closed:
                raise DeviceClosedError("the session is closed")
            yield

    def take_up(self, newer: Prepared) -> None:
        """Answer with a newer plan from now on; runs in progress end on what they began with. While ``changing``.

        Raises DeviceClosedError, and frees the newer one, where this was closed meanwhile.
        """
        with self._swap:
            gone = newer.serving if self._closed else self.serving
            if not self._closed:
                self._set(newer.obtained, newer.serving, newer.drawn, newer.notes)
        try:
            gone.close()
        except ExecutionError as error:  # the new plan is in place all the same
            self.notes.append(f"the plan before this one could not be freed: {error}")
        if gone is newer.serving:
            raise DeviceClosedError("the session is closed")

    def close(self) -> None:
        """Free compiled segments and buffers. Idempotent."""
        with self._swap:
            self._closed = True
        self.serving.close()
