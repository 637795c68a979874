"""The façade: ``Agent().load("model.onnx").run({"input": array})``, and the journey behind it.

A model's journey: ``.onnx`` → graph → figures this SoC lacks → measure those → upload → plan → segments → outputs.
"""

from __future__ import annotations

import asyncio
import os
import weakref
from collections.abc import Callable, Iterable
from contextlib import AbstractAsyncContextManager, ExitStack
from copy import deepcopy
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from agent_sdk.bench import Setting
from agent_sdk.cancel import Cancel
from agent_sdk.children import Children
from agent_sdk.closing import Closes
from agent_sdk.demand import Budget, cpu_s
from agent_sdk.device.discovery import discover, discover_plain
from agent_sdk.device.soc import read_soc
from agent_sdk.engine import Device
from agent_sdk.errors import ExecutionError, ModelError, ProcessorError, UnplannableError, refuse_unless_seconds
from agent_sdk.feeds import Drawn, Feed, feeds_of
from agent_sdk.files import Kept
from agent_sdk.measure.apart import Measuring
from agent_sdk.model import Content, Model, Shapes, Source, bare_name, located, read_network
from agent_sdk.obtaining import A_LITTLE_S, Obtainer
from agent_sdk.paths import cache_directory, state_directory
from agent_sdk.planner.blocking import BlockingPlanner
from agent_sdk.planner.client import DEADLINE_S, TOKEN_VARIABLE, PlannerClient
from agent_sdk.planner.embedded import EMBEDDED_URL, embedded_client
from agent_sdk.planner.field import Field
from agent_sdk.planner.identity import device_id, stored_token
from agent_sdk.planner.recognise import recognising
from agent_sdk.planner.supplier import Obtained, PlanSupplier
from agent_sdk.plans import Plans
from agent_sdk.prepared import Prepared
from agent_sdk.progress import ProgressListener
from agent_sdk.reference import Reference
from agent_sdk.rounding import rounding
from agent_sdk.runtimes.ort.graph import FrozenGraphs
from agent_sdk.runtimes.ort.whole import WholeOrt
from agent_sdk.runtimes.torch.choice import PRECISIONS
from agent_sdk.selection.first_runs import FirstRuns, told
from agent_sdk.selection.opening import Opener
from agent_sdk.selection.starts import Start, Starts, start_after
from agent_sdk.selection.trial import PLAN
from agent_sdk.session import Session
from agent_sdk.travel import (
    TravellingPlan,
    pack_plan,
    read_plan,
    refuse_other_network,
    refuse_unfit,
    unpack_plan,
    write_plan,
)
from hope_schema import MeasuredRun, PlanReply, Processor
from hope_schema.plan import Method

OwnFeed = Callable[[], Feed | None]
"""What the application fed first, once there is such."""


def nothing() -> Feed | None:
    """The application has fed nothing yet."""
    return None


