"""A model ready to run: its plan, held to the truth, beside the single processors it must never lose to."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

import numpy as np

from agent_sdk.contest import PLAN, Contest
from agent_sdk.engine import DeviceClosedError, Executor, build_program
from agent_sdk.errors import ProcessorError
from agent_sdk.obtain import Obtained
from agent_sdk.plan_cache import Settled
from agent_sdk.reader import Model
from agent_sdk.single import single_processor_plan
from agent_sdk.trace import Trace
from agent_sdk.truth import Truth, observations, remeasure
from agent_sdk.verify import random_inputs
from hope_schema import Plan

if TYPE_CHECKING:
    from agent_sdk.agent import Agent

RIVALS: Final = 3
"""Single processors kept ready beside a plan that was tried before: enough to fall back on when load or heat comes."""
TWINS: Final = 2
"""Equal cores kept as rivals: when other work takes one of them, the other one answers."""
WEIGHTS_LIMIT: Final = 2**30
"""Most bytes of weights that a plan and its rivals may hold together; every contender holds its own copy."""
REMEASURE_S: Final = 1.5
"""Time spent on re-measuring a new plan's segments before its first use."""


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
        self.notes: list[str] = []
        self._open(obtained)

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
        """Ask the planner for a newer version of the plan and take it up; say whether there was one.

        Runs in progress end on the plan they began with.
        """
        with self._swap:
            obtained = self.agent.obtain(self.model)
            if obtained.plan is None or obtained.plan == self.plan:
                return False
            before = self.contest
            self._open(obtained)
            before.close()
            return True

    @property
    def executor(self) -> Executor:
        """What answers at present."""
        return self.contest.executor

    @property
    def plan_executor(self) -> Executor:
        """The plan's own executor, whether or not it is what answers at present."""
        return self.contest.contenders.get(PLAN, self.contest.executor)

    def _open(self, obtained: Obtained) -> None:
        """Compile the plan, hold it to the truth, and settle what answers."""
        self.notes = list(obtained.notes)
        if obtained.plan is None:
            self._open_single(obtained)
            return
        try:
            executor = self._compiled(obtained.plan)
        except ProcessorError as error:
            self.notes.append(f"the plan cannot be compiled here ({error}); running the best single processor instead")
            self._open_single(obtained)
            return
        settled = obtained.settled
        truth: Truth | None = None
        try:
            if settled is None:
                self.agent.progress.phase("re-measuring the plan's segments")
                truth = remeasure(executor, random_inputs(self.model.graph, 0), budget_s=REMEASURE_S)
                renewed = self._asked_again(obtained, executor, truth)
                if renewed is not None and renewed.plan is not None:
                    executor.close()
                    obtained = renewed
                    executor = self._compiled(renewed.plan)
                    truth = remeasure(executor, random_inputs(self.model.graph, 0), budget_s=REMEASURE_S)
        except BaseException:
            executor.close()
            raise
        self.obtained, self.plan = obtained, executor.program.plan
        self.notes += [note for note in obtained.notes if note not in self.notes]
        trial_us = settled.trial_us if settled else {}
        contest = Contest({PLAN: executor, **self._rivals(self.plan, trial_us)})
        try:
            if truth is None or settled is not None:
                contest.recall(trial_us)
            else:
                self.agent.progress.phase("trying it against single processors")
                found = contest.trial(random_inputs(self.model.graph, 0))
                self.agent.settle(obtained, Settled(predicted_us=truth.predicted_us, trial_us=found))
        except BaseException:
            contest.close()
            raise
        self.contest = contest

    def _open_single(self, obtained: Obtained) -> None:
        """Without any plan: try the whole model on every processor and keep the fastest."""
        self.agent.progress.phase("looking for the best single processor")
        contest = Contest(self._singles(_distinct(self.agent)))
        try:
            found = contest.trial(random_inputs(self.model.graph, 0))
        except BaseException:
            contest.close()
            raise
        self.obtained = obtained
        self.plan = self._single_plan(contest.current, found[contest.current])
        self.contest = contest

    def _asked_again(self, obtained: Obtained, executor: Executor, truth: Truth) -> Obtained | None:
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
        self.notes.append(
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
        """Make the whole model ready on single processors: all of them, or the likeliest ones."""
        names = _distinct(self.agent)
        expected = {**plan.single_processor_us, **{name: us for name, us in trial_us.items() if name != PLAN}}
        names.sort(key=lambda name: expected.get(name, float("inf")))
        if trial_us and not self._all_rivals:
            names = [name for name in names if name in trial_us][:RIVALS]
        weights = max(1, sum(tensor.ByteSize() for tensor in self.model.proto.graph.initializer))
        room = max(1, int(WEIGHTS_LIMIT // weights) - 1)
        return self._singles(names if self._all_rivals else names[:room], may_be_none=True)

    def _singles(self, names: Iterable[str], *, may_be_none: bool = False) -> dict[str, Executor]:
        """Make the whole model ready on each of these processors, leaving out those that cannot run it."""
        ready: dict[str, Executor] = {}
        refused = []
        for name in names:
            try:
                ready[name] = self._compiled_single(name)
            except ProcessorError as error:
                refused.append(str(error))
        if not ready and not may_be_none:
            raise ProcessorError(
                f"no single processor of this device runs all of '{self.model.name}', and without a planner there is "
                f"no plan that mixes them; give a planner's URL or pip install 'hope[planner]' ({refused[0]})"
            )
        return ready

    def _compiled_single(self, name: str) -> Executor:
        program = build_program(self._single_plan(name, 0.0), self.model, self.agent.device.processors)
        return Executor(program, self.agent.device)

    def _single_plan(self, name: str, us: float) -> Plan:
        soc = self.agent.soc
        return single_processor_plan(self.model.graph, name, soc=soc.name, frequency=soc.frequency, latency_us=us)

    def close(self) -> None:
        """Free compiled segments and buffers. Idempotent."""
        self.contest.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _distinct(agent: Agent) -> list[str]:
    """Return two processor ids per kind at most: equal cores are equally fast, until others use one of them."""
    kinds: dict[str, list[str]] = {}
    for name, processor in agent.device.processors.items():
        kinds.setdefault(processor.spec.kind, []).append(name)
    return [name for names in kinds.values() for name in names[:TWINS]]
