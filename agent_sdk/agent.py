"""The façade: ``Agent().load("model.onnx").run({"input": array})``, and the journey behind it.

A model's journey: ``.onnx`` → graph → figures this SoC lacks → measure those → upload → plan → segments → outputs.
"""

import asyncio
import os
import weakref
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from agent_sdk.cancel import Cancel
from agent_sdk.closing import Closes
from agent_sdk.engine import Device
from agent_sdk.engine.executor import refuse_unless_in_flight
from agent_sdk.errors import InputError, UnplannableError, refuse_unless_seconds
from agent_sdk.files import Kept
from agent_sdk.first.bench import Setting
from agent_sdk.first.children import Children
from agent_sdk.first.measuring import Measuring
from agent_sdk.first.runs import FirstRuns
from agent_sdk.journey.demand import Budget, cpu_s
from agent_sdk.journey.drift import Drift
from agent_sdk.journey.hosts import Hosts
from agent_sdk.journey.planfile import pack_plan, read_plan, refuse_other_network, write_plan
from agent_sdk.journey.plans import Feed, LoadOptions, Plans, plain_shapes
from agent_sdk.journey.prepared import Prepared
from agent_sdk.journey.preparing import Preparing
from agent_sdk.journey.services import A_LITTLE_S, Services
from agent_sdk.journey.starts import Starts
from agent_sdk.machine.soc import read_soc
from agent_sdk.measure.trials import Trials
from agent_sdk.model import Content, Model, Shapes, Source, bare_name, located
from agent_sdk.model.module import is_module, named_source
from agent_sdk.model.ports import accepts
from agent_sdk.paths import cache_directory, state_directory
from agent_sdk.planner.client import DEADLINE_S
from agent_sdk.planner.embedded import EMBEDDED_URL, embedded_client, stands
from agent_sdk.planner.enrolment import enrol
from agent_sdk.planner.field import Field
from agent_sdk.planner.identity import device_id
from agent_sdk.planner.recognise import connecting
from agent_sdk.planner.supplier import Obtained, PlanSupplier
from agent_sdk.progress import Listener, Reporter
from agent_sdk.runtimes.offered import discover, discover_plain
from agent_sdk.runtimes.ort.graph import FrozenGraphs
from agent_sdk.runtimes.torch.choice import without_effect
from agent_sdk.scheduling.groups import spread
from agent_sdk.scheduling.job import Job, Terms
from agent_sdk.scheduling.jobs import MOST_QUEUED, Jobs
from agent_sdk.scheduling.periodic import Periodic, refuse_unless_period
from agent_sdk.scheduling.policies import DEFAULT
from agent_sdk.scheduling.policies import policy as chosen
from agent_sdk.scheduling.request import Late
from agent_sdk.scheduling.rounds import rates
from agent_sdk.scheduling.scheduler import Policy
from agent_sdk.scheduling.together import Participant, Together
from agent_sdk.session import Session
from agent_sdk.tensors import on_host
from hope_schema import MeasuredRun, Missing, ModelVersion, Observations, PlanReply
from hope_schema.plan import Method