class Agent(Closes):
    """One device's agent: its processors, its threads, and its planner.

    Use as ``with Agent() as agent: session = agent.load("model.onnx")``. Sessions share the agent's processors, and
    may run at the same time from any number of threads.

    Args:
        planner: the planner's URL; None runs one inside this process, on a SQLite file in the cache directory.
        token: bearer token for the planner; by default ``HOPE_TOKEN``, else the one kept from enrolling, at another
            address too where the planner proves that it gave it.
        soc: the SoC that figures belong to; read from this machine by default.
        frequency: the operating point; read from this machine by default.
        processors: comma-separated ids or runtimes to plan with (``"ort@0-7,ort@8-15"``); everything by default.
        precision: what torch computes float32 in (``fp32``, ``tf32``, ``fp16``) unless an id says it; ``mixed``: what
            the planner chooses for each op.
        method: how the planner plans, as ``hope_schema.plan.Method`` lists.
        measuring_s: seconds that each ``load`` may measure for, once the planner can predict what it does not know.
        wait_s: seconds the planner may hold a plan back to improve it; None takes what it has at once.
        planner_timeout_s: seconds any other call to a remote planner may take; then what is at hand answers.
        cache: where plans, the embedded planner's database and this device's id are kept.
        progress: hears about phases and steps.

    Raises:
        UnknownNameError: this device has no such processor, or nothing computes in this precision.
        InputError: the planner's address, the SoC, the frequency or a number of seconds is not one.
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
        measuring_s: float = A_LITTLE_S,
        wait_s: float | None = None,
        planner_timeout_s: float = DEADLINE_S,
        cache: str | os.PathLike[str] | None = None,
        progress: ProgressListener | None = None,
    ) -> None:
        for name, seconds in (
            ("measuring_s", measuring_s),
            ("wait_s", wait_s),
            ("planner_timeout_s", planner_timeout_s),
        ):
            if seconds is not None:
                refuse_unless_seconds(name, seconds)
        here = read_soc()
        self.soc = replace(here, name=soc or here.name, frequency=frequency or here.frequency)
        progress = progress or ProgressListener()
        self.progress = progress
        self._kept = Kept(Path(cache or cache_directory()))
        state = Path(cache or state_directory())
        self.device_id = device_id(state)
        embedded = None
        opening: Callable[[], AbstractAsyncContextManager[PlannerClient]]
        if planner is None:
            embedded = self._kept.path / "planner.sqlite"
            opening = partial(embedded_client, embedded)
        else:
            token = token or os.environ.get(TOKEN_VARIABLE) or stored_token(state, planner)
            client = partial(PlannerClient, device_id=self.device_id, deadline_s=planner_timeout_s)
            client(planner, token=token)  # refuses what is no address now, not when it is first needed
            opening = partial(client, planner, token=token)
            if token is None:
                opening = partial(recognising, client, planner, state, self.device_id)
        self._supplier = PlanSupplier(lambda: BlockingPlanner(opening()), planner or EMBEDDED_URL, self._kept.path)
        frozen = FrozenGraphs(self._kept.folder("ort"))
        self._lights = frozen.lights
        self._children = Children(
            Setting(
                processors=processors,
                precision=precision,
                soc=self.soc.name,
                frequency=self.soc.frequency,
                cores=self.soc.cores,
                frozen=str(self._kept.folder("ort")),
            )
        )
        planned = discover(processors, soc=self.soc, frozen=frozen, precision=precision)
        self.planned = tuple(processor.spec for processor in planned)
        """The processors that plans are made for; the device also has the runtimes as their users run them."""
        self.device = Device([*planned, *discover_plain(processors, self.soc, frozen)])
        obtainer = Obtainer(
            supplier=self._supplier,
            device=self.device,
            planned=self.planned,
            measuring=Measuring(self._children, self._lights, self.soc.name, self.soc.frequency, self.device_id),
            soc=self.soc,
            device_id=self.device_id,
            method=method,
            measuring_s=measuring_s,
            wait_s=wait_s,
            embedded=embedded,
            notes=tuple(note for note in (self._kept.note, _unused(precision, self.planned)) if note),
            progress=progress,
        )
        self._field = None if embedded is not None else Field(obtainer.tell)
        self._first_runs = FirstRuns(
            self._kept.path / "first_runs", self.device.processors, self._lights, self._children
        )
        self._opener = Opener(obtainer, self.device.processors, self._first_runs, self._field)
        kinds = [processor.spec.kind for processor in self.device.processors.values()]
        self._starts = Starts(self._kept.path / "starts", kinds)
        self._sessions: weakref.WeakSet[Session] = weakref.WeakSet()
        self._cancel, self._budget = Cancel(), Budget(lambda: cpu_s() + self._children.cpu_s())
        obtainer.request("0" * 64)

    def load(
        self,
        source: Source,
        *,
        shapes: Shapes | None = None,
        seed: int = 0,
        deterministic: bool = False,
        background: bool = True,
        all_rivals: bool = False,
        plan: str | os.PathLike[str] | None = None,
    ) -> Session:
        """Return a network that answers at once, by the best single runtime, while its plan is made behind it.

        Where shapes are left open, plans are made behind the first runs with each. What cannot be planned runs as a
        whole, and the session's notes say why. Who answered an earlier start best answers first; a network whose answer
        depends on who computes it (``rounding``) is answered by whoever begins, for as long as the session lives.

        Args:
            source: the network.
            shapes: shapes of inputs by name, where the file leaves them open; a symbol bound once holds everywhere.
            seed: chooses the weights of a zoo network.
            deterministic: one answer for one input, to the bit, as long as the session lives.
            background: False returns when the plan is there: measured, solved, and tried beside its rivals.
            all_rivals: keep the whole model ready on every kind of processor, for comparing.
            plan: a file that ``export_plan`` wrote: nothing is measured, solved or asked.

        Raises InputError for shapes that contradict the network or a plan file that is damaged, PlanMismatchError for
        one of another network or device, ModelError where no installed runtime loads the network, UnknownNameError;
        without ``background`` also PlannerStatusError or ProcessorError.
        """
        self._supplier.refuse_when_closed()
        travelling = None if plan is None else read_plan(Path(plan))
        if travelling is not None:
            specs = (own.spec for own in self.device.processors.values())
            refuse_unfit(travelling, self.soc.name, specs, shapes or {})
            shapes = travelling.shapes
        self.progress.phase(f"reading {_shown(source)}")
        shapes = deepcopy(shapes)  # the caller's may change
        content = Content(located(source, seed))
        reference = Reference(content, partial(self._refuse_unjudged, content))
        known = self._starts.known(content, shapes) if background else None
        start = travelling.start if travelling is not None else known
        plans = Plans(
            Path(_shown(source)).stem,
            partial(read_network, content, name=bare_name(source)),
            partial(
                self._prepare,
                reference,
                deterministic=deterministic,
                all_rivals=all_rivals,
                plan=travelling,
                begun=partial(self._starts.keep, content, shapes),
            ),
            self._renew if travelling is None else None,
            partial(self._whole, content),
            Cancel(self._cancel),
            self._budget,
            shapes=shapes,
            deterministic=deterministic,
        )
        session = Session(content, plans, reference, self._first_runs)
        self._sessions.add(session)
        try:
            if travelling is not None and content.fingerprint != travelling.fingerprint:
                refuse_other_network(travelling, plans.network.bind(travelling.shapes), _shown(source))
            plans.begin(start, background=background)
        except BaseException:
            session.close()
            raise
        return session

    async def aload(self, source: Source, **options: Any) -> Session:
        """Like ``load``, without blocking the event loop."""
        return await asyncio.to_thread(self.load, source, **options)

    def _prepare(
        self,
        reference: Reference,
        model: Model,
        own: OwnFeed = nothing,
        *,
        behind: bool = False,
        deterministic: bool,
        all_rivals: bool,
        plan: TravellingPlan | None,
        begun: Callable[[Start], None],
    ) -> Prepared:
        """Obtain a static model's plan, unless there is one, and make it ready to run. Raises like ``load``.

        ``own`` gives what the application fed first, once there is such; ``reference`` judges the answers. ``behind``
        takes the plan that is on disk, if any, and asks nobody, or else the first that the planner has. ``begun`` is
        told how the next start should begin.
        """
        drawn = self._drawn(model, reference, own)
        model = replace(model, taken=drawn.fixed)
        opener = self._for(model, drawn)
        obtained = unpack_plan(plan, model) if plan is not None else opener.obtainer.recall(model) if behind else None
        if obtained is None:
            obtained = self.obtain(model, at_once=behind)
        pinned = deterministic or rounding(model.graph).differs
        opened = opener.opened(model, obtained, reference, drawn, all_rivals=all_rivals, pinned=pinned)
        begun(start_after(opened.serving))
        return Prepared(model, reference, opened)

    def _drawn(self, model: Model, reference: Reference, own: OwnFeed) -> Drawn:
        """Feeds to try a model with. Raises UnplannableError where ONNX Runtime takes none that is drawn, or given."""
        feeds = feeds_of(model)
        drawn = self._first_runs.drawn(feeds, reference.content, model.graph.model_hash)
        if drawn is None and (given := own()) is not None:
            return Drawn(feeds, own=given)
        if drawn is None:
            raise UnplannableError("ONNX Runtime takes no inputs that are drawn, so no plan can be tried")
        return drawn

    def _for(self, model: Model, drawn: Drawn | None = None) -> Opener:
        """What obtains and opens plans of a model: without a runtime that crashes at it, or at what is drawn."""
        crashed = self._first_runs.at_model(model, drawn.tried if drawn is not None else ())
        if not crashed:
            return self._opener
        notes, obtainer = told(crashed), self._opener.obtainer
        processors = {name: own for name, own in self.device.processors.items() if own.compiler not in crashed}
        planned = tuple(spec for spec in self.planned if spec.id in processors)
        if not planned:
            raise ProcessorError("; ".join(notes))
        obtainer = replace(obtainer, planned=planned, notes=(*obtainer.notes, *notes))
        return replace(self._opener, obtainer=obtainer, processors=processors)

    def _whole(self, content: Content, at_once: bool) -> WholeOrt:
        """The whole network as the application would have it without us; ``at_once`` without trying it in a child.

        NOTE: nobody else runs a file as it is: of one that no graph was made of, no table can say who means the same.
        """
        if not at_once:
            self._refuse_unjudged(content)
        try:
            with content.opened() as file:
                return WholeOrt(file, len(self.soc.cores))
        except ExecutionError as error:
            raise ModelError(str(error)) from error

    def _refuse_unjudged(self, content: Content) -> None:
        """Raise ModelError where ONNX Runtime crashes at a file, which then nothing can judge."""
        crashes = self._first_runs.at_file(content)
        crashed = {gone: how for gone, how in crashes.items() if gone.runtime == "onnxruntime"}
        if crashed:
            raise ModelError(f"nothing can judge an answer: {told(crashed)[0]}")

    def export_plan(self, session: Session, path: str | os.PathLike[str]) -> None:
        """Write the plan of the shapes that ran last, for ``load(model, plan=path)`` on devices of this kind.

        Raises UnplannableError where the session has none, or InputError where it cannot be written.
        """
        prepared = session.latest
        served = prepared.obtained.served
        if served is None:
            raise UnplannableError(f"'{session.name}' has no plan to export: {'; '.join(session.notes)}")
        used = [self.device.processors[name].spec for name in served.reply.plan.processors_used]
        write_plan(Path(path), pack_plan(session.name, session.content.fingerprint, prepared, served.reply, used))

    def refresh(self, session: Session) -> bool:
        """Ask the planner for newer versions of a session's plans and take them up; say whether any was.

        Runs in progress end on the plan they began with. Where a newer one cannot run at present, e.g. for want of
        memory beside the old one, that answers on, and the next refresh tries again. Raises DeviceClosedError once the
        session is closed.
        """
        self._supplier.refuse_when_closed()
        with self._cancel.current():
            taken_up = [self._renew(prepared) for prepared in session.plans.ready()]
        return any(taken_up)

    def _renew(self, prepared: Prepared) -> bool:
        """What ``refresh`` does, for one set of shapes."""
        if prepared.serving.pinned:  # the answer may not change
            return False
        with prepared.changing():
            obtained = self.obtain(prepared.model)
            if obtained.plan is None or obtained.plan == prepared.obtained.plan:
                return False
            model, drawn = prepared.model, prepared.drawn
            opened = self._for(model, drawn).opened(model, obtained, prepared.reference, drawn)
            if PLAN in opened.serving.contenders:
                prepared.take_up(opened)
                return True
            opened.serving.close()
            note = f"a newer plan cannot run here at present ({opened.notes[-1]}); the one before it answers on"
            prepared.notes += [note] if note not in prepared.notes else []
            return False

    def obtain(self, model: Model, *, renew: bool = False, at_once: bool = False) -> Obtained:
        """Obtain the plan of a model; see ``Obtainer.obtain``."""
        return self._for(model).obtainer.obtain(model, renew=renew, at_once=at_once)

    def report(self, plan: PlanReply, measured_us: float, runs: int) -> str:
        """Tell a remote planner how long a plan really takes here; returns what went wrong, if anything."""
        obtainer = self._opener.obtainer
        run = MeasuredRun(plan_id=plan.plan_id, plan_version=plan.version, measured_us=measured_us, runs=runs)
        return "" if obtainer.embedded is not None else obtainer.tell([run])

    def close(self) -> None:
        """End the threads, close every session and the connection to the planner, for good. Idempotent."""
        self._cancel.cancel()
        self._children.close()
        if self._field is not None:
            self._field.stop()
        with ExitStack() as closing:
            closing.callback(self._kept.close)
            closing.callback(self._lights.close)
            closing.callback(self.device.close)
            for session in list(self._sessions):
                closing.callback(session.close)
            self._supplier.close()


def _unused(precision: str, planned: Iterable[Processor]) -> str:
    """What is to be said of a precision that no processor computes in; nothing where one may."""
    if precision == PRECISIONS[0] or any(spec.runtime == "torch" for spec in planned):
        return ""
    return f"the precision {precision} changes nothing here: torch alone computes in it, on a GPU or named, as cpu/fp16"


def _shown(source: Source) -> str:
    return str(source) if isinstance(source, str | os.PathLike) else "the model"
