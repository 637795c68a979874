"""From a plan to somebody who answers: compile it and its rivals, try them, and keep the fastest ready."""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Final

from agent_sdk.engine import Executor, build_program
from agent_sdk.errors import ExecutionError, InputError, ModelError, ProcessorError, UnplannableError
from agent_sdk.journey.prepared import Prepared
from agent_sdk.journey.reference import Reference
from agent_sdk.journey.rivals import RIVALS, UNFIT, compiled_singles, distinct, likeliest
from agent_sdk.journey.rounding import SWITCH
from agent_sdk.journey.services import Services
from agent_sdk.journey.trial import PLAN, Trial, best_plan, first_choice, hold_trial, plainest, warm
from agent_sdk.journey.verify import Judge, all_finite
from agent_sdk.machine.witness import Witness, calm
from agent_sdk.measure.truth import RUNS, Sample, is_outdated, observations, segment_samples
from agent_sdk.model import Model
from agent_sdk.model.feeds import Drawn
from agent_sdk.model.weights import copies_at_once
from agent_sdk.planner.client import Settled
from agent_sdk.planner.supplier import Obtained
from hope_schema import HOST, Plan

RENEWALS: Final = 2
"""How often a plan that was off is asked for again: what was measured of one plan may not hold for the next."""


@dataclass
class Opening:
    """A model that is being made ready: its plan by now, who may answer, and how far apart their answers are.

    Attributes:
        obtained: its plan, for which another one may be asked.
        reference: judges the answers to what is ``drawn``.
        drawn: feeds that it takes.
        all_rivals: keep the whole model ready on every kind of processor.
        in_flight: runs that each contender has under way at once.
        apart: the most that lies between two answers in float32, relative to the largest value.
        error: how far the plan's answer is from ONNX Runtime's, relative to the largest value.
    """

    services: Services
    model: Model
    obtained: Obtained
    reference: Reference
    drawn: Drawn
    all_rivals: bool = False
    in_flight: int = 1
    contenders: dict[str, Executor] = field(default_factory=dict)
    apart: float = 0.0
    error: float = 0.0

    def __post_init__(self) -> None:
        self.notes = list(self.obtained.notes)
        self.shown: list[Sample] = []
        self.feeds = self.drawn.tried
        self.inputs = self.feeds[0]
        self.processors, self.progress = self.services.processors, self.services.progress

    def done(self, *, pinned: bool = False) -> Prepared:
        """Compile the plan and its rivals, try them, ask again where the plan was far off, and settle who answers.

        With ``pinned`` who begins goes on. Raises UnplannableError where ``reference`` gives no answer.
        """
        with ExitStack() as ending:
            ending.callback(self._close_all_but, set())
            self._compile()
            disturbance, settled = self._warm(), self.obtained.settled
            us = dict(settled.trial_us) if settled else {}
            # What a disturbed machine showed serves while it is disturbed; a trial would show no more.
            untried = any(name == PLAN or self._elsewhere(name) for name in self.contenders.keys() - us.keys())
            disturbed = settled is not None and not settled.calm and calm(disturbance)
            if untried or disturbed or not us.keys() & self.contenders.keys():
                us = self._tried()
            if self.apart > SWITCH and not pinned:
                pinned = True
                apart = f"{self.apart:.1e} of the largest value lie between the runtimes' answers"
                self.notes.append(f"{apart}: who begins goes on")
            best = first_choice({name: us.get(name, float("inf")) for name in self.contenders})
            if not self.all_rivals:
                # Plain runtimes stay: a disturbed trial may have found them slower than they are.
                self._close_all_but({PLAN, best, *plainest(us), *likeliest(us, self.processors, RIVALS - 1)})
            planned, served = PLAN in self.contenders, self.obtained.served
            sample = None
            if self.services.field is not None and served is not None and planned:
                sample = self.services.field.follow(served.reply)
            if planned and best == PLAN and (hosts := self.contenders[PLAN].program.halved_to):
                self.notes.append(
                    f"float32 crosses to and from {', '.join(hosts)} as float16, as that host's entry allows: the "
                    f"answer is within {self.error:.1e} of the largest value of ONNX Runtime's"
                )
            prepared = Prepared(
                self.model,
                self.reference,
                self.obtained,
                self.drawn,
                self.contenders,
                us,
                notes=self.notes,
                pinned=pinned,
                sample=sample,
            )
            if planned and best != PLAN:
                prepared.changes.append(
                    f"running '{best}' instead of the plan: {us[best] / 1e3:.2f} ms against {us[PLAN] / 1e3:.2f} ms"
                )
            ending.pop_all()
        return prepared

    def _compile(self) -> None:
        """The plan, if there is one that can run, and whom it is tried against."""
        self._compile_plan()
        plan, settled = self.obtained.plan if self.contenders else None, self.obtained.settled
        names = distinct(self.processors, self._kind_of_all(plan))
        if plan is not None and not self.all_rivals:
            room = max(1, copies_at_once(self.model) - 1)
            expected = settled.trial_us if settled else plan.single_processor_us
            known = {name: expected[name] for name in names if name in expected}
            likely = likeliest(known, self.processors, RIVALS)
            plain = [name for name in names if name not in {spec.id for spec in self.services.planned}]
            unknown = [name for name in names if name not in expected] if not settled else []
            names = [*dict.fromkeys([*likely[:1], *plain, *likely, *unknown])][:room]
        self.progress.phase("compiling whole networks to compare with")
        singles, refused = compiled_singles(names, self.model, self.services.device, self.in_flight)
        self.contenders |= singles
        self.notes += [f"'{name}' cannot answer here ({why})" for name, why in refused.items() if self._elsewhere(name)]
        if not self.contenders:
            why = next(iter(refused.values()))
            raise ProcessorError(
                f"no single processor of this device runs all of '{self.model.name}', and without a planner there is "
                f"no plan that mixes them; give a planner's URL or install the 'planner' extra ({why})"
            )

    def _elsewhere(self, name: str) -> bool:
        """Whether a processor is another machine's: its owner names it, and wants to know what becomes of it."""
        return self.processors[name].spec.host != HOST

    def _kind_of_all(self, plan: Plan | None) -> set[str]:
        """The kind of processor that a plan of one processor runs the whole model on: it needs no copy to compare."""
        if plan is None or len(plan.processors_used) != 1:
            return set()
        return {self.processors[plan.processors_used[0]].spec.kind}

    def _compile_plan(self) -> None:
        if self.obtained.plan is None:
            return
        self.progress.phase("compiling the plan's segments")
        try:
            self.services.first_runs.at_plan(self.model, self.obtained.plan, self.feeds)
            program = self.obtained.program
            if program is None or not program.processors.keys() <= self.processors.keys():
                program = build_program(self.obtained.plan, self.model, self.processors)
            self.contenders[PLAN] = Executor(program, self.services.device, self.in_flight)
        except UNFIT as error:
            self._refused(error)
            self.notes.append(
                f"the plan cannot run here ({error}); the fastest single processor runs the whole network"
            )

    def _refused(self, error: Exception) -> None:
        """Have the planner told that a plan of its own cannot answer here."""
        if self.services.field is not None and self.obtained.served is not None:
            self.services.field.refuse(self.obtained.served.reply, error)

    def _tried(self) -> dict[str, float]:
        """What each takes, microseconds; of several plans that were asked for, with the best."""
        self.progress.phase("trying who is the fastest")
        found = [(self.obtained, self._trial())]
        while len(found) <= RENEWALS and (again := self._asked_again([trial for _, trial in found])) is not None:
            self.notes += [note for note in again.notes if note not in self.notes]
            self._replace_plan(again, distinct(self.processors, self._kind_of_all(again.plan)))
            found.append((again, self._trial()))
        best, trial = found[best_plan([trial for _, trial in found])]
        if best is not self.obtained:
            self._replace_plan(best, self.contenders)
        self._leave_out(trial.failures)
        if PLAN in self.contenders and best.served is not None and best.key:  # a plan file's has none
            settled = Settled(trial_us=dict(trial.us), calm=trial.calm)
            self.services.supplier.plans.keep(best.key, best.served.model_copy(update={"settled": settled}))
        return dict(trial.us)

    def _trial(self) -> Trial:
        with self.services.supplier.resting():
            trial = hold_trial(self.contenders, self.inputs)
        plan, traces = self.obtained.plan, trial.traces.get(PLAN, ())
        if plan is not None and not plan.hosts and trial.calm and len(traces) >= RUNS:
            self.shown += segment_samples(traces, self.services.planned).values()
            self.services.trials.keep(self.model.graph.model_hash, self.shown)
        return trial

    def _replace_plan(self, obtained: Obtained, others: Iterable[str]) -> None:
        """Take another plan in place of the one before; of the others those stay that are named."""
        self.obtained = obtained
        self._close_all_but(set(others) - {PLAN})
        self._compile_plan()
        self._warm()

    def _close_all_but(self, kept: set[str]) -> None:
        with ExitStack() as closing:
            for name in self.contenders.keys() - kept:
                closing.callback(self.contenders.pop(name).close)

    @cached_property
    def judges(self) -> list[Judge]:
        """Of the drawn feeds; hard values may make nothing finite, which says nothing."""
        judges = [Judge(self.model, feed, self.reference) for feed in self.feeds]
        try:
            return [one for one in judges if all_finite(one.outputs.values()) or one.feed is self.inputs]
        except (ModelError, ExecutionError, InputError) as error:
            raise UnplannableError(f"no plan answers unless ONNX Runtime's own answer judges it: {error}") from error

    def _warm(self) -> float:
        """Run each once; close who fails, or answers otherwise than ONNX Runtime does; how disturbed the cores were."""
        worst = 1.0
        with Witness() as witness:
            for judge in self.judges:
                (answers, failures), waited = witness.kept_waiting(partial(warm, self.contenders, judge.feed))
                worst = max(worst, waited * witness.slowness())
                found = judge.agreement(self.contenders, answers)
                self._leave_out({**failures, **found.wrong})
                if judge.feed is self.inputs:  # how far answers lie apart is asked of ordinary values
                    self.apart = max(self.apart, found.apart)
                    self.error = found.errors.get(PLAN, 0.0)
        return worst

    def _leave_out(self, failures: Mapping[str, Exception]) -> None:
        """Close those who failed; where all did, raise the first one's failure."""
        if failures and failures.keys() >= self.contenders.keys():
            raise next(iter(failures.values()))
        for name, error in failures.items():
            if name == PLAN:
                self._refused(error)
            what = "the plan" if name == PLAN else f"'{name}'"
            self.notes.append(f"{what} cannot answer here ({error})")
            self.contenders.pop(name).let_go()

    def _asked_again(self, trials: Sequence[Trial]) -> Obtained | None:
        """When the plan was far off, send what was measured and ask again; None when there is nothing newer.

        Times within the threshold are not sent as observations: they may never invalidate a plan. Nor is what a
        disturbed machine shows, which says nothing of the plan.
        """
        before, here, plan, trial = self.obtained, self.services, self.obtained.plan, trials[-1]
        traces = trial.traces.get(PLAN, ())
        if plan is None or plan.hosts or before.source != "planner" or not trial.calm or PLAN in trial.failures:
            return None
        if not is_outdated(plan, traces):
            return None
        measured = observations(
            [own.traces[PLAN] for own in trials],
            here.planned,
            here.trials.of_others(self.model.graph.model_hash),
            soc=here.soc.name,
            frequency=here.soc.frequency,
            device_id=here.device_id,
        )
        if measured is None or here.supplier.upload(measured):
            return None
        again = here.obtain(self.model, renew=True, at_once=True)
        if again.source != "planner" or again.plan == plan:
            return None
        note = (
            f"a plan took {trial.us[PLAN] / 1e3:.2f} ms, not {plan.makespan_us / 1e3:.2f} ms: "
            "another one was asked for with what was measured"
        )
        return replace(
            again,
            profiled_signatures=before.profiled_signatures + again.profiled_signatures,
            profiling_seconds=before.profiling_seconds + again.profiling_seconds,
            planner_ms=before.planner_ms + again.planner_ms,
            notes=(*again.notes, note),
        )
