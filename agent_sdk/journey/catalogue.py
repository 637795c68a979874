"""One network's plans, each for one set of input shapes, and the whole network, which answers where there is none.

At shapes that were not prepared the best single runtime answers with the whole network while a plan is made behind it;
a bounded number of plans is kept.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter, OrderedDict
from collections.abc import Mapping, Sequence
from concurrent.futures import CancelledError
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import numpy as np

from agent_sdk.cancel import Cancel, cancelling, check
from agent_sdk.closing import Closes
from agent_sdk.engine.ports import NEW, check_feed, check_output
from agent_sdk.engine.turn import NOW, Turn
from agent_sdk.errors import (
    DeviceClosedError,
    ExecutionError,
    HopeError,
    InputError,
    ModelError,
    NotWantedError,
    OpenShapeError,
    ProcessorError,
    SegmentFailedError,
    UnplannableError,
)
from agent_sdk.forking import FORKED, Forks, watch_forks
from agent_sdk.journey.behind import Worker
from agent_sdk.journey.demand import Demand, ShapeKey
from agent_sdk.journey.prepared import Prepared
from agent_sdk.journey.rounding import rounding
from agent_sdk.journey.steps import Journey, renewed
from agent_sdk.journey.whole import Whole
from agent_sdk.model import Model, Network, Port, Shapes
from agent_sdk.model.ports import About
from agent_sdk.runtimes.ort.whole import WholeOrt

KEPT: Final = 8
"""Sets of shapes for which a plan is kept ready; the one used longest ago makes room."""
FIRST_ANSWER_S: Final = 0.5
"""How long what goes on behind waits for the first run: measuring beside it would slow it down, and be disturbed."""

log = logging.getLogger(__name__)

Feed = Mapping[str, Any]


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


class Plans(Closes, Forks):
    """What answers a network's runs; made by ``Agent.load``. May be used from any number of threads.

    Args:
        journey: the network's steps to whoever answers.

    Attributes:
        last: what was made ready or has answered last; None where the whole network answers.
        notes: what was not as it should be with the network as such, in sentences.
        forked: whether this is a child of the process that made it: what answered there as a whole answers on.
    """

    def __init__(self, journey: Journey) -> None:
        self._journey = journey
        self._network: Network | None = None
        self._cancel = Cancel(journey.services.cancel)
        self.shapes = journey.shapes or {}
        self.last: Prepared | None = None
        self.notes: list[str] = []
        self.forked = False
        self._lock = threading.RLock()
        self._closed = False
        self._whole = Whole(journey, self._cancel)
        self._ready: OrderedDict[ShapeKey, Prepared] = OrderedDict()
        self._fed: OrderedDict[ShapeKey, Feed] = OrderedDict()
        self._demand = Demand(journey.services.budget)
        self._planned = True
        self._reading = threading.Lock()
        self._first_answer, self._begun = threading.Event(), threading.Event()
        self._answered: Counter[str] = Counter()
        self._switches = 0
        self._worker = Worker(self._cancel)
        watch_forks(self)

    def in_child(self) -> None:
        """No plan is made any more; the locks are as if nobody had ever held them."""
        self.forked, self._planned = True, False
        self._lock, self._reading = threading.RLock(), threading.Lock()
        self._first_answer, self._begun = threading.Event(), threading.Event()
        self._begun.set()

    @property
    def name(self) -> str:
        """The network's name: its file's, or the one it gives itself."""
        return self._journey.shown if self._network is None else self._network.name

    @property
    def in_flight(self) -> int:
        """How many runs of a plan may be under way at once."""
        return self._journey.in_flight

    @property
    def inputs(self) -> tuple[Port, ...]:
        """What has to be given, as the file has it: symbols stand where any size may come."""
        return self.whole.inputs if self._network is None else self._network.inputs

    @property
    def outputs(self) -> tuple[Port, ...]:
        """What is computed."""
        return self.whole.outputs if self._network is None else self._network.outputs

    @property
    def providers(self) -> tuple[str, ...]:
        """What answered last, or will answer: processors, or the runtime that runs the whole network."""
        if self.last is not None:
            return self.last.executor.program.processors_used
        return (self._whole.loaded.runtime,) if self._whole.loaded is not None else ()

    def said(self) -> str:
        """Who answers, in words."""
        if self.last is None:
            return f"the whole network on {self.providers[0]}" if self.providers else "nothing is ready yet"
        return self.last.said()

    def run(
        self,
        feed: Feed,
        *,
        into: Mapping[str, np.ndarray] = NEW,
        timeout_s: float | None = None,
        turn: Turn = NOW,
    ) -> dict[str, Any]:
        """Compute the outputs by name, in arrays of ``into`` if any. Raises like ``Session.run``.

        What the plan and its rivals all fail, and what they are not trusted with, the whole network answers, or says
        what is wrong with it.
        """
        while isinstance(prepared := self.at(feed) or self._answering(feed), Prepared):
            serving = prepared.serving
            try:
                outputs, trace = serving.run(feed, into=into, timeout_s=timeout_s, turn=turn)
                if prepared.believes(outputs, trace):
                    return outputs
                whole = self.whole
                break
            except DeviceClosedError:
                # Other shapes, or a newer plan, may have taken its place since it was looked up.
                if self._closed or (serving is prepared.serving and prepared in self._ready.values()):
                    raise
            except SegmentFailedError as error:
                whole = self._whole_after(error)
                break
        else:
            whole = prepared
        outputs = self._answered_whole(whole, feed, turn)
        if (ready := self._ready_at(feed)) is not None:
            ready.learn(outputs)
        self._keep(feed)
        self._first_answer.set()
        self._plan_for(feed)
        with self._lock:
            self._answered[f"whole:{whole.runtime}"] += 1
        for name, array in into.items():
            check_output(name, np.shape(outputs[name]), outputs[name].dtype, array)
            array[...] = outputs[name]
        return {**outputs, **into}

    def _answered_whole(self, whole: WholeOrt, feed: Feed, turn: Turn) -> dict[str, Any]:
        try:
            return whole.run(feed, key=turn.key)
        except InputError:
            wanted = {port.name: (port.shape, dtype) for port in self.inputs if (dtype := port.dtype) is not None}
            if len(wanted) == len(self.inputs):  # then the refusal reads as it does where a plan answers
                optional = {port.name for port in whole.about.optional}
                check_feed(wanted, {name: value for name, value in feed.items() if name not in optional})
            raise

    def _gives_optional(self, feed: Feed) -> bool:
        """Whether an initialiser is given that is an input too: plans have its own value in them."""
        return len(feed) > len(self.inputs) and any(port.name in feed for port in self.about.optional)

    def _answering(self, feed: Feed) -> Prepared | WholeOrt:
        """Who answers: decided together with who takes over from whom, so that nobody is asked who has just gone."""
        with self._lock:
            return self.at(feed) or self.whole

    def _whole_after(self, error: SegmentFailedError) -> WholeOrt:
        """The whole network, to answer what failed otherwise; raises the failure where no runtime loads it."""
        try:
            whole = self.whole
        except ModelError:
            raise error from None
        self._note(f"the whole network on {whole.runtime} is asked what all others fail ({error})")
        return whole

    @property
    def whole(self) -> WholeOrt:
        """The whole network, loaded when it is first needed. Raises ModelError."""
        return self._whole.get()

    @property
    def plain(self) -> WholeOrt:
        """The whole network, for what only ONNX Runtime does; see ``Whole.lend``."""
        return self._whole.lend()

    @property
    def about(self) -> About:
        """What ONNX Runtime says of the file. Raises ModelError where that refuses it."""
        return self._whole.about

    def ends(self) -> tuple[tuple[Port, ...], tuple[Port, ...]]:
        """Inputs and outputs as ONNX Runtime has them; where that refuses the file, as the file has them."""
        try:
            return self.about.inputs, self.about.outputs
        except (ModelError, ProcessorError):
            return self.inputs, self.outputs

    def opens(self) -> bool:
        """Load the whole network at once; whether it is taken."""
        with suppress(ModelError):  # a plan may still run it, and says more where that fails as well
            self._whole.get(at_once=True)
        return self._whole.loaded is not None

    @property
    def network(self) -> Network:
        """What was read. Raises ModelError where that is more than can be cut."""
        with self._reading:  # not the lock that runs take: they go on meanwhile
            if self._network is None:
                self._network = self._journey.read()
            return self._network

    def begin(self, *, background: bool) -> None:
        """Have somebody answer: at once, with a plan made behind it, or with the plan.

        What cannot be read, planned or tried runs as a
        whole, and a note says why. Raises InputError for shapes that contradict the network, ModelError where no
        runtime loads it, or what ``prepare`` raises of a planner that refuses.
        """
        shapes = self.shapes or None
        start = self._journey.start() if background else None
        try:
            if background and not (start is not None and start.planned) and self.opens():
                if shapes and start is None:  # else they were fine when that was found out
                    self.network.check(shapes)
                self.prepare_behind(shapes, known=start is not None)
            else:
                self.prepare(shapes)
        except OpenShapeError as error:
            if shapes:
                raise
            self.run_whole(error)
        except (ModelError, ExecutionError, MemoryError) as error:
            if self._closed:
                raise
            self.run_whole(error)

    def prepare(self, shapes: Shapes | None = None) -> Prepared:
        """Make a plan ready for these input shapes, unless one is, and return it. Takes as long as measuring takes.

        It is made where plans are made behind the answers, after what is under way there; who stops waiting ends it.

        Raises InputError, OpenShapeError or UnplannableError for shapes of which no plan can be made, or what preparing
        a plan raises.
        """
        if self.forked:
            raise DeviceClosedError(FORKED)
        if not self._planned:
            raise UnplannableError(f"'{self.name}' runs as a whole: {'; '.join(self.notes)}")
        if self._network is not None and (prepared := self._prepared(shapes)) is not None:
            return prepared
        cancel = Cancel(self._cancel)
        making = self._worker.submit(partial(self._made, shapes), cancel)
        try:
            return making.result()
        except (NotWantedError, CancelledError) as error:
            raise DeviceClosedError("the session is closed") from error
        finally:
            cancel.cancel()

    def _made(self, shapes: Shapes | None) -> Prepared:
        try:
            return self._prepared(shapes) or self._kept(self._journey.prepared(self._bound(shapes)))
        finally:
            self._over()

    def _over(self) -> None:
        self._begun.set()
        self._journey.progress.done()

    @property
    def begun(self) -> bool:
        """Whether whoever is to answer at first does: the first preparation is over, whatever came of it."""
        return self._begun.is_set()

    def wait(self, timeout_s: float | None) -> bool:
        """Wait until ``begun``, for so long at most; whether it is. Raises DeviceClosedError once this is closed."""
        begun = self._begun.wait(timeout_s)
        if self._closed:
            raise DeviceClosedError("the session is closed")
        return begun

    def _prepared(self, shapes: Shapes | None) -> Prepared | None:
        network = self.network
        if shapes is None and network.is_open:
            return None
        with self._lock:
            return self._ready.get(self._key(shapes or {port.name: port.sizes for port in network.inputs}))

    def _bound(self, shapes: Shapes | None) -> Model:
        # What has but one set of shapes is never bound again, and keeps no second copy of its weights.
        network = self.network
        return network.bind(shapes) if network.is_open else network.bound_in_place(shapes)

    def prepare_behind(self, shapes: Shapes | None, *, known: bool) -> None:
        """Have the whole network answer while a plan for these shapes is made.

        ``known`` says that an earlier start has found out who is best. What is wrong with the shapes is found behind,
        and noted.
        """
        log.info("%s: %s answers meanwhile", self.name, self.whole.runtime)
        self._worker.submit(partial(self._begin_behind, shapes, known))

    def _begin_behind(self, shapes: Shapes | None, known: bool) -> None:
        self._first_answer.wait(FIRST_ANSWER_S)  # the caller has the machine to itself until then
        check()
        try:
            if shapes or not self.network.is_open:
                self._prepare_behind(shapes, again=known)
        except (ModelError, MemoryError) as error:
            self._settle_whole(error)
        finally:
            self._over()

    def run_whole(self, why: Exception) -> None:
        """Have the whole network answer: from now on, or where only shapes are open, until there are plans.

        Raises ModelError where no runtime loads it either.
        """
        try:
            whole = self.whole
        except ModelError as error:
            if isinstance(why, ModelError) and not isinstance(why, UnplannableError):
                raise why from error  # it is no network at all, and what is wrong with it says that best
            raise ModelError(f"{why}; nor does a runtime load it as a whole: {error}") from error
        if not isinstance(why, OpenShapeError):
            self._planned = False
            self._note(f"the whole network runs on {whole.runtime}, because nothing can be planned: {why}")

    def _settle_whole(self, why: Exception) -> None:
        """Have the whole network answer on, unless nobody asks any more."""
        if not self._closed:
            self.run_whole(why)

    def ready(self) -> list[Prepared]:
        """What plans are ready for, one for each set of shapes. Raises DeviceClosedError once the session is closed."""
        with self._lock:
            if self._closed:
                raise DeviceClosedError("the session is closed")
            return list(self._ready.values())

    def _key(self, shapes: Mapping[str, Sequence[int]]) -> ShapeKey:
        return tuple(tuple(shapes.get(port.name, ())) for port in self.inputs)

    def at(self, feed: Feed) -> Prepared | None:
        """What is ready for these inputs; None where the whole network answers them."""
        prepared = self._ready_at(feed)
        return prepared if prepared is not None and prepared.admits(feed) else None

    def _ready_at(self, feed: Feed) -> Prepared | None:
        """What is ready for inputs of these shapes, whatever their values."""
        if self._gives_optional(feed):
            return None
        key = self._key_of(feed)
        if key is None:
            return self.last
        with self._lock:
            prepared = self._ready.get(key)
            if prepared is not None:
                self._ready.move_to_end(key)
                self.last = prepared
            return prepared

    def _keep(self, feed: Feed) -> None:
        """Keep a copy of what was fed first at these shapes: a plan is tried with it where nothing can be drawn."""
        key = self._key_of(feed) or ()
        with self._lock:
            if key not in self._fed and self._planned and not self._closed:
                self._fed[key] = {name: np.array(value) for name, value in feed.items()}
                while len(self._fed) > KEPT:
                    self._fed.popitem(last=False)

    def _own(self, shapes: Shapes | None) -> Feed | None:
        """What was fed first at these shapes, once something was."""
        with cancelling(self._first_answer.set):
            self._first_answer.wait()
        check()
        with self._lock:
            return self._fed.get(self._key(shapes) if shapes and self.network.is_open else ())

    def _plan_for(self, feed: Feed) -> None:
        """Take note of shapes that the whole network took: those that come again are worth a plan."""
        key = self._key_of(feed)
        if key is not None and feed.keys() == {port.name for port in self.inputs} and self._demand.used(key):
            self._worker.submit(self._plan_next)

    def _plan_next(self) -> None:
        key = self._demand.chosen()
        if key is not None and key not in self._ready:
            with self._journey.services.budget.spending():
                self._prepare_behind({port.name: shape for port, shape in zip(self.inputs, key, strict=True)})
            self._over()

    def _key_of(self, feed: Feed) -> ShapeKey | None:
        """What the plan for inputs of these shapes is kept under; None where there is one for all shapes, or none."""
        if not self._planned or self._network is None or not self._network.is_open:
            return None
        return tuple([np.shape(feed[port.name]) if port.name in feed else () for port in self.inputs])

    def _prepare_behind(self, shapes: Shapes | None, *, again: bool = True) -> None:
        """Make a plan for shapes that the whole network answers meanwhile.

        ``again`` says that nothing is to be found out for the next start.
        """
        shown = (
            ", ".join(f"{name} {'x'.join(map(str, shape))}" for name, shape in (shapes or {}).items()) or "any input"
        )
        try:
            model = self._bound(shapes)
            check()
            stays = f"{shown}: {self.whole.runtime} goes on answering, because others would round differently"
            if self._journey.deterministic or rounding(model.graph).differs:
                self._note(stays)
                if again:
                    return
            prepared = self._journey.prepared(model, partial(self._own, shapes), behind=True)
            if prepared.serving.pinned:
                prepared.close()
                self._note(stays)
                return
            prepared = self._kept(prepared)
            log.info("%s: from now on at %s: %s", self.name, shown, prepared.said())
            with self._lock:
                self._switches += 1
            if not self.network.is_open:
                self._whole.let_go()
            if prepared.obtained.preliminary and self._journey.travelling is None:
                renewed(self._journey.services, prepared)
        except NotWantedError:
            raise
        except (HopeError, MemoryError) as error:
            if self._closed:
                return
            if self.last is None and not self.network.is_open and isinstance(error, (ModelError, ProcessorError)):
                self._settle_whole(error)
            else:
                self._note(f"{shown}: {', '.join(self.providers)} goes on answering ({error})")

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
                self._ready[key] = self.last = prepared
                self._over()
                log.info("%s: ready: %s", self.name, self.said())
                for note in prepared.notes:
                    log.info("%s: %s", self.name, note)
                while len(self._ready) > KEPT:
                    old, evicted = self._ready.popitem(last=False)
                    self._demand.forget(old)
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
            if text not in self.notes:
                self.notes.append(text)

    @property
    def stats(self) -> Stats:
        """What the session has done so far."""
        with self._lock:
            servings = [prepared.serving for prepared in self._ready.values()]
            answered = sum((serving.answered for serving in servings), self._answered)
            switches = self._switches + sum(serving.switches for serving in servings)
            return Stats(dict(answered), switches, len(servings))

    def close(self) -> None:
        """Cancel what goes on behind, and free everything, after the runs that are under way. Idempotent."""
        self._cancel.cancel()  # before locks are waited for, which may be held by what this ends
        self._first_answer.set()
        with self._lock:
            self._closed = True
            self._begun.set()
            ready, self._ready = list(self._ready.values()), OrderedDict()
            self._whole.close()
        if self.forked:
            return
        with ExitStack() as ending:
            for prepared in ready:
                ending.callback(prepared.close)
            ending.callback(self._worker.close)
