"""What the networks of one agent share, and how it comes by a plan: what it remembers, what its planner knows, what it
measures first.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from agent_sdk.cancel import Cancel, check
from agent_sdk.engine import Device, Program, build_program
from agent_sdk.errors import (
    BadRequestError,
    IllegalPlanError,
    InputError,
    NotFoundError,
    PlanMismatchError,
    PlannerProtocolError,
    ProcessorError,
    UnplannableError,
)
from agent_sdk.files import one_at_a_time
from agent_sdk.first.measuring import Measuring
from agent_sdk.first.runs import FirstRuns, told
from agent_sdk.journey.demand import Budget
from agent_sdk.journey.hosts import Hosts
from agent_sdk.journey.starts import Starts
from agent_sdk.machine.soc import Soc
from agent_sdk.measure.profiler import untrusted
from agent_sdk.measure.trials import Trials
from agent_sdk.model import Model
from agent_sdk.planner.client import ServedPlan
from agent_sdk.planner.embedded import mend
from agent_sdk.planner.field import Field
from agent_sdk.planner.supplier import OFFLINE, Obtained, PlanSource, PlanSupplier, Question
from agent_sdk.progress import Reporter
from agent_sdk.runtimes import base
from agent_sdk.tables import faults
from hope_schema import Job, MissingRequest, Plan, PlanRequest, Processor
from hope_schema.plan import Method

THOROUGH_S: Final = 55.0
"""Longest time one ``load`` spends measuring where the planner knows too little to plan without."""
A_LITTLE_S: Final = 2.0
"""Longest time, unless said so, where it can: it plans from predictions, and every start makes more of them true."""
PROFILING_S: Final = 90.0
"""How long another process that measures for the same planner is waited for."""
UNPLANNABLE: Final = "urn:hope:unplannable"
"""How the planner says that there is no plan: an op that no processor runs by itself, say."""


@dataclass
class Measured:
    """What one call measured, and what became of it; it outlives a planner that goes away afterwards."""

    signatures: int = 0
    seconds: float = 0.0
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class Services:
    """What a network is planned, tried and remembered with.

    Attributes:
        supplier: the conversation with the planner, and the disk.
        planned: the processors that plans are made for.
        processors: those of the device's processors that may run the network at hand, by id.
        measuring: measures for the planner.
        trials: what trials of all networks showed.
        first_runs: where whatever is new runs first.
        starts: how the next start of a network begins.
        measuring_s: seconds that one ``obtain`` may measure where the planner can plan without.
        wait_s: seconds the planner may hold a plan back to improve it.
        embedded: the database of a planner inside this process.
        hosts: other machines that plans may use.
        field: hears how plans do; None where there is nobody to tell.
        budget: what plans of further shapes may cost.
    """

    supplier: PlanSupplier
    device: Device
    planned: tuple[Processor, ...]
    processors: Mapping[str, base.Processor]
    measuring: Measuring
    trials: Trials
    first_runs: FirstRuns
    starts: Starts
    soc: Soc
    device_id: str
    method: Method
    measuring_s: float
    wait_s: float | None
    embedded: Path | None
    notes: tuple[str, ...]
    progress: Reporter
    hosts: Hosts
    field: Field | None
    cancel: Cancel
    budget: Budget

    @property
    def planning_on(self) -> dict[str, base.Processor]:
        return {spec.id: self.device.processors[spec.id] for spec in self.planned}

    def end(self) -> None:
        """The agent is closed: nobody waits any more, and nothing is told. Idempotent."""
        self.cancel.cancel()
        self.first_runs.children.close()
        if self.field is not None:
            self.field.stop()

    def fit_for(self, model: Model, feeds: Sequence[Mapping[str, Any]] = ()) -> Services:
        """These without the runtimes that crash at a model, or at a run of it on these feeds.

        Raises ProcessorError where none is left to plan with.
        """
        crashed = self.first_runs.at_model(model, feeds)
        if not crashed:
            return self
        notes = told(crashed)
        processors = {name: own for name, own in self.processors.items() if own.compiler not in crashed}
        planned = tuple(spec for spec in self.planned if spec.id in processors)
        if not planned:
            raise ProcessorError("; ".join(notes))
        return replace(self, planned=planned, processors=processors, notes=(*self.notes, *notes))

    def recall(self, model: Model) -> Obtained | None:
        """The plan that an earlier start kept on disk, asking nobody."""
        question = self._question(model)
        copy, program = self._recalled(question, model)
        if copy is None:
            return None
        return Obtained(copy, "disk", True, key=question.key, program=program, notes=self.notes)

    def obtain(
        self, model: Model, *, renew: bool = False, at_once: bool = False, known: Obtained | None = None
    ) -> Obtained:
        """Obtain the plan of a model; ``renew`` asks anew although one is cached, ``known`` is the one in use.

        The planner is asked for a plan before anything is measured. Where it has one, a little of what that rests on
        is measured, but not ``at_once``, and the plan asked for again, which may be waited for; where it knows too
        little, all is measured first.

        Raises UnplannableError where there is no plan at all, PlannerStatusError where the planner refuses otherwise,
        DeviceClosedError once the agent is closed, or NotWantedError while it measures for nobody any more.
        """
        self.progress.phase("asking the planner")
        supplier, waited_s = self.supplier, self.supplier.waited_s
        question = self._question(model)
        notes = [*self.notes]
        copy, program = self._recalled(question, model, known)
        measured = Measured()
        try:
            notes += supplier.send_earlier()
            served = None if renew or copy is None else supplier.confirmed(copy, self.wait_s)
            if served is None and self.hosts.reached:
                notes += self.hosts.measure(model, supplier, self.device_id)
                question = self._question(model)  # without those that have just failed
            cached = served is not None
            if served is None:
                served = self._asked(model, question, measured, at_once)
                cached = served.cached
            if served is not copy:
                program = self._program(served.reply.plan, model)
                if copy is not None and copy.reply == served.reply:
                    served = served.model_copy(update={"settled": copy.settled})
                supplier.plans.keep(question.key, served)
            source: PlanSource = "planner"
            if served.reply.provisional:
                notes.append("a better plan is still being solved; the next run picks it up")
        except OFFLINE as error:
            mended = mend(self.embedded) if self.embedded is not None else ""
            if mended:
                supplier.disconnect()
                again = self.obtain(model, renew=renew, at_once=at_once, known=known)
                return replace(again, notes=(mended, *again.notes))
            served, cached = copy, copy is not None
            source = "single" if copy is None else "disk"
            at_hand = (
                "the fastest single processor runs the whole network"
                if copy is None
                else f"using the last plan from the disk cache, made on {copy.reply.created_at.date().isoformat()}"
            )
            notes.append(f"{error}; {at_hand}")
        return Obtained(
            served=served,
            source=source,
            cached=cached,
            profiled_signatures=measured.signatures,
            profiling_seconds=measured.seconds,
            planner_ms=(supplier.waited_s - waited_s) * 1e3,
            key=question.key,
            program=program,
            notes=(*notes, *measured.notes),
        )

    def _asked(self, model: Model, question: Question, measured: Measured, at_once: bool) -> ServedPlan:
        """The planner's plan, made with as much measured as ``obtain`` says."""
        self._tell_untrusted(model, question)
        first = self._foreseen(question)
        if first is None:
            self._measure_missing(model, question, measured, THOROUGH_S)
            return self._planned(question, self.wait_s)
        measures = not (at_once and first.reply.plan.filled)
        try:
            if (measures and self._measure_missing(model, question, measured, self.measuring_s)) or (
                self.wait_s and first.reply.provisional
            ):
                later = self._planned(question, self.wait_s)
                there = first.cached and later.reply.version == first.reply.version
                return later.model_copy(update={"cached": there})
        except OFFLINE as error:
            measured.notes.append(f"{error}; the plan that it had before is used")
        return first

    def _tell_untrusted(self, model: Model, question: Question) -> None:
        """Have the planner know what no table takes, before it plans on predictions that would place it there."""
        if refused := untrusted(model, self.planning_on.values()):
            missing = self.supplier.lacking(model.graph, question.measurable)
            rows = tuple(row for row in missing.latencies if (row.signature, row.kind) in refused)
            if rows:
                few = missing.model_copy(update={"latencies": rows, "transfers": ()})
                self.supplier.send(self.measuring.refused(model, self.planning_on, few))

    def _foreseen(self, question: Question) -> ServedPlan | None:
        """The plan that the planner can make of what it knows by now; None where that is too little."""
        try:
            return self._planned(question, None)
        except (NotFoundError, UnplannableError):  # nothing at all is known of this SoC, or not of every op
            return None

    def _planned(self, question: Question, wait_s: float | None) -> ServedPlan:
        try:
            return self.supplier.plan(question, wait_s)
        except BadRequestError as error:
            if error.type != UNPLANNABLE:
                raise
            raise UnplannableError(error.detail) from error

    def _recalled(
        self, question: Question, model: Model, known: Obtained | None = None
    ) -> tuple[ServedPlan | None, Program | None]:
        """The plan on disk, and as it is carried out, unless it cannot be; the one in use is not built again."""
        copy = self.supplier.plans.get(question.key)
        if copy is not None and known is not None and copy.reply.plan == known.plan:
            return copy, known.program
        try:
            return copy, None if copy is None else self._program(copy.reply.plan, model)
        except PlannerProtocolError:
            self.supplier.plans.drop(question.key)
            return None, None

    def _program(self, plan: Plan, model: Model) -> Program:
        """Raise PlannerProtocolError for a plan that is for another model or device, or contradicts itself."""
        try:
            return build_program(plan, model, self.device.processors)
        except (IllegalPlanError, PlanMismatchError) as error:
            raise PlannerProtocolError(f"the planner's plan cannot be carried out: {error}") from error

    def _measure_missing(self, model: Model, question: Question, measured: Measured, budget_s: float) -> bool:
        """Ask what the planner lacks, measure that for so long, and send it; whether there is more to plan on now."""
        missing = self.supplier.lacking(model.graph, question.measurable)
        if not missing.latencies and not missing.transfers:
            return False
        with one_at_a_time(self.supplier.measuring, PROFILING_S):
            missing = self.supplier.lacking(
                model.graph, question.measurable
            )  # less, where another process has just measured
            if not missing.latencies and not missing.transfers:
                return True
            self.progress.phase("measuring", budget_s)
            began = time.perf_counter()

            def step(what: str) -> None:
                check()
                self.progress.step(what)

            observations = self.trials.instead(
                self.measuring.measured(model, self.planning_on, missing, budget_s, step)
            )
            measured.seconds = time.perf_counter() - began
            measured.signatures = len(set(observations.latencies.signature))
            self.progress.phase("asking the planner")
            kept = self.supplier.hold(observations)
            try:
                self.supplier.send(observations)
            except OFFLINE:
                what = "are kept and sent at the next start" if kept else "could neither be sent nor kept"
                measured.notes.append(f"the figures measured now {what}")
                raise
        return True

    def _question(self, model: Model) -> Question:
        request = self.request(model.graph.model_hash)
        measurable = MissingRequest(
            model_hash=model.graph.model_hash,
            soc=request.soc,
            frequency=request.frequency,
            device_id=self.device_id,
            processors=self.planned,
        )
        return self.supplier.question(model.graph, request, measurable)

    def request(self, model_hash: str) -> PlanRequest:
        """What is asked for. Raises InputError for a SoC or a frequency that is none."""
        hosts, links = self.hosts.asked()
        try:
            return PlanRequest(
                jobs=(Job(model_hash=model_hash),),
                soc=self.soc.name,
                frequency=self.soc.frequency,
                processors=tuple(spec.id for spec in self.planned),
                hosts=hosts,
                links=links,
                method=self.method,
            )
        except ValidationError as error:
            raise InputError(next(faults(error))) from error
