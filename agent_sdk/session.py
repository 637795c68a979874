"""A model ready to run: its plan, held to the truth, beside the single processors it must never lose to."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

import numpy as np

from agent_sdk.engine import DeviceClosedError, Executor, build_program
from agent_sdk.engine.trace import Trace
from agent_sdk.errors import ExecutionError, ProcessorError
from agent_sdk.measure.truth import Truth, observations, remeasure
from agent_sdk.model import Model
from agent_sdk.model.weights import copies_at_once
from agent_sdk.planner.cache import Settled
from agent_sdk.planner.obtain import Obtained
from agent_sdk.runtimes.base import Processor
from agent_sdk.selection.contest import PLAN, Contest
from agent_sdk.selection.single import single_processor_plan
from agent_sdk.verify import random_inputs
from hope_schema import Plan

if TYPE_CHECKING:
    from agent_sdk.agent import Agent

RIVALS: Final = 3
"""Single processors kept ready beside a plan that was tried: enough to fall back on when load or heat comes."""
REMEASURE_S: Final = 1.5
"""Time spent on re-measuring a new plan's segments before its first use."""
UNFIT: Final = (ExecutionError, MemoryError)
"""What a plan raises that cannot run on this device at present: a processor refuses, fails, hangs, or lacks memory."""

_Opened = tuple[Obtained, Plan, Contest]


