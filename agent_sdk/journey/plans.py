"""One network's plans, each for one set of input shapes, and the whole network, which answers where there is none.

At shapes that were not prepared the best single runtime answers with the whole network while a plan is made behind it;
a bounded number of plans is kept.
"""

import logging
import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from operator import index
from typing import Any, Final, SupportsIndex
from weakref import WeakMethod

import numpy as np

from agent_sdk.cancel import Cancel
from agent_sdk.closing import Closes
from agent_sdk.engine.ports import NEW, check_feed, check_output, shape_of
from agent_sdk.engine.turn import NOW, Turn
from agent_sdk.errors import (
    SESSION_CLOSED,
    DeviceClosedError,
    ExecutionError,
    HopeError,
    InputError,
    ModelError,
    ProcessorError,
    ProcessorLost,
    SegmentFailedError,
    UnplannableError,
)
from agent_sdk.forking import Forks, watch_forks
from agent_sdk.journey.demand import ShapeKey
from agent_sdk.journey.planfile import TravellingPlan
from agent_sdk.journey.prepared import Prepared
from agent_sdk.journey.services import Services
from agent_sdk.journey.whole import Whole
from agent_sdk.model import Content, Model, Network, Port, Shapes, read_network
from agent_sdk.runtimes.ort.whole import WholeOrt

MOST_NOTES: Final = 64
"""Notes of one network: requests that fail may each fail in words of their own."""
KEPT: Final = 8
"""Sets of shapes for which a plan is kept ready; the one used longest ago makes room."""
MOST_SHAPES: Final = 1024
"""Sets of shapes that the whole network is known to have answered; beyond these it counts as asked at any."""
ANY_SHAPES: Final[ShapeKey] = ((-1,),)

log = logging.getLogger(__name__)

Feed = Mapping[str, Any]


def plain_shapes(shapes: Mapping[str, Iterable[SupportsIndex]]) -> Shapes:
    """Shapes of inputs as callers give them, of whole numbers of any kind, NumPy's too. Raises InputError."""
    try:
        return {name: tuple(map(index, sizes)) for name, sizes in shapes.items()}
    except (AttributeError, TypeError) as error:
        raise InputError(f"shapes are whole numbers by input, such as {{'x': (1, 3)}}, not {shapes!r:.200}") from error


