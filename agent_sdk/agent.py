"""The façade: ``Agent().load("model.onnx").run({"input": array})``, and the journey behind it.

A model's journey: ``.onnx`` → graph → figures this SoC lacks → measure those → upload → plan → segments → outputs.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, ExitStack, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import numpy as np
from pydantic import ValidationError

from agent_sdk.device.discovery import discover, discover_plain
from agent_sdk.device.huge_pages import collapse
from agent_sdk.device.soc import read_soc
from agent_sdk.engine import Device, Executor, IllegalPlanError, build_program
from agent_sdk.engine.trace import Trace
from agent_sdk.errors import (
    ExecutionError,
    InputError,
    OpenShapeError,
    PlanMismatchError,
    PlannerProtocolError,
    ProcessorError,
    UnplannableError,
)
from agent_sdk.files import Kept
from agent_sdk.measure.profiler import profile
from agent_sdk.measure.truth import is_outdated, observations, retimed
from agent_sdk.model import Model, Shapes, Source, read_network
from agent_sdk.model.weights import copies_at_once
from agent_sdk.paths import cache_directory, state_directory
from agent_sdk.planner.blocking import BlockingPlanner
from agent_sdk.planner.cache import Settled
from agent_sdk.planner.client import DEADLINE_S, TOKEN_VARIABLE, PlannerClient, ServedPlan
from agent_sdk.planner.embedded import EMBEDDED_URL, embedded_client, mend
from agent_sdk.planner.identity import device_id, stored_token, versions
from agent_sdk.planner.supplier import OFFLINE, Obtained, PlanSource, PlanSupplier, Question
from agent_sdk.prepared import Opened, Prepared
from agent_sdk.progress import ProgressListener, Silence
from agent_sdk.rounding import rounding
from agent_sdk.runtimes.ort.graph import FrozenGraphs
from agent_sdk.runtimes.ort.whole import WholeOrt
from agent_sdk.runtimes.whole import WholeNetwork
from agent_sdk.selection.rivals import RIVALS, compiled_singles, distinct, likeliest
from agent_sdk.selection.serving import Serving
from agent_sdk.selection.single import single_processor_plan
from agent_sdk.selection.trial import PLAN, Trial, against_rivals, first_choice, hold_trial, warm
from agent_sdk.selection.whole import Openable, open_whole, openable
from agent_sdk.session import Session
from agent_sdk.verify import dissenters, random_inputs
from hope_schema import DeviceReport, Job, MeasuredRun, MissingRequest, Plan, PlanReply, PlanRequest
from hope_schema.plan import Method

PROFILING_BUDGET_S: Final = 55.0
"""Longest time one ``load`` spends measuring; what it did not reach the planner estimates, and asks for again."""
RENEWALS: Final = 2
"""How often a plan that was off is asked for again: what was measured of one plan may not hold for the next."""
UNFIT: Final = (ExecutionError, MemoryError)
"""What a plan raises that cannot run on this device at present: a processor refuses, fails, hangs, or lacks memory."""


class Agent:
    """One device's agent: its processors, its threads, and its planner.

    Use as ``with Agent() as agent: session = agent.load("model.onnx")``. Sessions share the agent's processors, and
    may run at the same time from any number of threads.

    Args:
        planner: the planner's URL; None runs one inside this process, on a SQLite file in the cache directory.
        token: bearer token for the planner; by default ``HOPE_TOKEN``, else the one kept from enrolling.
        soc: the SoC that figures belong to; read from this machine by default.
        frequency: the operating point; read from this machine by default.
        processors: comma-separated ids or runtimes to plan with (``"ort@0-7,ort@8-15"``); everything by default.
        precision: what torch computes float32 in (``fp32``, ``tf32``, ``fp16``) unless an id says it.
        method: how the planner plans: ``auto``, ``ilp`` or ``greedy``.
        wait_s: seconds the planner may hold a plan back to improve it; None takes what it has at once.
        planner_timeout_s: seconds any other call to a remote planner may take; then what is at hand answers.
        huge_pages: put this process's memory into huge pages once a network is ready. All of it, the application's
            too, which saves address translation and costs the kernel some work.
        cache: where plans, the embedded planner's database and this device's id are kept.
        progress: hears about phases and steps.

    Raises:
        UnknownNameError: this device has no such processor.
        InputError: the planner's address, the SoC or the frequency is not one.
    """

    def __init__(
        self,
        planner: str | None = None,
        *,
        token: str | None = None,
        soc: str | None = None,
        frequency: str | None = None,
        processors: str | None = None,
        precision: str = "fp32",
        method: Method = "auto",
        wait_s: float | None = None,
        planner_timeout_s: float = DEADLINE_S,
        huge_pages: bool = False,
        cache: Path | None = None,
        progress: ProgressListener | None = None,
    ) -> None:
        here = read_soc()
        self.soc = replace(here, name=soc or here.name, frequency=frequency or here.frequency)
        self.method: Method = method
        self.progress = progress or Silence()
        self._wait_s = wait_s
        self._huge_pages = huge_pages
        self._kept = Kept(cache or cache_directory())
        state = cache or state_directory()
        self.device_id = device_id(state)
        self._embedded = self._kept.path / "planner.sqlite" if planner is None else None
        opening: Callable[[], AbstractAsyncContextManager[PlannerClient]]
        if self._embedded is not None:
            database = self._embedded
            opening = lambda: embedded_client(database)  # noqa: E731
        else:
            token = token or os.environ.get(TOKEN_VARIABLE) or stored_token(state, str(planner))
            opening = lambda: PlannerClient(str(planner), token=token, deadline_s=planner_timeout_s)  # noqa: E731
            opening()  # refuses what is no address now, not when it is first needed
        self._supplier = PlanSupplier(lambda: BlockingPlanner(opening()), planner or EMBEDDED_URL, self._kept.path)
        frozen = FrozenGraphs(self._kept.folder("ort"))
        planned = discover(processors, soc=self.soc, frozen=frozen, precision=precision)
        self.planned = tuple(processor.spec for processor in planned)
        """The processors that plans are made for; the device also has the runtimes as their users run them."""
        self.device = Device([*planned, *discover_plain(processors, self.soc, frozen)])
        self._request("0" * 64)

    def load(
        self,
        source: Source,
        *,
        shapes: Shapes | None = None,
        seed: int = 0,
        deterministic: bool = False,
        background: bool = False,
        all_rivals: bool = False,
    ) -> Session:
        """Read a network, obtain its plan (measuring first what the planner lacks), and make it ready to run.

        Where shapes are left open, plans are made behind the first runs with each. What cannot be planned runs as a
        whole on the best single runtime, and the session's notes say why.

        Args:
            source: the network.
            shapes: shapes of inputs by name, where the file leaves them open; a symbol bound once holds everywhere.
            seed: chooses the weights of a zoo network.
            deterministic: one answer for one input, to the bit, as long as the session lives.
            background: return as soon as the best single runtime has loaded the whole network, which answers while a
                plan is made behind it.
            all_rivals: keep the whole model ready on every kind of processor, for comparing.

        Raises InputError for shapes that contradict the network, ModelError where no installed runtime loads it,
        UnknownNameError, PlannerStatusError or ProcessorError.
        """
        self.progress.phase(f"reading {_shown(source)}")
        network, unreadable = None, None
        try:
            network = read_network(source, seed=seed)
        except UnplannableError as error:
            unreadable = error
        session = Session(
            network.name if network else Path(_shown(source)).stem,
            network,
            partial(self.prepare, deterministic=deterministic, all_rivals=all_rivals),
            partial(self._whole, openable(source, network)),
            partial(WholeOrt, openable(source, network), 1),
            deterministic=deterministic,
        )
        try:
            if unreadable is not None:
                raise unreadable
            if background:
                session.prepare_behind(shapes)
            else:
                session.prepare(shapes)
        except OpenShapeError as error:
            if shapes:
                raise
            session.run_whole(error)
        except (UnplannableError, ProcessorError) as error:
            session.run_whole(error)
        return session

    async def aload(self, source: Source, **options: Any) -> Session:
        """Like ``load``, without blocking the event loop."""
        return await asyncio.to_thread(self.load, source, **options)

    def prepare(self, model: Model, *, deterministic: bool = False, all_rivals: bool = False) -> Prepared:
        """Obtain a static model's plan and make it ready to run. Raises like ``load``."""
        pinned = deterministic or rounding(model.graph).differs
        return Prepared(model, self._opened(model, self.obtain(model), all_rivals=all_rivals, pinned=pinned))

    def _whole(self, source: Openable) -> WholeNetwork:
        runtimes = {spec.runtime.partition("-")[0] for spec in self.planned}
        return open_whole(source, runtimes, len(self.soc.cores))

    def refresh(self, session: Session) -> bool:
        """Ask the planner for newer versions of a session's plans and take them up; say whether any was.

        Runs in progress end on the plan they began with. Where a newer one cannot run at present, e.g. for want of
        memory beside the old one, that answers on, and the next refresh tries again. Raises DeviceClosedError once the
        session is closed.
        """
        taken_up = [self._refreshed(prepared, session.deterministic) for prepared in session.ready()]
        return any(taken_up)

    def _refreshed(self, prepared: Prepared, deterministic: bool) -> bool:
        if deterministic or rounding(prepared.model.graph).differs:  # the answer may not change
            return False
        with prepared.changing():
            obtained = self.obtain(prepared.model)
            if obtained.plan is None or obtained.plan == prepared.obtained.plan:
                return False
            opened = self._opened(prepared.model, obtained)
            if PLAN in opened.serving.contenders:
                prepared.take_up(opened)
                return True
            opened.serving.close()
            note = f"a newer plan cannot run here at present ({opened.notes[-1]}); the one before it answers on"
            prepared.notes += [note] if note not in prepared.notes else []
            return False

    def obtain(self, model: Model, *, renew: bool = False) -> Obtained:
        """Obtain the plan of a model; ``renew`` asks anew although one is cached.

        Raises PlannerStatusError where the planner refuses, or DeviceClosedError once the agent is closed.
        """
        self.progress.phase("asking the planner")
        supplier, waited_s = self._supplier, self._supplier.waited_s
        request = self._request(model.graph.model_hash)
        question = supplier.question(model.graph, request, self._measurable(request))
        notes = [self._kept.note] if self._kept.note else []
        copy = self._recalled(question, model)
        measured = _Measured()
        try:
            notes += supplier.send_earlier()
            served = None if renew or copy is None else supplier.confirmed(copy, self._wait_s)
            cached = served is not None
            if served is None:
                self._measure_missing(model, question, measured)
                self.progress.phase("asking the planner for a plan")
                served = supplier.plan(question, self._wait_s)
                cached = served.source == "hit"
            if served is not copy:
                self._check(served.reply.plan, model)
                supplier.keep(question, served)
            source: PlanSource = "planner"
            if served.reply.provisional:
                notes.append("a better plan is still being solved; the next run picks it up")
        except OFFLINE as error:
            mended = mend(self._embedded) if self._embedded is not None else ""
            if mended:
                supplier.disconnect()
                again = self.obtain(model, renew=renew)
                return replace(again, notes=(mended, *again.notes))
            served, cached = copy, copy is not None
            source = "single" if copy is None else "disk"
            at_hand = (
                "running the best single processor instead of a plan"
                if copy is None
                else f"using the last plan from the disk cache, made on {copy.reply.created_at.date().isoformat()}"
            )
            notes.append(f"{error}; {at_hand}")
        return Obtained(
            plan=served.reply.plan if served else None,
            served=served,
            source=source,
            cached=cached,
            profiled_signatures=measured.signatures,
            profiling_seconds=measured.seconds,
            planner_ms=(supplier.waited_s - waited_s) * 1e3,
            settled=supplier.settled(question, served) if served else None,
            key=question.key,
            notes=(*notes, *measured.notes),
        )

    def report(self, plan: PlanReply, measured_us: float, runs: int) -> str:
        """Tell a remote planner how long a plan really takes here; returns what went wrong, if anything."""
        if self._embedded is not None:
            return ""
        run = MeasuredRun(plan_id=plan.plan_id, plan_version=plan.version, measured_us=measured_us, runs=runs)
        return self._supplier.report(
            self.device_id,
            DeviceReport(
                soc=self.soc.name,
                frequency=self.soc.frequency,
                versions=versions(),
                sent_at=datetime.now(UTC),
                measured=(run,),
            ),
        )

    def _recalled(self, question: Question, model: Model) -> ServedPlan | None:
        """The plan on disk, unless it cannot be carried out."""
        copy = self._supplier.recalled(question)
        try:
            if copy is not None:
                self._check(copy.reply.plan, model)
        except PlannerProtocolError:
            self._supplier.forget(question)
            return None
        return copy

    def _check(self, plan: Plan, model: Model) -> None:
        """Raise PlannerProtocolError for a plan that is for another model or device, or contradicts itself."""
        try:
            build_program(plan, model, self.device.processors)
        except (IllegalPlanError, PlanMismatchError) as error:
            raise PlannerProtocolError(f"the planner's plan cannot be carried out: {error}") from error

    def _measure_missing(self, model: Model, question: Question, measured: _Measured) -> None:
        """Ask what the planner lacks, measure that, and send it."""
        missing = self._supplier.missing(question)
        if not missing.latencies and not missing.transfers:
            return
        with self._supplier.measuring_alone() as another_did:
            if another_did:
                missing = self._supplier.missing(question)
            if not missing.latencies and not missing.transfers:
                return
            self.progress.phase("profiling this device", PROFILING_BUDGET_S)
            began = time.perf_counter()
            observations = profile(
                model,
                [self.device.processors[spec.id] for spec in self.planned],
                missing,
                soc=self.soc.name,
                frequency=self.soc.frequency,
                device_id=self.device_id,
                budget_s=PROFILING_BUDGET_S,
                progress=self.progress.step,
            )
            measured.seconds = time.perf_counter() - began
            measured.signatures = len(set(observations.latencies.signature))
            kept = self._supplier.hold(observations)
            try:
                self._supplier.send(observations)
            except OFFLINE:
                what = "are kept and sent at the next start" if kept else "could neither be sent nor kept"
                measured.notes.append(f"the figures measured now {what}")
                raise

    def _opened(self, model: Model, obtained: Obtained, *, all_rivals: bool = False, pinned: bool = False) -> Opened:
        """Compile a plan and its rivals, try them, ask again where the plan was far off, and settle who answers."""
        notes = list(obtained.notes)
        inputs = random_inputs(model.graph, 0)
        with ExitStack() as opened:
            contenders = self._compiled(model, obtained, all_rivals, notes)
            opened.callback(lambda: Serving(contenders, {}).close())
            self._warm(model, contenders, inputs, notes)
            if self._huge_pages:
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
                    others = distinct(self.device.processors, self._kind_of_all(again.plan))
                    self._replace_plan(model, obtained, contenders, others, notes)
                    self._warm(model, contenders, inputs, notes)
                    trial = hold_trial(contenders, inputs)
                    found.append((obtained, trial))
                obtained, trial = min(found, key=lambda one: against_rivals(one[1].us))
                if obtained is not found[-1][0]:
                    self._replace_plan(model, obtained, contenders, list(contenders), notes)
                    self._warm(model, contenders, inputs, notes)
                us, traces = dict(trial.us), trial.traces.get(PLAN, ())
                self._leave_out(contenders, trial.failures, notes)
                if trial.calm and PLAN in contenders and obtained.served is not None:
                    self._supplier.settle(obtained.key, obtained.served, Settled(trial_us=us))
            best = first_choice({name: us.get(name, float("inf")) for name in contenders})
            if not all_rivals:
                kept = {PLAN, best, *likeliest(us, self.device.processors, RIVALS)}
                for name in contenders.keys() - kept:
                    contenders.pop(name).close()
            plan = obtained.plan
            if plan is None or PLAN not in contenders:
                plan = self._single_plan(model, best, us.get(best, 0.0))
            elif is_outdated(plan, traces):
                plan = retimed(plan, traces)
            serving = Serving(contenders, us, pinned=pinned)
            if PLAN in contenders and best != PLAN:
                serving.changes.append(
                    f"running '{best}' instead of the plan: {us[best] / 1e3:.2f} ms against {us[PLAN] / 1e3:.2f} ms"
                )
            opened.pop_all()
        return Opened(obtained, plan, serving, tuple(notes))

    def _compiled(self, model: Model, obtained: Obtained, all_rivals: bool, notes: list[str]) -> dict[str, Executor]:
        """The plan, if there is one that can run, and whom it is tried against."""
        contenders = self._compiled_plan(model, obtained, notes)
        plan = obtained.plan if contenders else None
        names = distinct(self.device.processors, self._kind_of_all(plan))
        if plan is not None and not all_rivals:
            room = max(1, copies_at_once(model) - 1)
            expected = obtained.settled.trial_us if obtained.settled else plan.single_processor_us
            known = {name: expected[name] for name in names if name in expected}
            likely = likeliest(known, self.device.processors, RIVALS)
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
        return {self.device.processors[plan.processors_used[0]].spec.kind}

    def _compiled_plan(self, model: Model, obtained: Obtained, notes: list[str]) -> dict[str, Executor]:
        if obtained.plan is None:
            return {}
        self.progress.phase("compiling the plan's segments")
        try:
            return {PLAN: Executor(build_program(obtained.plan, model, self.device.processors), self.device)}
        except UNFIT as error:
            notes.append(f"the plan cannot run here ({error}); running the best single processor instead")
            return {}

    def _replace_plan(
        self, model: Model, obtained: Obtained, contenders: dict[str, Executor], others: Sequence[str], notes: list[str]
    ) -> None:
        """Compile another plan in place of the one before; of the others those stay that are named."""
        for name in contenders.keys() - (set(others) - {PLAN}):
            contenders.pop(name).close()
        contenders |= self._compiled_plan(model, obtained, notes)

    def _warm(
        self, model: Model, contenders: dict[str, Executor], inputs: Mapping[str, np.ndarray], notes: list[str]
    ) -> None:
        """Run each once; close who fails, or answers otherwise than ONNX Runtime does."""
        answers, failures = warm(contenders, inputs)
        self._leave_out(contenders, failures | dissenters(model.graph, contenders, answers), notes)

    def _leave_out(self, contenders: dict[str, Executor], failures: Mapping[str, Exception], notes: list[str]) -> None:
        """Close those who failed; where all did, raise the first one's failure."""
        if failures and failures.keys() >= contenders.keys():
            raise next(iter(failures.values()))
        for name, error in failures.items():
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
        if measured is None or self._supplier.upload(measured):
            return None
        again = self.obtain(model, renew=True)
        if again.source != "planner" or again.plan == plan:
            return None
        note = (
            f"the first plan took {trial.us[PLAN] / 1e3:.2f} ms, not {plan.makespan_us / 1e3:.2f} ms: "
            "a new plan was asked for with what was measured"
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

    def _measurable(self, request: PlanRequest) -> MissingRequest:
        return MissingRequest(
            model_hash=request.jobs[0].model_hash,
            soc=request.soc,
            frequency=request.frequency,
            device_id=self.device_id,
            processors=self.planned,
        )

    def _request(self, model_hash: str) -> PlanRequest:
        try:
            return PlanRequest(
                jobs=(Job(model_hash=model_hash),),
                soc=self.soc.name,
                frequency=self.soc.frequency,
                processors=tuple(spec.id for spec in self.planned),
                method=self.method,
            )
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            raise InputError(f"{first['loc'][0]} {first['input']!r}: {first['msg']}") from error

    def close(self) -> None:
        """End the threads, close every session and the connection to the planner, for good. Idempotent."""
        with ExitStack() as closing:
            closing.callback(self._kept.close)
            closing.callback(self._supplier.close)
            self.device.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


@dataclass
class _Measured:
    """What one call measured, and what became of it; it outlives a planner that goes away afterwards."""

    signatures: int = 0
    seconds: float = 0.0
    notes: list[str] = field(default_factory=list)


def _shown(source: Source) -> str:
    return str(source) if isinstance(source, str | os.PathLike) else "the model"
