"""A model at one set of input shapes, ready to run: its plan beside the single processors that it must never lose to.

Never slower: whoever was fastest answers. When its own times drift (other work on its cores, heat), the next requests
are answered by one contender after the other, in a few rounds: that costs no extra run. As at the trial a turn is two
runs, and the second is evidence: the first one finds another contender's tensors in the caches, which can cost more
than lies between two contenders. A switch back takes more rounds each time. Who was so near at the trial that no drift
would tell is compared in the same way, and so are the runtimes as their users run them unless they were far behind, and
the first choice with whoever answers instead: soon after the start, then ever more rarely. The rarest comparisons take
in whoever was not far behind, for a trial may have been wrong about anybody. A run that stood at the device's arbiter
says what others did, and one that its caller's own time limit ended says nothing of who ran it: neither is evidence. A
request that a contender fails is answered by the next best, and then the one that failed is dropped; a request that all
of them fail is the caller's.
"""

import logging
import math
import threading
from collections import Counter, deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, Final

import numpy as np

from agent_sdk.closing import Closes
from agent_sdk.engine import Executor
from agent_sdk.engine.ports import NEW, Outputs
from agent_sdk.engine.trace import Trace
from agent_sdk.engine.turn import NOW, Turn
from agent_sdk.errors import ExecutionError, RunTimeoutError, forgiven
from agent_sdk.forking import Forks, watch_forks
from agent_sdk.journey.comparison import Comparison
from agent_sdk.journey.reference import Reference
from agent_sdk.journey.trial import FAILURES, PLAN, first_choice, plain_runtime, warm
from agent_sdk.journey.verify import Judge
from agent_sdk.model import Model
from agent_sdk.model.bounds import ordinary
from agent_sdk.model.feeds import Drawn
from agent_sdk.planner.field import Sample
from agent_sdk.planner.supplier import Obtained
from hope_schema.wording import plural

log = logging.getLogger(__name__)

SLOWER: Final = 1.15
"""Times its reference that a run must take to count as slow."""
WINDOW: Final = 8
"""Latest runs looked at; when all but one of them are slow, others are tried."""
MORE: Final = 8
"""Most rounds by which switches back add to those that must be won, one each."""
MISJUDGED: Final = 3.0
"""Times what it takes otherwise that a contender may have taken at the trial. A runtime as its users run it is the
likeliest: nothing binds its threads, and for some runs in a row two of them may share a core."""
RARELY: Final = 1024
"""Most runs between two comparisons: the first waits for WINDOW runs, each next for twice as many,"""
CALM: Final = 4
"""and for half as many after so many such spans without drift."""


