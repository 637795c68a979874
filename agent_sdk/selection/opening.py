"""From a plan to somebody who answers: compile it and its rivals, try them, and keep the fastest ready."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from agent_sdk.device.huge_pages import collapse
from agent_sdk.device.soc import Soc
from agent_sdk.engine import Device, Executor, build_program
from agent_sdk.engine.trace import Trace
from agent_sdk.errors import ExecutionError, ProcessorError
from agent_sdk.measure.truth import TOLD, is_outdated, observations, retimed
from agent_sdk.model import Model
from agent_sdk.model.weights import copies_at_once
from agent_sdk.planner.cache import Settled
from agent_sdk.planner.field import Field
from agent_sdk.planner.supplier import Obtained, PlanSupplier
from agent_sdk.prepared import Opened
from agent_sdk.progress import ProgressListener
from agent_sdk.rounding import SWITCH
from agent_sdk.runtimes import Processor
from agent_sdk.selection.rivals import RIVALS, compiled_singles, distinct, likeliest
from agent_sdk.selection.serving import Serving
from agent_sdk.selection.single import single_processor_plan
from agent_sdk.selection.trial import PLAN, Trial, best_plan, first_choice, hold_trial, warm
from agent_sdk.verify import agreement, random_inputs
from hope_schema import Plan
from hope_schema import Processor as ProcessorSpec

RENEWALS: Final = 2
"""How often a plan that was off is asked for again: what was measured of one plan may not hold for the next."""
UNFIT: Final = (ExecutionError, MemoryError)
"""What a plan raises that cannot run on this device at present: a processor refuses, fails, hangs, or lacks memory."""


@dataclass(frozen=True)
class Opener:
    """Makes plans ready on one device.

    Attributes:
        device: where they run.
        processors: those of its processors that may run this network, by id.
        planned: the processors that plans are made for.
        soc: the SoC they belong to.
        device_id: who reports what a plan really took.
        supplier: takes what was found out.
        renewed: asks the planner for another plan of a model.
        field: hears how plans do; None where there is nobody to tell.
        huge_pages: whether memory is put into huge pages once a network is ready.
        progress: hears about phases.
    """

    device: Device
    processors: Mapping[str, Processor]
    planned: tuple[ProcessorSpec, ...]
    soc: Soc
    device_id: str
    supplier: PlanSupplier
    renewed: Callable[[Model], Obtained]
    field: Field | None
    huge_pages: bool
    progress: ProgressListener

    def opened(self, model: Model, obtained: Obtained, *, all_rivals: bool = False, pinned: bool = False) -> Opened:
        """Compile a plan and its rivals, try them, ask again where the plan was far off, and settle who answers."""
        notes = list(obtained.notes)
        inputs = random_inputs(model.graph, 0)
        with ExitStack() as opened:
            contenders = self._compiled(model, obtained, all_rivals, notes)
            opened.callback(lambda: Serving(contenders, {}).close())
            apart = self._warm(model, obtained, contenders, inputs, notes)
            if self.huge_pages:
                collapse()
            us = dict(obtained.settled.trial_us) if obtained.settled else {}
            traces: Sequence[Trace] = ()
            if not us.keys() & contenders.keys():
                self.progress.phase("trying it against single processors")
                trial = hold_trial(contenders, inputs)
                found = [(obtained, trial)]
                while len(found) <= RENEWALS:
                    again = self._asked_again(model, obtained, trial)
                    if again is None:
                        break
                    obtained = again
                    notes += [note for note in again.notes if note not in notes]
                    others = distinct(self.processors, self._kind_of_all(again.plan))
                    self._replace_plan(model, obtained, contenders, others, notes)
                    apart = max(apart, self._warm(model, obtained, contenders, inputs, notes))
                    trial = hold_trial(contenders, inputs)
                    found.append((obtained, trial))
                obtained, trial = found[best_plan([trial for _, trial in found])]
                if obtained is not found[-1][0]:
                    self._replace_plan(model, obtained, contenders, list(contenders), notes)
                    self._warm(model, obtained, contenders, inputs, notes)
                us, traces = dict(trial.us), trial.traces.get(PLAN, ())
                self._leave_out(obtained, contenders, trial.failures, notes)
                if trial.calm and PLAN in contenders and obtained.served is not None:
                    self.supplier.settle(obtained.key, obtained.served, Settled(trial_us=us))
            if apart > SWITCH and not pinned:
                pinned = True
                notes.append(f"{apart:.1e} of the largest value lie between the runtimes' answers: who begins goes on")
            best = first_choice({name: us.get(name, float("inf")) for name in contenders})
            if not all_rivals:
                kept = {PLAN, best, *likeliest(us, self.processors, RIVALS)}
                for name in contenders.keys() - kept:
                    contenders.pop(name).close()
            plan = obtained.plan
            if plan is None or PLAN not in contenders:
                plan = self._single_plan(model, best, us.get(best, 0.0))
            elif is_outdated(plan, traces, TOLD):
                plan = retimed(plan, traces)
            sample = None
            if self.field is not None and obtained.served is not None and PLAN in contenders:
                sample = self.field.follow(obtained.served.reply)
            serving = Serving(contenders, us, pinned=pinned, sample=sample)
            if PLAN in contenders and best != PLAN:
                serving.changes.append(
                    f"running '{best}' instead of the plan: {us[best] / 1e3:.2f} ms against {us[PLAN] / 1e3:.2f} ms"
                )
            opened.pop_all()
        left_out = _compiling(self.device.processors) - _compiling(self.processors)
        return Opened(obtained, plan, serving, left_out, tuple(notes))

    def _compiled(self, model: Model, obtained: Obtained, all_rivals: bool, notes: list[str]) -> dict[str, Executor]:
        """The plan, if there is one that can run, and whom it is tried against."""
        contenders = self._compiled_plan(model, obtained, notes)
        plan = obtained.plan if contenders else None
        names = distinct(self.processors, self._kind_of_all(plan))
        if plan is not None and not all_rivals:
            room = max(1, copies_at_once(model) - 1)
            expected = obtained.settled.trial_us if obtained.settled else plan.single_processor_us
            known = {name: expected[name] for name in names if name in expected}
            likely = likeliest(known, self.processors, RIVALS)
            plain = [name for name in names if name not in {spec.id for spec in self.planned}]
            unknown = [name for name in names if name not in expected] if not obtained.settled else []
            names = [*dict.fromkeys([*likely[:1], *plain, *likely, *unknown])][:room]
        self.progress.phase("compiling whole networks to compare with")
        singles, refused = compiled_singles(names, model, self.device, self.soc.name, self.soc.frequency)
        if not contenders and not singles:
            raise ProcessorError(
                f"no single processor of this device runs all of '{model.name}', and without a planner there is "
                f"no plan that mixes them; give a planner's URL or install the 'planner' extra ({refused[0]})"
            )
        return contenders | singles

    def _kind_of_all(self, plan: Plan | None) -> set[str]:
        """The kind of processor that a plan of one processor runs the whole model on: it needs no copy to compare."""
        if plan is None or len(plan.processors_used) != 1:
            return set()
        return {self.processors[plan.processors_used[0]].spec.kind}

    def _compiled_plan(self, model: Model, obtained: Obtained, notes: list[str]) -> dict[str, Executor]:
        if obtained.plan is None:
            return {}
        self.progress.phase("compiling the plan's segments")
        try:
            return {PLAN: Executor(build_program(obtained.plan, model, self.processors), self.device)}
        except UNFIT as error:
            self._refused(obtained, error)
            notes.append(f"the plan cannot run here ({error}); running the best single processor instead")
            return {}

    def _refused(self, obtained: Obtained, error: Exception) -> None:
        """Have the planner told that a plan of its own cannot answer here."""
        if self.field is not None and obtained.served is not None:
            self.field.refuse(obtained.served.reply, error)

    def _replace_plan(
        self, model: Model, obtained: Obtained, contenders: dict[str, Executor], others: Sequence[str], notes: list[str]
    ) -> None:
        """Compile another plan in place of the one before; of the others those stay that are named."""
        for name in contenders.keys() - (set(others) - {PLAN}):
            contenders.pop(name).close()
        contenders |= self._compiled_plan(model, obtained, notes)

    def _warm(
        self,
        model: Model,
        obtained: Obtained,
        contenders: dict[str, Executor],
        inputs: Mapping[str, np.ndarray],
        notes: list[str],
    ) -> float:
        """Run each once; close who fails, or answers otherwise than ONNX Runtime does. How far apart the others are."""
        answers, failures = warm(contenders, inputs)
        found = agreement(model.graph, contenders, answers)
        self._leave_out(obtained, contenders, {**failures, **found.wrong}, notes)
        return found.apart

    def _leave_out(
        self,
        obtained: Obtained,
        contenders: dict[str, Executor],
        failures: Mapping[str, Exception],
        notes: list[str],
    ) -> None:
        """Close those who failed; where all did, raise the first one's failure."""
        if failures and failures.keys() >= contenders.keys():
            raise next(iter(failures.values()))
        for name, error in failures.items():
            if name == PLAN:
                self._refused(obtained, error)
            what = "the plan" if name == PLAN else f"'{name}'"
            notes.append(f"{what} cannot answer here ({error})")
            with suppress(ExecutionError):  # it hangs; it is freed by whoever comes back
                contenders.pop(name).close()

    def _asked_again(self, model: Model, obtained: Obtained, trial: Trial) -> Obtained | None:
        """When the plan was far off, send what was measured and ask again; None when there is nothing newer.

        Times within the threshold are not sent as observations: they may never invalidate a plan.
        """
        plan = obtained.plan
        traces = trial.traces.get(PLAN, ())
        if plan is None or obtained.source != "planner" or PLAN in trial.failures or not is_outdated(plan, traces):
            return None
        measured = observations(
            traces,
            self.planned,
            soc=self.soc.name,
            frequency=self.soc.frequency,
            device_id=self.device_id,
        )
        if measured is None or self.supplier.upload(measured):
            return None
        again = self.renewed(model)
        if again.source != "planner" or again.plan == plan:
            return None
        note = (
            f"a plan took {trial.us[PLAN] / 1e3:.2f} ms, not {plan.makespan_us / 1e3:.2f} ms: "
            "another one was asked for with what was measured"
        )
        return replace(
            again,
            profiled_signatures=obtained.profiled_signatures + again.profiled_signatures,
            profiling_seconds=obtained.profiling_seconds + again.profiling_seconds,
            planner_ms=obtained.planner_ms + again.planner_ms,
            notes=(*again.notes, note),
        )

    def _single_plan(self, model: Model, name: str, us: float) -> Plan:
        return single_processor_plan(model.graph, name, soc=self.soc.name, frequency=self.soc.frequency, latency_us=us)


def _compiling(processors: Mapping[str, Processor]) -> frozenset[str]:
    """The packages that compile networks for these processors."""
    return frozenset(own.compiler.runtime for own in processors.values() if own.compiler is not None)