class Agent(Closes):
    """One device's agent: its processors, its threads, and its planner.

    Use as ``with Agent() as agent: session = agent.load("model.onnx")``. Sessions share the agent's processors, and
    may run at the same time from any number of threads.

    Args:
        planner: the planner's URL; None runs one inside this process, on a SQLite file in the cache directory.
        token: bearer token for the planner; by default the one kept from enrolling, at another address too where the
            planner proves that it gave it, else ``HOPE_TOKEN``.
        soc: the SoC that figures belong to; read from this machine by default.
        frequency: the operating point; read from this machine by default.
        processors: comma-separated ids or runtimes to plan with (``"ort@0-7,ort@8-15"``); everything by default.
        precision: what torch computes float32 in (``fp32``, ``tf32``, ``fp16``) unless an id says it; ``mixed``: what
            the planner chooses for each op.
        method: how the planner plans, as ``hope_schema.plan.Method`` lists.
        measuring_s: seconds that each ``load`` may measure for, once the planner can predict what it does not know.
        wait_s: seconds the planner may hold a plan back to improve it; None takes what it has at once.
        planner_timeout_s: seconds any other call to a remote planner may take; then what is at hand answers.
        hosts: a file that names other machines (``docs/hosts.md``): whose processors plans may use, so that weights go
            there, or that serve networks of their own.
        cache: where plans, the embedded planner's database and this device's id are kept.
        progress: called with the ``Progress`` of every phase and step, of all networks.
        policy: who goes first where several networks run, and where (``scheduling.policies``): a name, a class, or a
            policy.
        queued: runs that may wait at once, of all networks.

    Attributes:
        jobs: what waits and runs.

    Raises:
        UnknownNameError: this device has no such processor, nothing computes in this precision, or there is no such
            policy.
        InputError: the planner's address, the SoC, the frequency, a number of seconds or of runs is not one.
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
        hosts: str | os.PathLike[str] | None = None,
        cache: str | os.PathLike[str] | None = None,
        progress: Listener | None = None,
        policy: str | type[Policy] | Policy = DEFAULT,
        queued: int = MOST_QUEUED,
    ) -> None:
        policy = chosen(policy)
        times = {"measuring_s": measuring_s, "wait_s": wait_s, "planner_timeout_s": planner_timeout_s}
        for name, seconds in times.items():
            if seconds is not None:
                refuse_unless_seconds(name, seconds)
        if not (isinstance(queued, int) and queued > 0):
            raise InputError(f"queued is {queued!r}; one run or more may wait")
        here = read_soc()
        self.soc = replace(here, name=soc or here.name, frequency=frequency or here.frequency)
        self.progress = Reporter(*filter(None, [progress]))
        given = Path(cache).absolute() if cache else None  # wherever the process may work later
        self._kept = Kept(given or cache_directory())
        state = given or state_directory()
        self.device_id = device_id(state)
        embedded = None
        notes: list[str | None] = [self._kept.note]
        if planner is None:
            embedded = self._kept.path / "planner.sqlite"
            connect = partial(embedded_client, embedded)
            self._supplier = PlanSupplier(connect, EMBEDDED_URL, self._kept.path, partial(stands, embedded))
        else:
            asked, note = connecting(planner, token, state, self.device_id, planner_timeout_s)
            self._supplier = PlanSupplier(asked, planner, self._kept.path)
            notes.append(note)
        folder = self._kept.folder("ort")
        frozen = FrozenGraphs(folder)
        self._lights = frozen.lights
        self._children = Children(
            Setting(processors=processors, precision=precision, cores=self.soc.cores, frozen=str(folder)),
            lambda: self.device.held_behind(),
        )
        planned = discover(processors, soc=self.soc, frozen=frozen, precision=precision)
        self.planned = tuple(processor.spec for processor in planned)
        """The processors that plans are made for; the device also has the runtimes as their users run them."""
        others = Hosts.named(None if hosts is None else Path(hosts), self.soc.cores)
        self.device = Device([*planned, *discover_plain(processors, self.soc, frozen), *others.processors()])
        own, folder, children = self.device.processors, self._kept.path, self._children
        telling = Field(partial(self._supplier.tell, self.device_id, self.soc))
        self._services = Services(
            supplier=self._supplier,
            device=self.device,
            planned=self.planned,
            processors=own,
            first_runs=FirstRuns(folder / "first_runs", own, self._lights, children),
            starts=Starts(folder / "starts", [processor.spec.kind for processor in own.values()]),
            trials=Trials(folder / "trials", self.soc),
            measuring=Measuring(children, self._lights, self.soc, self.device_id),
            soc=self.soc,
            device_id=self.device_id,
            method=method,
            measuring_s=measuring_s,
            wait_s=wait_s,
            embedded=embedded,
            notes=tuple(filter(None, [*notes, without_effect(precision, self.planned), *others.notes])),
            progress=self.progress,
            hosts=others,
            field=telling if embedded is None else None,
            cancel=Cancel(),
            budget=Budget(lambda: cpu_s() + children.cpu_s()),
        )
        self.jobs = Jobs(self.device, policy, queued)
        self._sessions: weakref.WeakSet[Session] = weakref.WeakSet()
        # Nothing that a thread does may keep the agent alive.
        self._drift = Drift(others, partial(_networks, self._sessions), self._services.cancel)
        self._services.request("0" * 64)

    @staticmethod
    def enrol(planner: str, claim: str, *, cache: str | os.PathLike[str] | None = None) -> str:
        """Exchange a claim for a token of this device's own, which its agents use from then on; return the device's id.

        Again changes nothing. ``cache`` is that of the agents. Raises InputError, PlannerError.
        """
        return enrol(planner, claim, None if cache is None else Path(cache))[0]

    def load(
        self,
        source: Source | Any,
        *,
        inputs: tuple[Any, ...] = (),
        shapes: Shapes | None = None,
        seed: int = 0,
        deterministic: bool = False,
        background: bool = True,
        all_rivals: bool = False,
        plan: str | os.PathLike[str] | None = None,
        in_flight: int = 1,
        progress: Listener | None = None,
    ) -> Session:
        """Return a network that answers at once, by the best single runtime, while its plan is made behind it.

        Where shapes are left open, plans are made behind the first runs with each. What cannot be planned runs as a
        whole, and the session's notes say why. Who answered an earlier start best answers first; a network whose answer
        depends on who computes it (``rounding``) is answered by whoever begins, for as long as the session lives.

        Args:
            source: the network; also a ``torch.nn.Module``, which torch exports on ``inputs``.
            inputs: what a module is run on: one tensor for each argument, of the shapes that the network is to have.
            shapes: shapes of inputs by name, where the file leaves them open; a symbol bound once holds everywhere.
            seed: chooses the weights of a zoo network.
            deterministic: one answer for one input, to the bit, as long as the session lives.
            background: False returns when the plan is there: measured, solved, and tried beside its rivals.
            all_rivals: keep the whole model ready on every kind of processor, for comparing.
            plan: a file that ``export_plan`` wrote: nothing is measured, solved or asked.
            in_flight: runs that a plan has under way at once, 1 to 64; each has buffers of its own, which
                ``session.latest.executor.memory`` tells.
            progress: called with what is done to prepare it, on the thread that does it: ``print`` shows it.

        Raises InputError for shapes that contradict the network or a plan file that is damaged, PlanMismatchError for
        one of another network or device, ModelError where no installed runtime loads the network, UnknownNameError;
        without ``background`` also PlannerStatusError or ProcessorError.
        """
        self._supplier.refuse_when_closed()
        refuse_unless_in_flight(in_flight)
        shapes = None if shapes is None else plain_shapes(shapes)
        travelling = None
        if plan is not None:
            specs = (own.spec for own in self.device.processors.values())
            travelling = read_plan(Path(plan), self.soc.name, specs, shapes or {})
            shapes = travelling.shapes
        name = type(source).__name__ if is_module(source) else bare_name(source)
        shown, source = named_source(source, inputs)
        reporter = Reporter(*self.progress.listeners, *filter(None, [progress]), name=Path(shown).stem)
        reporter.phase(f"reading {shown}")
        options = LoadOptions(
            Content(located(source, seed), name),
            shapes=shapes,
            deterministic=deterministic,
            all_rivals=all_rivals,
            in_flight=in_flight,
            travelling=travelling,
        )
        services, cancel = replace(self._services, progress=reporter), Cancel(self._services.cancel)
        plans = Plans(options, services, cancel)
        session = Session(Preparing(plans, services, cancel), self.jobs)
        self._sessions.add(session)
        try:
            if travelling is not None and options.content.fingerprint != travelling.fingerprint:
                model = None
                with suppress(InputError):  # it has other inputs
                    model = plans.network.bind(travelling.shapes)
                refuse_other_network(travelling, model, shown)
            session.preparing.begin(background=background)
        except BaseException:
            session.close()
            raise
        return session

    async def aload(self, source: Source, **options: Any) -> Session:
        """Like ``load``, without blocking the event loop."""
        return await asyncio.to_thread(self.load, source, **options)

    def submit(
        self,
        session: Session,
        inputs: Feed,
        *,
        deadline_ms: float | None = None,
        priority: int = 0,
        on_late: Late = "late",
        timeout_s: float | None = None,
    ) -> Job:
        """Ask for a run beside those of other networks; return a future of its outputs by name.

        Runs of one session begin in the order in which they are asked for, one at a time or as many as ``in_flight``
        and ``spread`` allow.

        Args:
            session: of this agent.
            inputs: as for ``Session.run``, though tensors are answered with arrays. Do not change them before the run
                is over.
            deadline_ms: milliseconds from now until the outputs are to be there.
            priority: -100 to 100; whoever has the higher one goes first, and equal ones as the agent's policy says.
            on_late: what becomes of a run that cannot make its deadline: ``late`` runs it all the same, behind those
                that can; ``drop`` gives it up before it begins (the future raises DroppedError); ``degrade`` has a
                cheaper network answer (see ``degrade``), and is ``late`` without one.
            timeout_s: watchdog of the run itself.

        Raises InputError for a deadline in the past, a priority out of bounds or another agent's session,
        QueueFullError, DeviceClosedError. The future raises what ``Session.run`` raises, or CancelledError.
        """
        self._refuse_others(session)
        return self.jobs.submit(session.plans, on_host(inputs), Terms(deadline_ms, priority, on_late, timeout_s))

    def stream(
        self,
        session: Session,
        inputs: Feed | Callable[[], Feed],
        *,
        every_ms: float,
        deadline_ms: float | None = None,
        priority: int = 0,
        on_late: Late = "late",
        told: Callable[[Job], object] = lambda job: None,
    ) -> Periodic:
        """Ask for a run every so many milliseconds, until what this returns is closed; ``told`` hears of each job.

        ``inputs`` may be a function, which is called when the time of a run has come. A run's deadline is its period
        unless it is given. Raises InputError, or ProcessorLost where no thread can be started.
        """
        self._refuse_others(session)
        refuse_unless_period(every_ms)
        terms = Terms(every_ms if deadline_ms is None else deadline_ms, priority, on_late)
        plans = session.plans
        return Periodic(plans.name, lambda feed: self.jobs.submit(plans, on_host(feed), terms), inputs, every_ms, told)

    def spread(self, session: Session, *, in_flight: int = 1) -> tuple[str, ...]:
        """Have a network ready on core groups of every size, so that the policy chooses how many cores each run gets.

        Takes a copy of the network for each, as far as memory has room, and as long as preparing it. Returns their ids.

        ``in_flight`` runs of it may be under way at once. Raises what ``Session.prepare`` raises, UnplannableError
        where one answer has to stay for one input, ProcessorError where it runs on no group.
        """
        self._refuse_others(session)
        refuse_unless_in_flight(in_flight)
        prepared = _ready(session)
        with self._services.cancel.current(), self._services.supplier.resting():
            groups = spread(prepared, self._services, in_flight)
        self.jobs.spread(session.plans, groups, in_flight)
        return tuple(groups)

    def together(
        self,
        *sessions: Session,
        every_ms: Sequence[float] = (),
        deadlines_ms: Sequence[float] = (),
        wait_s: float | None = None,
    ) -> Together:
        """Have one plan made for networks that run together; ``run`` of what this returns computes them all.

        The planner makes it at once and improves it for ``wait_s`` seconds. Where the sessions are faster as jobs,
        they answer. A session in the set twice runs twice.

        With ``every_ms``, the period of each session, the plan holds every run until all periods begin anew together;
        ``deadlines_ms`` are the periods unless they are given. A policy that follows plans keeps to it, once it has the
        ``parts`` of what this returns (``agent.jobs.use``).

        Raises InputError for fewer than two sessions, UnplannableError where one has no plan or the periods come
        together too seldom, PlannerError, or ProcessorError where the plan cannot run here.
        """
        self._refuse_others(*sessions)
        if wait_s is not None:
            refuse_unless_seconds("wait_s", wait_s)
        known = rates(len(sessions), every_ms, deadlines_ms)
        members = [
            Participant(session.plans, _ready(session), rate) for session, rate in zip(sessions, known, strict=True)
        ]
        with self._services.cancel.current():
            return Together.planned(members, self._services, self.jobs, wait_s)

    def degrade(self, session: Session, to: Session) -> None:
        """Have another session answer runs of this one that would be late and were asked for ``on_late="degrade"``.

        It has to take the same inputs and give outputs of the same names and types; what it does not answer all the
        same, this one answers. Raises InputError where it does not, where it would have this one answer in turn, or for
        a ``deterministic`` session, which has one answer for one input.
        """
        self._refuse_others(session, to)
        if session.plans.options.deterministic:
            raise InputError(f"'{session.name}' is deterministic: another would give other answers")
        refused = f"'{to.name}' cannot answer for '{session.name}': it"
        if not accepts(to.plans.inputs, session.plans.inputs):
            raise InputError(f"{refused} takes other inputs")
        own, other = ({(port.name, port.type) for port in one.plans.outputs} for one in (session, to))
        if own != other:
            raise InputError(f"{refused} gives other outputs")
        if not self.jobs.degrade(session.plans, to.plans):
            raise InputError(f"{refused} has its own late runs answered by '{session.name}'")

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
        with self._services.cancel.current():
            return session.preparing.refresh()

    def resolve(self, reference: str) -> ModelVersion:
        """Ask the planner which version of a named model this device gets: ``name``, ``name:2`` or ``name@alias``.

        While an alias is being released its devices get the new version one after the other. Raises PlannerError: a
        NotFoundError for what has no such name.
        """
        return self._supplier.resolve(reference)

    def obtain(self, model: Model, *, renew: bool = False, at_once: bool = False) -> Obtained:
        """Obtain the plan of a model; see ``Services.obtain``."""
        return self._services.fit_for(model).obtain(model, renew=renew, at_once=at_once)

    def measure(self, model: Model, missing: Missing, budget_s: float) -> Observations:
        """Measure these figures of a model here, for so many seconds. Raises ProcessorError, DeviceClosedError."""
        here = self._services
        return here.measuring.measured(model, here.planning_on, missing, budget_s, lambda _: None)

    def report(self, plan: PlanReply, measured_us: float, runs: int) -> str:
        """Tell a remote planner how long a plan really takes here; returns what went wrong, if anything."""
        run = MeasuredRun(plan_id=plan.plan_id, plan_version=plan.version, measured_us=measured_us, runs=runs)
        return "" if self._services.field is None else self._supplier.tell(self.device_id, self.soc, [run])

    def _refuse_others(self, *sessions: Session) -> None:
        """Raise InputError unless all sessions are this agent's: what runs another's cores is not seen here."""
        if not all(session in self._sessions for session in sessions):
            raise InputError("the sessions are to be those that this agent has loaded")

    def close(self) -> None:
        """End the threads, close every session and the connection to the planner, for good. Idempotent."""
        self._services.end()
        with ExitStack() as closing:
            closing.callback(self._kept.close)
            closing.callback(self._lights.close)
            closing.callback(self.device.close)
            for session in list(self._sessions):
                closing.callback(session.close)
            closing.callback(self.jobs.close)
            self._supplier.close()


def _ready(session: Session) -> Prepared:
    """What answers a session, made ready if nothing is. Raises DeviceClosedError, or like ``Session.prepare``."""
    session.plans.ready()
    return session.plans.last or session.prepare()


def _networks(sessions: Iterable[Session]) -> list[Preparing]:
    return [session.preparing for session in list(sessions)]