class Prepared(Closes, Forks):
    """Runs the fastest of its contenders, from any number of threads; made by ``Session.prepare``.

    Args:
        contenders: executors by name; closed with this.
        quiet_us: what each took when it was tried; the fastest is the first choice.
        pinned: whether the first choice answers as long as it can, however slow it becomes: for networks whose answers
            differ between runtimes.

    Attributes:
        obtained: how the plan was come by.
        drawn: feeds that it takes.
        sample: takes the microseconds of each of the plan's runs that was alone on its resources, infinite where it
            failed alone; and of runs with a deadline whether they missed it, whoever answered: the plan is what the
            device got. None where nobody is told.
        notes: everything that was not as it should be, in sentences.
        current: name of the contender that is run.
        changes: what was decided, in sentences, latest last.
        answered: how many runs each has answered.
        switches: how often somebody else has answered than the time before.
        used: whether somebody has been given it, to run it; told where ``pinned``.
        trusting: whether feeds have to be looked at, because a contender means the same by ordinary ones only.
        doubted: whether the last feed that the whole network answered, or the answer, was no ordinary one.
    """

    def __init__(
        self,
        model: Model,
        reference: Reference,
        obtained: Obtained,
        drawn: Drawn,
        contenders: Mapping[str, Executor],
        quiet_us: Mapping[str, float],
        *,
        notes: Sequence[str] = (),
        pinned: bool = False,
        sample: Sample | None = None,
    ) -> None:
        self.model, self.reference, self.obtained, self.drawn = model, reference, obtained, drawn
        self._contenders = dict(contenders)
        self.quiet_us = dict(quiet_us)
        self.notes, self.pinned, self.sample = list(notes), pinned, sample
        self.current = self._first = self._first_choice(self._contenders)
        self.changes: deque[str] = deque(maxlen=32)
        self.answered: Counter[str] = Counter()
        self.switches = 0
        self.used = False
        self.trusting = any(executor.program.trusting for executor in self._contenders.values())
        self.doubted = False
        self._answering = ""
        self._lock = threading.Lock()
        watch_forks(self)
        self._comparison: Comparison | None = None
        self._recent: deque[float] = deque(maxlen=WINDOW)
        self._reference_us = self.quiet_us.get(self.current, math.inf)
        self._interval = self._left = WINDOW
        self._quiet = 0
        self._kept_to = self._due = WINDOW
        self._before = {self.current}
        self._backs = 0

    # Whom it may answer

    def admits(self, feed: Mapping[str, Any]) -> bool:
        """Whether all who may answer mean the same by a feed; if not, the whole network answers it."""
        return not self.trusting or (not self.given_up and self.model.guard.admits(feed))

    def takes(self, feed: Mapping[str, Any]) -> bool:
        """Whether it may run a feed. Floats are looked at meanwhile: ``Trace.ordinary`` says what was seen.

        Where one answer has to stay for one input they are looked at now, once some were odd: it stays the same, but
        is not computed twice.
        """
        if not self.trusting:
            return True
        looks = self.model.guard.admits if self.doubted else self.model.guard.bounds
        return not self.given_up and looks(feed)

    def learn(self, feed: Mapping[str, Any], answer: Mapping[str, Any]) -> None:
        """Take note of what the whole network has answered: whether its feed and the answer are odd."""
        if self.trusting:
            arrays = (value for value in answer.values() if isinstance(value, np.ndarray))
            self.doubted = not (ordinary(*arrays) and self.model.guard.finite(feed))

    @property
    def given_up(self) -> bool:
        """Whether the whole network goes on answering, while feeds or answers are odd; it may not where ``pinned``."""
        return self.doubted and not self.pinned

    # Who answers

    @property
    def executor(self) -> Executor:
        return self._contenders[self.current]

    @property
    def plan_executor(self) -> Executor:
        """The plan's own executor, whether or not it is what answers at present."""
        return self._contenders.get(PLAN, self.executor)

    @property
    def contenders(self) -> Mapping[str, Executor]:
        return dict(self._contenders)

    def said(self) -> str:
        program, current = self.executor.program, self.current
        if current != PLAN:
            return f"{current} alone" + (", faster here than the plan" if PLAN in self._contenders else "")
        steps = Counter(program.plan.step[step].processor for each in program.segments for step in each.steps)
        return "the plan: " + ", ".join(f"{plural(count, 'super-op')} on {name}" for name, count in steps.items())

    def judge(self, feed: Mapping[str, Any]) -> Judge:
        return Judge(self.model, feed, self.reference)

    def refused(self, executors: Mapping[str, Executor]) -> dict[str, Exception]:
        """Who of these fails at what is drawn, or answers otherwise than the network's file, and how."""
        feed = self.drawn.tried[0]
        answers, failures = warm(executors, feed)
        return {**failures, **self.judge(feed).agreement(executors, answers).wrong}

    def run(
        self,
        inputs: Mapping[str, np.ndarray],
        *,
        into: Mapping[str, np.ndarray] = NEW,
        timeout_s: float | None = None,
        turn: Turn = NOW,
    ) -> tuple[Outputs, Trace]:
        """Compute the outputs with the current contender or the next one to compare; like ``Executor.run``.

        A failing processor is raised only when no contender can answer this request.
        """
        failures: dict[str, ExecutionError] = {}
        while True:
            name, comparison = self.current, None
            if failures or self._comparison is not None:
                with self._lock:
                    name, comparison = self._next(failures)
            executor = self._contenders.get(name)
            if executor is None:  # dropped by another thread, which has chosen another one before
                with self._lock:
                    self._learn(name, None, comparison, ended=True)
                continue
            trace, ended = None, False
            try:
                outputs, trace = executor.run(inputs, into=into, timeout_s=timeout_s, turn=turn)
            except RunTimeoutError:  # the caller's own limit, or others' turns
                ended = True
                raise
            except FAILURES as error:
                if name in self._contenders:  # else another thread has dropped it since it was chosen
                    failures[name] = error
                continue
            finally:
                with self._lock:
                    self._learn(name, trace, comparison, ended=ended)
            if failures:
                self._drop(failures)
            return outputs, trace

    def close(self) -> None:
        """Close every executor. Raises ExecutionError when a runtime hangs in one."""
        with self._lock:
            self.sample = None  # a run that finds the plan closed has not seen it fail
        with ExitStack() as closing:
            for executor in self.contenders.values():
                closing.callback(executor.close)

    def _next(self, failures: Mapping[str, ExecutionError]) -> tuple[str, Comparison | None]:
        """Who answers a request that those in ``failures`` could not, and in which comparison."""
        if not failures and self._comparison is not None and self._comparison.waiting:
            return self._comparison.waiting.popleft(), self._comparison
        left = self._contenders.keys() - failures.keys()
        if not left:
            raise next(iter(failures.values()))
        return self.current if self.current in left else self._first_choice(left), None

    def _learn(self, name: str, trace: Trace | None, comparison: Comparison | None, *, ended: bool) -> None:
        """Take note of a run: its trace, None where it failed; ``ended`` by its caller's time limit.

        A comparison's run that failed goes to the next request.
        """
        us = trace.total_us if trace is not None and trace.alone else None
        if us is not None and name == PLAN and self.sample is not None:
            self.sample.append(us)
        if trace is not None:
            self.answered[name] += 1
            if name != self._answering:
                self.switches += self._answering != ""
                self._answering = name
        if comparison is not None:
            if trace is None and not ended and name in self._contenders:
                comparison.waiting.appendleft(name)
                return
            if us is not None and name not in comparison.waiting:  # else its turn's first run
                comparison.rounds[-1][name] = us
            self._count_down(comparison)
        elif us is not None and name == self.current and self._comparison is None and not self.pinned:
            self._recent.append(us)
            self._left -= 1
            if self._left <= 0 and len(self._recent) == WINDOW:
                self._watch()

    def _watch(self) -> None:
        """Look at the current contender's latest runs from time to time, and compare it with others when it is due."""
        self._left = WINDOW
        middle = sorted(self._recent)[1:-1]
        usual = sum(middle) / len(middle)
        drifted = middle[0] > SLOWER * self._reference_us  # all but one of them are slow
        if not drifted:  # what is usual, not the luckiest ever: beside that, ordinary jitter would look like drift
            self._reference_us += (usual - self._reference_us) / WINDOW
            self._quiet += WINDOW
            if self._quiet >= CALM * self._interval:
                self._quiet, self._interval = 0, max(WINDOW, self._interval // 2)
        if self.current != self._first and not drifted:
            self._compare([self._first])
            return
        self._due -= WINDOW
        if self._due <= 0:
            self._kept_to = self._due = min(2 * self._kept_to, RARELY)
        elif not drifted:
            return
        near = self._near(usual, drifted)
        if near or drifted:
            self._compare(near)

    def _near(self, usual_us: float, drifted: bool) -> list[str]:
        """Who may be faster than the current contender by now, by what each took at the trial."""
        us = self.quiet_us.get(self.current, math.inf)
        if drifted or usual_us > SLOWER * us:  # else nobody is expected to be much faster now than when all was quiet
            us = usual_us
        rare = self._kept_to == RARELY
        others = sorted(self._contenders.keys() - {self.current})
        behind = {name: MISJUDGED if rare or plain_runtime(name) else SLOWER for name in others}
        return [name for name, most in behind.items() if self.quiet_us.get(name, 0.0) < most * us]

    def _compare(self, names: Iterable[str]) -> None:
        """Have the next requests answered by these and the current contender, in turns."""
        self._interval = min(2 * self._interval, RARELY)
        self._left, self._quiet = self._interval, 0
        self._comparison = Comparison()
        self._comparison.begin_round([*names, self.current])

    def _count_down(self, comparison: Comparison) -> None:
        comparison.pending -= 1
        if comparison.pending or comparison is not self._comparison:
            return
        decided = comparison.decided(self._contenders.keys(), self.current, self._first, self._backs)
        if decided is not None:
            self._comparison = None
            self._settle(*decided)

    def _settle(self, us: Mapping[str, float], winners: Collection[str]) -> None:
        """End a comparison: the fastest of those who won it takes over."""
        self._recent.clear()
        if not winners:
            self._reference_us = us.get(self.current, self._reference_us)
            if self._interval == RARELY:  # who has answered instead for so long is no exception any more
                self._first, self._kept_to = self.current, RARELY
            return
        winner = min(winners, key=lambda name: us[name])
        self._tell(
            f"running '{winner}' instead of '{self.current}' under the present load: "
            f"{us[winner] / 1e3:.2f} ms against {us[self.current] / 1e3:.2f} ms"
        )
        self._backs = min(self._backs + (winner in self._before), MORE)
        self._before.add(winner)
        self.current, self._reference_us = winner, us[winner]

    def _drop(self, failures: Mapping[str, ExecutionError]) -> None:
        """Leave out from now on those who failed what another one answered, unless forgiven; never the last one."""
        for name, error in failures.items():
            if forgiven(error):
                log.info("'%s' failed and is asked again: %s", name, error)
                continue
            with self._lock:
                if name not in self._contenders or len(self._contenders) == 1:
                    continue
                if name == PLAN and self.sample is not None:
                    self.sample.append(math.inf)
                self._tell(f"'{name}' failed and is not used any more: {error}")
                self._first = self._first_choice(self._contenders.keys() - {name})
                if self.current == name:
                    self.current = self._first
                    self._reference_us = self.quiet_us.get(self.current, math.inf)
                    self._recent.clear()
                    self._left = WINDOW
                dropped = self._contenders.pop(name)
                while self._comparison is not None and name in self._comparison.waiting:
                    self._comparison.waiting.remove(name)
                    self._count_down(self._comparison)
            dropped.let_go()

    def _tell(self, change: str) -> None:
        self.changes.append(change)
        log.info("%s", change)

    def _first_choice(self, among: Collection[str]) -> str:
        return first_choice({name: self.quiet_us.get(name, math.inf) for name in among})