@dataclass(frozen=True)
class LoadOptions:
    """What ``Agent.load`` was given.

    Attributes:
        shapes: those that it was loaded with; None where none were given.
        deterministic: one answer for one input, to the bit, as long as the session lives.
        all_rivals: keep the whole model ready on every kind of processor.
        in_flight: runs that each contender has under way at once.
    """

    content: Content
    shapes: Shapes | None = None
    deterministic: bool = False
    all_rivals: bool = False
    in_flight: int = 1
    travelling: TravellingPlan | None = None


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
    """What answers a network's runs, from any number of threads.

    In a child of the process that made it, what answered there as a whole answers on.

    Attributes:
        whole: the whole network, which answers where there is no plan.
        last: what was made ready or has answered last; None where the whole network answers.
        read: what was read of the file; None as long as nothing is.
        notes: what was not as it should be with the network as such, in sentences.
        planned: whether plans of it are made.
        forked: whether this is a child of the process that made it.
        lock: held while somebody takes over from somebody else.
        asked: who is told of a feed that the whole network has answered, as long as there is somebody.
    """

    def __init__(self, options: LoadOptions, services: Services, cancel: Cancel) -> None:
        self.options = options
        self.whole = Whole(services, options.content, cancel)
        self.last: Prepared | None = None
        self.read: Network | None = None
        self.notes: list[str] = []
        self.planned, self.closed, self.forked = True, False, False
        self.asked: WeakMethod[Callable[[Feed], object]] | None = None
        self._models: OrderedDict[ShapeKey, Prepared] = OrderedDict()
        self._answered: Counter[str] = Counter()
        self._whole_runs: Counter[ShapeKey] = Counter()  # that have succeeded or are under way, where plans may come
        self._switches = 0
        self.lock, self._reading = threading.RLock(), threading.Lock()
        watch_forks(self)

    def in_child(self) -> None:
        """No plan is made any more."""
        super().in_child()
        self.planned, self.forked = False, True

    # The network

    @property
    def name(self) -> str:
        return self.options.content.name or "the model" if self.read is None else self.read.name

    @property
    def network(self) -> Network:
        """What was read. Raises ModelError where that is more than can be cut."""
        with self._reading:  # not the lock that runs take: they go on meanwhile
            if self.read is None:
                self.read = read_network(self.options.content)
            return self.read

    @property
    def inputs(self) -> tuple[Port, ...]:
        """What has to be given, as the file has it: symbols stand where any size may come."""
        return self.whole.get().inputs if self.read is None else self.read.inputs

    @property
    def outputs(self) -> tuple[Port, ...]:
        return self.whole.get().outputs if self.read is None else self.read.outputs

    def ends(self) -> tuple[tuple[Port, ...], tuple[Port, ...]]:
        """Inputs and outputs as ONNX Runtime has them; where that refuses the file, as the file has them."""
        try:
            return self.whole.about.inputs, self.whole.about.outputs
        except (ModelError, ProcessorError):
            return self.inputs, self.outputs

    def note(self, text: str, why: BaseException | None = None) -> None:
        """Say what is not as it should be, once; what is beyond ``MOST_NOTES`` stands in the log alone.

        The log says where it came from, too, if it is no error of ours.
        """
        strange = why if not isinstance(why, HopeError) else None
        log.log(logging.ERROR if strange else logging.INFO, "%s: %s", self.name, text, exc_info=strange)
        with self.lock:
            if text not in self.notes and len(self.notes) < MOST_NOTES:
                self.notes.append(text)

    # Who answers

    @property
    def providers(self) -> tuple[str, ...]:
        """What answered last, or will answer: processors, or the runtime that runs the whole network."""
        if self.last is not None:
            return self.last.executor.program.processors_used
        return (self.whole.loaded.runtime,) if self.whole.loaded is not None else ()

    def said(self) -> str:
        if self.last is None:
            return f"the whole network on {self.providers[0]}" if self.providers else "nothing is ready yet"
        return self.last.said()

    @property
    def stats(self) -> Stats:
        with self.lock:
            ready = self._models.values()
            answered = sum((prepared.answered.copy() for prepared in ready), self._answered)  # runs count on meanwhile
            return Stats(dict(answered), self._switches + sum(each.switches for each in ready), len(ready))

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
        while not isinstance(taken := self.taking(feed) or self._answering(feed), WholeOrt):
            try:
                outputs, trace = taken.run(feed, into=into, timeout_s=timeout_s, turn=turn)
                if trace.ordinary:
                    return outputs
                whole = self.whole.get()
                break
            except DeviceClosedError:
                # Other shapes, or a newer plan, may have taken its place since it was looked up.
                if self.closed or self.holds(taken):
                    raise
            except SegmentFailedError as error:
                whole = self._whole_after(error)
                break
        else:
            whole = taken
        try:
            outputs = self._answered_whole(whole, feed, turn)
        except BaseException:
            if whole is taken:
                self._count_whole(feed, -1)
            raise
        if (prepared := self._ready_at(feed)) is not None:
            prepared.learn(feed, outputs)
        if self.asked is not None and (told := self.asked()) is not None:
            told(feed)
        with self.lock:
            self._answered[f"whole:{whole.runtime}"] += 1
        for name, array in into.items():
            check_output(name, np.shape(outputs[name]), outputs[name].dtype, array)
            array[...] = outputs[name]
        return {**outputs, **into}

    def at(self, feed: Feed) -> Prepared | None:
        """What is ready for these inputs; None where the whole network answers them."""
        prepared = self._ready_at(feed)
        return prepared if prepared is not None and prepared.admits(feed) else None

    def taking(self, feed: Feed) -> Prepared | None:
        """What is ready for these inputs and runs them, and looks at their floats meanwhile; if pinned, it stays."""
        prepared = self._ready_at(feed)
        if prepared is None or not prepared.takes(feed):
            return None
        if prepared.pinned and not prepared.used:
            with self.lock:
                prepared.used = self.holds(prepared)  # else it has just made room
            return prepared if prepared.used else None
        return prepared

    def _ready_at(self, feed: Feed) -> Prepared | None:
        """What is ready for inputs of these shapes, whatever their values."""
        return None if self.is_for_whole(feed) else self.ready_at(self.key_of(feed))

    def is_for_whole(self, feed: Feed) -> bool:
        """Whether the whole network alone takes a feed: plans have own values of initialisers, and scalars where the
        file has them, for which ONNX Runtime takes any shape.
        """
        if len(feed) > len(self.inputs) and any(port.name in feed for port in self.whole.about.optional):
            return True
        scalars = () if self.read is None else self.read.scalars
        return any(name in feed and shape_of(feed[name]) != () for name in scalars)

    def _answering(self, feed: Feed) -> Prepared | WholeOrt:
        """Who answers: decided together with who takes over from whom, so that nobody is asked who has just gone."""
        with self.lock:
            taken = self.taking(feed) or self.whole.get()
            if isinstance(taken, WholeOrt):
                self._count_whole(feed, 1)
            return taken

    def _count_whole(self, feed: Feed, change: int) -> None:
        """Count a run of the whole network, or one less, which was refused."""
        if not self.planned or self.is_for_whole(feed):
            return
        key = tuple([shape_of(feed[port.name]) if port.name in feed else () for port in self.inputs])
        with self.lock:
            if key not in self._whole_runs and len(self._whole_runs) >= MOST_SHAPES:
                self._whole_runs[ANY_SHAPES] = 1
                return
            self._whole_runs[key] += change
            if not self._whole_runs[key]:
                del self._whole_runs[key]

    def _answered_whole(self, whole: WholeOrt, feed: Feed, turn: Turn) -> dict[str, Any]:
        try:
            return whole.run(feed, key=turn.key)
        except (InputError, ProcessorLost):
            wanted = {port.name: (port.shape, dtype) for port in self.inputs if (dtype := port.dtype) is not None}
            if len(wanted) == len(self.inputs):  # then the refusal reads as it does where a plan answers
                optional = {port.name for port in whole.about.optional}
                check_feed(wanted, {name: value for name, value in feed.items() if name not in optional})
            raise

    def _whole_after(self, error: SegmentFailedError) -> WholeOrt:
        """The whole network, to answer what failed otherwise; raises the failure where no runtime loads it."""
        try:
            whole = self.whole.get()
        except ModelError:
            raise error from None
        self.note(f"the whole network on {whole.runtime} is asked what all others fail ({error})")
        return whole

    # What is ready

    def key(self, shapes: Mapping[str, Sequence[int]]) -> ShapeKey:
        return tuple(tuple(shapes.get(port.name, ())) for port in self.network.inputs)

    def key_for(self, model: Model) -> ShapeKey:
        return self.key({name: model.graph.tensor[name].shape for name in model.graph.inputs})

    def key_of(self, feed: Feed) -> ShapeKey | None:
        """What the plan for inputs of these shapes is kept under; None where there is one for all shapes, or none."""
        if not self.planned or self.read is None or not self.read.is_open:
            return None
        return tuple([shape_of(feed[port.name]) if port.name in feed else () for port in self.read.inputs])

    def ready(self) -> list[Prepared]:
        """All that is ready. Raises DeviceClosedError once this is closed."""
        with self.lock:
            if self.closed:
                raise DeviceClosedError(SESSION_CLOSED)
            return list(self._models.values())

    def ready_at(self, key: ShapeKey | None) -> Prepared | None:
        """What is ready at these shapes, which is used now; None stands for those that ran last."""
        if key is None:
            return self.last
        with self.lock:
            prepared = self._models.get(key)
            if prepared is not None:
                self._models.move_to_end(key)
                self.last = prepared
            return prepared

    def holds(self, prepared: Prepared) -> bool:
        with self.lock:
            return prepared in self._models.values()

    def making_room(self, key: ShapeKey, *, pinned: bool) -> list[ShapeKey]:
        """Whose plan makes room for one at these shapes.

        Raises UnplannableError where that one would change an answer that has to stay.
        """
        with self.lock:
            movable = [own for own, each in self._models.items() if not (each.pinned and each.used)]
            full = len(self._models) >= KEPT
            if (full and not movable) or (pinned and not self._whole_runs.keys().isdisjoint({key, ANY_SHAPES})):
                raise UnplannableError(f"'{self.name}' has one answer for one input: another plan would change some")
            return movable[:full]

    def keep(self, prepared: Prepared) -> tuple[Prepared, list[ShapeKey]]:
        """Take one in, unless somebody else was faster; return which stays, and the shapes that made room.

        Frees it, and raises UnplannableError where it would change an answer that has to stay, or DeviceClosedError
        once this is closed.
        """
        key, taken = self.key_for(prepared.model), False
        gone: dict[ShapeKey, Prepared] = {}
        try:
            with self.lock:
                if self.closed:
                    raise DeviceClosedError(SESSION_CLOSED)
                if key not in self._models:
                    gone = {own: self._models.pop(own) for own in self.making_room(key, pinned=prepared.pinned)}
                    self._models[key] = self.last = prepared
                    taken = True
                kept = self._models[key]
        finally:
            for each in (*gone.values(), *(() if taken else (prepared,))):
                self._free(each)
        return kept, list(gone)

    def replace(self, older: Prepared, newer: Prepared) -> bool:
        """Answer with a newer plan from now on; runs in progress end on the one they began with.

        Whether the older one was still there; where it was not, the newer one is freed. Raises DeviceClosedError once
        this is closed.
        """
        with self.lock:
            held = self.holds(older)
            if held:
                self._models.update({key: newer for key, own in self._models.items() if own is older})
                self.last = newer if self.last is older else self.last
        if not held:
            newer.close()
            if self.closed:
                raise DeviceClosedError(SESSION_CLOSED)
            return False
        try:
            self._free(older)
        except ExecutionError as error:  # the new plan is in place all the same
            newer.notes.append(f"the plan before this one could not be freed: {error}")
        return True

    def _free(self, prepared: Prepared) -> None:
        """Free one that is not there any more, after its runs; what it has answered stays counted."""
        try:
            prepared.close()
        finally:
            with self.lock:
                self._answered += prepared.answered
                self._switches += prepared.switches

    def switched(self) -> None:
        with self.lock:
            self._switches += 1

    def close(self) -> None:
        """Free everything, after the runs that are under way. Idempotent."""
        with self.lock:
            self.closed = True
            ready, self._models = list(self._models.values()), OrderedDict()
            self.whole.close()
        with ExitStack() as ending:
            for prepared in () if self.forked else ready:
                ending.callback(prepared.close)