class Session:
    """A model ready to run; made by ``Agent.load``. ``run`` may be called from any number of threads.

    A plan that is new to this device is re-measured, segment by segment, and tried against the whole model on each
    single processor; what was found is kept with the plan, so that the next start need not repeat it. Whatever is
    fastest answers, and while serving a slowdown calls for a new trial (``Contest``).

    Attributes:
        model: what was read.
        obtained: how the plan was come by.
        plan: the planner's plan; without one, the single processor that ran fastest, as a plan.
        contest: the plan and its rivals, by name.
        notes: everything that was not as it should be, in sentences.
    """

    def __init__(self, agent: Agent, model: Model, obtained: Obtained, *, all_rivals: bool = False) -> None:
        self.agent = agent
        self.model = model
        self._all_rivals = all_rivals
        self._swap = threading.Lock()
        self._closed = False
        notes = list(obtained.notes)
        opened: _Opened | None = None
        if obtained.plan is not None:
            try:
                opened = self._opened_plan(obtained, obtained.plan, notes)
            except UNFIT as error:
                notes.append(f"the plan cannot run here ({error}); running the best single processor instead")
        self.obtained, self.plan, self.contest = opened or self._opened_single(obtained)
        self.notes = notes

    def run(self, inputs: Mapping[str, np.ndarray], *, timeout_s: float | None = None) -> dict[str, np.ndarray]:
        """Compute the outputs by name. See ``Executor.run`` for what it raises."""
        return self.trace(inputs, timeout_s=timeout_s)[0]

    def trace(
        self, inputs: Mapping[str, np.ndarray], *, timeout_s: float | None = None
    ) -> tuple[dict[str, np.ndarray], Trace]:
        """Compute the outputs and tell what happened when."""
        while True:
            contest = self.contest
            try:
                return contest.run(inputs, timeout_s=timeout_s)
            except DeviceClosedError:
                # A refresh may have put a better plan in place, and closed this one, since the line above.
                if contest is self.contest:
                    raise

    def refresh(self) -> bool:
        """Ask the planner for a newer version of the plan and take it up; say whether that was done.

        Runs in progress end on the plan they began with. Where the newer one cannot run at present, e.g. for want of
        memory beside the old one, that answers on, and the next refresh tries again. Raises DeviceClosedError once the
        session is closed.
        """
        with self._swap:
            if self._closed:
                raise DeviceClosedError("the session is closed")
            obtained = self.agent.obtain(self.model)
            if obtained.plan is None or obtained.plan == self.obtained.plan:
                return False
            before, notes = self.contest, list(obtained.notes)
            try:
                opened = self._opened_plan(obtained, obtained.plan, notes)
            except UNFIT as error:
                note = f"a newer plan cannot run here at present ({error}); the one before it answers on"
                self.notes += [note] if note not in self.notes else []
                return False
            self.obtained, self.plan, self.contest = opened
            self.notes = notes
            try:
                before.close()
            except ExecutionError as error:  # the new plan is in place all the same
                self.notes.append(f"the plan before this one could not be freed: {error}")
            return True

    @property
    def executor(self) -> Executor:
        """What answers at present."""
        return self.contest.executor

    @property
    def plan_executor(self) -> Executor:
        """The plan's own executor, whether or not it is what answers at present."""
        return self.contest.contenders.get(PLAN, self.contest.executor)

    def _opened_plan(self, obtained: Obtained, plan: Plan, notes: list[str]) -> _Opened:
        """Compile a plan, hold it to the truth, and settle what answers. Raises what stands in ``UNFIT``."""
        settled = obtained.settled
        inputs = random_inputs(self.model.graph, 0)
        with ExitStack() as opened:
            executor = opened.enter_context(self._compiled(plan))
            if settled is None:
                self.agent.progress.phase("re-measuring the plan's segments")
                truth = remeasure(executor, inputs, budget_s=REMEASURE_S)
                renewed = self._asked_again(obtained, executor, truth, notes)
                if renewed is not None and renewed.plan is not None:
                    executor.close()
                    obtained, plan = renewed, renewed.plan
                    executor = opened.enter_context(self._compiled(plan))
                    truth = remeasure(executor, inputs, budget_s=REMEASURE_S)
            trial_us = settled.trial_us if settled else {}
            contest = Contest({PLAN: executor, **self._rivals(plan, trial_us)})
            opened.callback(contest.close)
            if settled is None:
                self.agent.progress.phase("trying it against single processors")
                found = contest.trial(inputs)
                if found.steady and PLAN in contest.contenders:
                    self.agent.settle(obtained, Settled(predicted_us=truth.predicted_us, trial_us=found.median_us))
                if not self._all_rivals:
                    contest.keep(likeliest(contest.first_us, self.agent.device.processors, RIVALS))
            else:
                contest.warm(inputs)
                contest.recall(trial_us)
            if PLAN not in contest.contenders:
                raise ProcessorError("; ".join(contest.changes))
            opened.pop_all()
        return obtained, plan, contest

    def _opened_single(self, obtained: Obtained) -> _Opened:
        """Without any plan: try the whole model on every processor and keep the fastest."""
        self.agent.progress.phase("looking for the best single processor")
        contest = Contest(self._singles(_distinct(self.agent)))
        with ExitStack() as opened:
            opened.callback(contest.close)
            found = contest.trial(random_inputs(self.model.graph, 0)).median_us
            if not self._all_rivals:
                contest.keep(likeliest(found, self.agent.device.processors, 1 + RIVALS))
            opened.pop_all()
        return obtained, self._single_plan(contest.current, found[contest.current]), contest

    def _asked_again(self, obtained: Obtained, executor: Executor, truth: Truth, notes: list[str]) -> Obtained | None:
        """When the plan was far off, send what was measured and ask again; None when there is nothing newer.

        Times within the threshold are not sent as observations: they may never invalidate a plan.
        """
        if not truth.outdated or obtained.source != "planner":
            return None
        soc = self.agent.soc
        measured = observations(truth, executor, soc=soc.name, frequency=soc.frequency, device_id=self.agent.device_id)
        if measured is None or self.agent.upload(measured) is not None:
            return None
        again = self.agent.obtain(self.model, renew=True)
        if again.source != "planner" or again.plan == obtained.plan:
            return None
        notes += [note for note in again.notes if note not in notes]
        notes.append(
            f"the first plan's segments took {truth.predicted_us / 1e3:.2f} ms, not {truth.planned_us / 1e3:.2f} ms: "
            "a new plan was asked for with what was measured"
        )
        return replace(
            again,
            profiled_signatures=obtained.profiled_signatures + again.profiled_signatures,
            profiling_seconds=obtained.profiling_seconds + again.profiling_seconds,
            planner_ms=obtained.planner_ms + again.planner_ms,
        )

    def _compiled(self, plan: Plan) -> Executor:
        self.agent.progress.phase("compiling the plan's segments")
        return Executor(build_program(plan, self.model, self.agent.device.processors), self.agent.device)

    def _rivals(self, plan: Plan, trial_us: Mapping[str, float]) -> dict[str, Executor]:
        """Make the whole model ready on single processors: all of them, or the likeliest ones.

        A plan that uses one processor is itself the whole model there.
        """
        processors = self.agent.device.processors
        names = _distinct(self.agent)
        kinds = {processors[name].spec.kind for name in plan.processors_used}
        if len(plan.processors_used) == 1:
            names = [name for name in names if processors[name].spec.kind not in kinds]
        expected = {**plan.single_processor_us, **{name: us for name, us in trial_us.items() if name != PLAN}}
        names.sort(key=lambda name: expected.get(name, float("inf")))
        if not self._all_rivals:
            room = max(1, copies_at_once(self.model) - 1)
            tried = {name: trial_us[name] for name in names if name in trial_us}
            names = likeliest(tried, processors, min(RIVALS, room)) if trial_us else names[:room]
        return self._singles(names, may_be_none=True)

    def _singles(self, names: Iterable[str], *, may_be_none: bool = False) -> dict[str, Executor]:
        """Make the whole model ready on each of these processors, leaving out those that cannot run it."""
        ready: dict[str, Executor] = {}
        refused = []
        with ExitStack() as opened:
            for name in names:
                try:
                    ready[name] = opened.enter_context(self._compiled_single(name))
                except ProcessorError as error:
                    refused.append(str(error))
            opened.pop_all()
        if not ready and not may_be_none:
            raise ProcessorError(
                f"no single processor of this device runs all of '{self.model.name}', and without a planner there is "
                f"no plan that mixes them; give a planner's URL or install the 'planner' extra ({refused[0]})"
            )
        return ready

    def _compiled_single(self, name: str) -> Executor:
        program = build_program(self._single_plan(name, 0.0), self.model, self.agent.device.processors)
        return Executor(program, self.agent.device)

    def _single_plan(self, name: str, us: float) -> Plan:
        soc = self.agent.soc
        return single_processor_plan(self.model.graph, name, soc=soc.name, frequency=soc.frequency, latency_us=us)

    def close(self) -> None:
        """Free compiled segments and buffers, after a refresh that is under way. Idempotent."""
        with self._swap:
            self._closed = True
            self.contest.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def likeliest(found_us: Mapping[str, float], processors: Mapping[str, Processor], most: int) -> list[str]:
    """Names of the fastest processors, and of one that leaves cores to others: what may be best beside other work.

    Args:
        found_us: what the whole model takes on each, microseconds; other names may stand among them.
        processors: this device's, by name.
        most: how many names to return at most.
    """
    width = {name: len(processors[name].spec.resources) for name in found_us.keys() & processors.keys()}
    names = sorted(width, key=lambda name: (found_us[name], name))
    narrow = [name for name in names if width[name] < max(width.values())]
    if not narrow or narrow[0] in names[:most]:
        return names[:most]
    return [*names[: max(1, most - 1)], narrow[0]][:most]


def _distinct(agent: Agent) -> list[str]:
    """Return one processor id per kind: equals are equally fast, and a whole model on one core moves among them."""
    kinds: dict[str, str] = {}
    for name, processor in agent.device.processors.items():
        kinds.setdefault(processor.spec.kind, name)
    return list(kinds.values())
