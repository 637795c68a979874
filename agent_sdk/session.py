"""A network ready to run, at any shapes: by its plan, or by the runtime that takes it whole.

A plan belongs to one set of input shapes. At shapes that were not prepared the best single runtime answers with the
whole network while a plan is made behind it; a bounded number of them is kept.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, overload

import numpy as np

from agent_sdk.binding import IoBinding
from agent_sdk.closing import Closes
from agent_sdk.engine import DeviceClosedError, Executor
from agent_sdk.engine.bound import check_output
from agent_sdk.engine.trace import Trace
from agent_sdk.errors import HopeError, InputError, ModelError, OpenShapeError, ProcessorError, UnplannableError
from agent_sdk.explain import Explanation, explain, explain_whole
from agent_sdk.measure.timing import timed
from agent_sdk.model import Model, Network, Port, Shapes
from agent_sdk.planner.supplier import Obtained
from agent_sdk.prepared import Prepared
from agent_sdk.rounding import FLOAT32, rounding
from agent_sdk.runtimes.whole import WholeNetwork
from agent_sdk.selection.serving import Serving
from agent_sdk.selection.trial import PLAN
from agent_sdk.selection.whole import Openable
from agent_sdk.verify import Verdict, random_feed, random_inputs, relative_error, verdict
from hope_schema import Plan

KEPT: Final = 8
"""Sets of shapes for which a plan is kept ready; the one used longest ago makes room."""
MAX_SHAPES: Final = 1024
"""Sets of shapes that a session remembers at all; further ones are answered by the whole network."""
FIRST_ANSWER_S: Final = 0.5
"""How long what goes on behind waits for the first run: measuring beside it would slow it down, and be disturbed."""
ASYNC_THREADS: Final = 4
"""Runs that ``run_async`` has under way at the same time."""

log = logging.getLogger(__name__)

Feed = Mapping[str, Any]
ShapeKey = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Stats:
    """What a session has done so far.

    Attributes:
        answered: how many runs each has answered: ``plan``, a processor, or ``whole:`` and the runtime.
        switches: how often somebody else than before has answered at the same shapes.
        prepared: for how many sets of shapes a plan is ready.
    """

    answered: Mapping[str, int]
    switches: int
    prepared: int


class Session(Closes):
    """A network ready to run; made by ``Agent.load``. May be used from any number of threads.

    It can stand where an ``onnxruntime.InferenceSession`` stood: ``run(output_names, feed)`` gives a list, and
    ``run(feed)`` a dictionary.

    Args:
        name: what to call the network before it is read.
        file: what runtimes load.
        read: reads the network. Raises ModelError where that is more than can be cut.
        prepare: makes a model of static shapes ready; the plan on disk will do where that is asked for.
        renew: takes up a newer plan, if there is one; None where nobody may be asked.
        whole: loads the network as it is, on the fastest runtime, or at once on the likeliest. Raises ModelError where
            all refuse it.
        alone: loads it on one thread of ONNX Runtime, to compare with.
        deterministic: one answer for one input, to the bit, as long as the session lives.

    Attributes:
        file: as given.
        deterministic: as given.
    """

    def __init__(
        self,
        name: str,
        file: Openable,
        read: Callable[[], Network],
        prepare: Callable[..., Prepared],
        renew: Callable[..., bool] | None,
        whole: Callable[[bool], WholeNetwork],
        alone: Callable[[], WholeNetwork],
        *,
        deterministic: bool = False,
    ) -> None:
        self._name = name
        self.file = file
        self._read = read
        self._network: Network | None = None
        self._prepare = prepare
        self._renew = renew
        self._open_whole = whole
        self._open_alone = alone
        self.deterministic = deterministic
        self._lock = threading.RLock()
        self._closed = False
        self._whole: WholeNetwork | None = None
        self._ready: OrderedDict[ShapeKey, Prepared] = OrderedDict()
        self._tried: set[ShapeKey] = set()
        self._planned = True
        self._preparing = threading.Lock()
        self._first_answer = threading.Event()
        self._last: Prepared | None = None
        self._notes: list[str] = []
        self._answered: Counter[str] = Counter()
        self._switches = 0
        self._pools: dict[str, ThreadPoolExecutor] = {}

    def __repr__(self) -> str:
        last, whole = self._last, self._whole
        if last is None:
            said = f"the whole network on {whole.runtime}" if whole is not None else "nothing is ready yet"
        else:
            program, current = last.executor.program, last.serving.current
            steps = Counter(program.plan.step[step].processor for each in program.segments for step in each.steps)
            where = ", ".join(f"{count} super-ops on {name}" for name, count in steps.items())
            said = f"the plan: {where}" if current == PLAN else f"{current} alone, faster here than the plan"
        return f"<Session {self.name!r}: {said}; {len(self._ready)} prepared>"

    @property
    def name(self) -> str:
        """The network's name: its file's, or the one it gives itself."""
        return self._name if self._network is None else self._network.name

    # What it takes and gives

    def get_inputs(self) -> tuple[Port, ...]:
        """What has to be given, as the file has it: symbols stand where any size may come."""
        return self.whole.inputs if self._network is None else self._network.inputs

    def get_outputs(self) -> tuple[Port, ...]:
        """What is computed."""
        return self.whole.outputs if self._network is None else self._network.outputs

    def get_providers(self) -> list[str]:
        """What answered last, or will answer: processors, or the runtime that runs the whole network."""
        last = self._last
        if last is not None:
            return list(last.executor.program.processors_used)
        return [self._whole.runtime] if self._whole is not None else []

    # Running

    @overload
    def run(self, output_names: Feed, /, *, timeout_s: float | None = None) -> dict[str, Any]: ...
    @overload
    def run(
        self,
        output_names: Sequence[str] | None,
        input_feed: Feed,
        run_options: object = None,
        *,
        timeout_s: float | None = None,
    ) -> list[Any]: ...
    def run(
        self,
        output_names: Feed | Sequence[str] | None,
        input_feed: Feed | None = None,
        run_options: object = None,
        *,
        timeout_s: float | None = None,
    ) -> dict[str, Any] | list[Any]:
        """Compute the outputs: by name with ``run(feed)``, as a list with ``run(names or None, feed)``.

        ``run_options`` is there for callers of ONNX Runtime and not looked at. ``timeout_s`` bounds runs of a plan; a
        runtime that runs the whole network cannot be stopped. Raises InputError (FeedError), or what ``Executor.run``
        raises.
        """
        if input_feed is None:
            if not isinstance(output_names, Mapping):
                raise InputError("run takes a mapping of inputs, or a list of output names and a mapping of inputs")
            return self._computed(output_names, timeout_s)
        known = [port.name for port in self.get_outputs()]
        names = list(output_names or known)
        for name in names:
            if name not in known:
                raise InputError(f"there is no output '{name}'; outputs: {', '.join(known)}")
        found = self._computed(input_feed, timeout_s)
        return [found[name] for name in names]

    def io_binding(self) -> IoBinding:
        """Nothing bound yet, for ``run_with_iobinding``."""
        return IoBinding(*([port.name for port in ports] for ports in (self.get_inputs(), self.get_outputs())))

    def run_with_iobinding(self, binding: IoBinding, run_options: object = None) -> None:
        """Compute the outputs from and into the arrays that are bound; raises like ``run``.

        ``run_options`` is not looked at.
        """
        binding.take(self._computed(binding.feed, into=binding.into))

    def run_async(
        self,
        output_names: Sequence[str] | None,
        input_feed: Feed,
        callback: Callable[[list[Any], Any, str], object],
        user_data: Any = None,
    ) -> None:
        """Begin a run and return; ``callback(outputs, user_data, error)`` is called from another thread."""

        def work() -> None:
            try:
                outputs, failure = self.run(output_names, input_feed), ""
            except Exception as error:  # noqa: BLE001  the callback is who is told
                outputs, failure = [], str(error) or type(error).__name__
            callback(outputs, user_data, failure)

        self._pool("async", ASYNC_THREADS).submit(work)

    async def arun(self, feed: Feed) -> dict[str, Any]:
        """Like ``run(feed)``, without blocking the event loop."""
        return await asyncio.to_thread(self.run, feed)

    def trace(self, inputs: Feed, *, timeout_s: float | None = None) -> tuple[dict[str, np.ndarray], Trace]:
        """Compute the outputs by a plan, which is made for these shapes if need be, and tell what happened when."""
        return self.prepare({name: np.shape(value) for name, value in inputs.items()}).trace(
            inputs, timeout_s=timeout_s
        )

    def _computed(
        self, feed: Feed, timeout_s: float | None = None, into: Mapping[str, np.ndarray] | None = None
    ) -> dict[str, Any]:
        while (prepared := self._for(feed)) is not None:
            serving = prepared.serving
            try:
                return serving.run(feed, into) if timeout_s is None else prepared.trace(feed, timeout_s=timeout_s)[0]
            except DeviceClosedError:
                # Other shapes, or a newer plan, may have taken its place since it was looked up.
                if self._closed or (serving is prepared.serving and prepared in self._ready.values()):
                    raise
        whole = self._whole or self.whole
        outputs = whole.run(feed)
        self._first_answer.set()
        with self._lock:
            self._answered[f"whole:{whole.runtime}"] += 1
        for name, array in (into or {}).items():
            check_output(name, np.shape(outputs[name]), outputs[name].dtype, array)
            array[...] = outputs[name]
        return {**outputs, **into} if into else outputs

    # Shapes

    @property
    def whole(self) -> WholeNetwork:
        """The whole network on the best single runtime, loaded when it is first needed. Raises ModelError."""
        return self._opened_whole(fastest=True)

    def _opened_whole(self, *, fastest: bool) -> WholeNetwork:
        with self._lock:
            if self._whole is None:
                if self._closed:
                    raise DeviceClosedError("the session is closed")
                self._whole = self._open_whole(fastest)
            return self._whole

    def opens(self) -> bool:
        """Load the whole network at once on the likeliest runtime; whether any takes it."""
        with suppress(ModelError):
            self._opened_whole(fastest=False)
        return self._whole is not None

    @property
    def network(self) -> Network:
        """What was read. Raises ModelError where that is more than can be cut."""
        with self._lock:
            if self._network is None:
                self._network = self._read()
            return self._network

    def prepare(self, shapes: Shapes | None = None) -> Prepared:
        """Make a plan ready for these input shapes, unless one is, and return it. Takes as long as measuring takes.

        Raises InputError, OpenShapeError or UnplannableError for shapes of which no plan can be made, or what preparing
        a plan raises.
        """
        if not self._planned:
            raise UnplannableError(f"'{self.name}' runs as a whole: {'; '.join(self._notes)}")
        network = self.network
        with self._preparing:  # what is being made behind is waited for
            if shapes is not None or not network.is_open:
                key = self._key(shapes or {port.name: port.sizes for port in network.inputs})
                with self._lock:
                    if key in self._ready:
                        return self._ready[key]
            return self._kept(self._prepare(self._bound(shapes)))

    def _bound(self, shapes: Shapes | None) -> Model:
        # What has but one set of shapes is never bound again, and keeps no second copy of its weights.
        network = self.network
        return network.bind(shapes) if network.is_open else network.bound_in_place(shapes)

    def prepare_behind(self, shapes: Shapes | None, *, known: bool) -> None:
        """Have the whole network answer while a plan for these shapes is made.

        ``known`` says that an earlier start has found out who is best. Raises InputError or OpenShapeError for shapes
        of which no plan can be made.
        """
        if shapes:
            self.network.check(shapes)
        log.info("%s: %s answers until there is a plan", self.name, self.whole.runtime)
        self._pool("prepare", 1).submit(self._begin_behind, shapes, known)

    def _begin_behind(self, shapes: Shapes | None, known: bool) -> None:
        self._first_answer.wait(FIRST_ANSWER_S)  # the caller has the machine to itself until then
        try:
            network = self.network
        except HopeError as error:
            self._settle_whole(error)
            return
        if shapes or not network.is_open:
            self._prepare_behind(shapes, again=known)

    def run_whole(self, why: HopeError) -> None:
        """Have the whole network answer: from now on, or where only shapes are open, until there are plans.

        Raises ModelError where no runtime loads it either.
        """
        try:
            whole = self.whole
        except ModelError as error:
            raise ModelError(f"{why}; nor does a runtime load it as a whole: {error}") from error
        if not isinstance(why, OpenShapeError):
            self._planned = False
            self._note(f"the whole network runs on {whole.runtime}, because nothing can be planned: {why}")

    def _settle_whole(self, why: HopeError) -> None:
        """Have the whole network answer on, and the next start begin with the fastest runtime."""
        self.run_whole(why)
        with suppress(ModelError):
            self._open_whole(True).close()

    @property
    def plannable(self) -> bool:
        """Whether plans can be made, at some shapes at least."""
        return self._planned

    def ready(self) -> list[Prepared]:
        """What plans are ready for, one for each set of shapes. Raises DeviceClosedError once the session is closed."""
        with self._lock:
            if self._closed:
                raise DeviceClosedError("the session is closed")
            return list(self._ready.values())

    def _key(self, shapes: Mapping[str, Sequence[int]]) -> ShapeKey:
        return tuple(tuple(shapes.get(port.name, ())) for port in self.get_inputs())

    def _for(self, feed: Feed) -> Prepared | None:
        """What is ready for inputs of these shapes; where nothing is yet, it begins to be made."""
        if not self._planned or self._network is None or not self._network.is_open:
            return self._last
        key = tuple([np.shape(feed[port.name]) if port.name in feed else () for port in self._network.inputs])
        with self._lock:
            prepared = self._ready.get(key)
            if prepared is not None:
                self._ready.move_to_end(key)
                self._last = prepared
                return prepared
            shapes = {port.name: shape for port, shape in zip(self._network.inputs, key, strict=True)}
            new = key not in self._tried and len(self._tried) < MAX_SHAPES
            if new and not self._closed and feed.keys() == shapes.keys():
                self._tried.add(key)
                self._pool("prepare", 1).submit(self._prepare_behind, shapes)
            return None

    def _prepare_behind(self, shapes: Shapes | None, *, again: bool = True) -> None:
        """Make a plan for shapes that the whole network answers meanwhile.

        ``again`` says that nothing is to be found out for the next start.
        """
        shown = (
            ", ".join(f"{name} {'x'.join(map(str, shape))}" for name, shape in (shapes or {}).items()) or "any input"
        )
        try:
            with self._preparing:
                model = self._bound(shapes)
                if self._is_pinned(model):
                    whole = self.whole.runtime
                    self._note(f"{shown}: {whole} goes on answering, because plans would round differently")
                    if not again:
                        self._prepare(model, self._is_wanted, behind=True).close()
                    return
                prepared = self._kept(self._prepare(model, self._is_wanted, behind=True))
                self._switches += 1
                log.info("%s: a plan answers from now on at %s", self.name, shown)
                if not self.network.is_open:
                    self._close_whole()
            if prepared.obtained.source == "disk" and self._renew is not None:
                self._renew(prepared, deterministic=self.deterministic)
        except (UnplannableError, ProcessorError) as error:
            if self._closed:
                return
            if self.network.is_open:
                self._note(f"{shown}: the whole network runs on {self.whole.runtime} ({error})")
            else:
                self._settle_whole(error)
        except (HopeError, MemoryError) as error:
            if not self._closed:
                self._note(f"{shown}: {', '.join(self.get_providers())} goes on answering ({error})")

    def _is_wanted(self) -> bool:
        return not self._closed

    def _close_whole(self) -> None:
        """Free the whole network, which a plan has replaced for good; runs in progress end on it."""
        with self._lock:
            whole, self._whole = self._whole, None
        if whole is not None:
            whole.close()

    def _is_pinned(self, model: Model) -> bool:
        return self.deterministic or rounding(model.graph).differs

    def _kept(self, prepared: Prepared) -> Prepared:
        """Take a plan in, and let go of the one used longest ago where there are too many."""
        graph = prepared.model.graph
        key = self._key({name: graph.tensor[name].shape for name in graph.inputs})
        gone: list[Prepared] = []
        with self._lock:
            if self._closed:
                gone.append(prepared)
            elif key in self._ready:  # somebody else was faster
                gone.append(prepared)
                prepared = self._ready[key]
            else:
                self._ready[key] = self._last = prepared
                log.info("ready: %r", self)
                for note in prepared.notes:
                    log.info("%s: %s", self.name, note)
                while len(self._ready) > KEPT:
                    old, evicted = self._ready.popitem(last=False)
                    self._tried.discard(old)
                    self._answered += evicted.serving.answered
                    self._switches += evicted.serving.switches
                    gone.append(evicted)
        for each in gone:
            each.close()
        if self._closed:
            raise DeviceClosedError("the session is closed")
        return prepared

    def _note(self, text: str) -> None:
        log.info("%s: %s", self.name, text)
        with self._lock:
            if text not in self._notes:
                self._notes.append(text)

    def _pool(self, name: str, threads: int) -> ThreadPoolExecutor:
        with self._lock:
            if self._closed:
                raise DeviceClosedError("the session is closed")
            if name not in self._pools:
                self._pools[name] = ThreadPoolExecutor(threads, thread_name_prefix=f"hope-{name}")
            return self._pools[name]

    # What it says

    @property
    def notes(self) -> list[str]:
        """Everything that was not as it should be, in sentences."""
        last = self._last
        return [*self._notes, *(last.notes if last is not None else ())]

    @property
    def stats(self) -> Stats:
        """What the session has done so far."""
        with self._lock:
            servings = [prepared.serving for prepared in self._ready.values()]
            answered = sum((serving.answered for serving in servings), self._answered)
            switches = self._switches + sum(serving.switches for serving in servings)
            return Stats(dict(answered), switches, len(servings))

    def verify(self, inputs: Feed | None = None, *, tolerance: float | None = None, seed: int = 0) -> Verdict:
        """Judge the plan, and who answers instead of it, by the same network on one thread of ONNX Runtime.

        ``inputs`` are drawn at random where none are given; ``tolerance`` is what the network's types round to.
        """
        feed = self.draw(seed) if inputs is None else inputs
        if (prepared := self._for(feed)) is not None:
            return verdict(prepared.model, feed, {prepared.executor, prepared.plan_executor}, tolerance)
        with closing(self._open_alone()) as alone:
            error = relative_error(self.whole.run(feed), alone.run(feed))
        return Verdict(error, FLOAT32 if tolerance is None else tolerance, "rounding of float32 between runtimes")

    def explain(self, inputs: Feed | None = None, *, runs: int = 5, seed: int = 0) -> Explanation:
        """Say what runs where and why, with a run of the plan beside what was predicted of it.

        ``inputs`` are drawn at random where none are given; of ``runs`` the middle one counts. Raises InputError where
        none can be drawn, or like ``run``.
        """
        feed = self.draw(seed) if inputs is None else inputs
        if (prepared := self._for(feed)) is not None:
            return explain(prepared, feed, runs=runs, notes=tuple(self.notes))
        times = sorted(timed(partial(self.whole.run, feed))[0] for _ in range(runs))
        return explain_whole(self.name, self.whole.runtime, times[len(times) // 2], tuple(self.notes))

    def draw(self, seed: int = 0) -> Feed:
        """Random inputs, of the shapes that ran last, else of the file's. Raises InputError where none can be drawn."""
        if self._last is not None:
            return random_inputs(self._last.model.graph, seed)
        feed = random_feed(self.whole.inputs, seed)
        if feed is None:
            ports = ", ".join(f"{port.name} {list(port.shape)}" for port in self.whole.inputs if port.is_open)
            cure = f"give shapes of {ports} (--shape INPUT=SIZES)" if ports and self.plannable else ""
            raise InputError(f"no inputs can be drawn for '{self.name}': {cure or 'give some (--input FILE.npz)'}")
        return feed

    # The plan of the shapes that ran last

    @property
    def latest(self) -> Prepared:
        """What was made ready or has answered last. Raises UnplannableError where the network runs as a whole."""
        if self._last is None:
            why = f": {self._notes[0]}" if self._notes else ""
            raise UnplannableError(f"'{self.name}' has no plan yet{why}")
        return self._last

    @property
    def model(self) -> Model:
        """The model at the shapes that ran last."""
        return self.latest.model

    @property
    def plan(self) -> Plan:
        """Its plan; without one, the single processor that ran fastest, as a plan."""
        return self.latest.plan

    @property
    def obtained(self) -> Obtained:
        """How that plan was come by."""
        return self.latest.obtained

    @property
    def serving(self) -> Serving:
        """The plan and its rivals."""
        return self.latest.serving

    @property
    def executor(self) -> Executor:
        """What answers at present."""
        return self.latest.executor

    @property
    def plan_executor(self) -> Executor:
        """The plan's own executor, whether or not it is what answers at present."""
        return self.latest.plan_executor

    def close(self) -> None:
        """Free everything, after what is under way. Idempotent."""
        with self._lock:
            self._closed = True
            self._first_answer.set()
            ready, self._ready = list(self._ready.values()), OrderedDict()
            whole, self._whole = self._whole, None
        with ExitStack() as closing:
            if whole is not None:
                closing.callback(whole.close)
            for prepared in ready:
                closing.callback(prepared.close)
            for pool in self._pools.values():
                closing.callback(pool.shutdown, cancel_futures=True)
