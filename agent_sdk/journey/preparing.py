"""How a network's plans come to be ready: with the caller waiting, or behind the whole network's answers."""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from concurrent.futures import CancelledError
from contextlib import suppress
from functools import partial
from typing import Any, Final

import numpy as np

from agent_sdk.cancel import Cancel, cancelling, check
from agent_sdk.closing import Closes
from agent_sdk.errors import (
    DeviceClosedError,
    ExecutionError,
    HopeError,
    ModelError,
    NotWantedError,
    OpenShapeError,
    ProcessorError,
    UnplannableError,
)
from agent_sdk.forking import FORKED, Forks, watch_forks
from agent_sdk.journey.behind import Worker
from agent_sdk.journey.demand import Demand, ShapeKey
from agent_sdk.journey.prepared import Prepared
from agent_sdk.journey.ready import KEPT, Ready
from agent_sdk.journey.rounding import rounding
from agent_sdk.journey.steps import Journey, renewed
from agent_sdk.journey.whole import Whole
from agent_sdk.model import Model, Network, Shapes

FIRST_ANSWER_S: Final = 0.5
"""How long what goes on behind waits for the first run: measuring beside it would slow it down, and be disturbed."""

log = logging.getLogger(__name__)

Feed = Mapping[str, Any]


class Preparing(Closes, Forks):
    """Prepares one network, at one set of shapes after the other. May be used from any number of threads.

    Args:
        journey: the network's steps to whoever answers.
        ready: takes in what is prepared.
        whole: the whole network, which answers meanwhile.
        cancel: ends it.

    Attributes:
        read: what was read; None as long as nothing is.
        notes: what was not as it should be with the network as such, in sentences.
        planned: whether plans of it are made.
        forked: whether this is a child of the process that made it.
    """

    def __init__(self, journey: Journey, ready: Ready, whole: Whole, cancel: Cancel) -> None:
        self._journey, self._ready, self._whole, self._cancel = journey, ready, whole, cancel
        self.read: Network | None = None
        self.notes: list[str] = []
        self.planned, self.forked = True, False
        self._fed: OrderedDict[ShapeKey, Feed] = OrderedDict()
        self._demand = Demand(journey.services.budget)
        self._lock, self._reading = threading.Lock(), threading.Lock()
        self._first_answer, self._begun = threading.Event(), threading.Event()
        self._worker = Worker(cancel)
        watch_forks(self)

    def in_child(self) -> None:
        """No plan is made any more; the locks are as if nobody had ever held them."""
        self.forked, self.planned = True, False
        self._lock, self._reading = threading.Lock(), threading.Lock()
        self._first_answer, self._begun = threading.Event(), threading.Event()
        self._begun.set()

    @property
    def name(self) -> str:
        """The network's name: its file's, or the one it gives itself."""
        return self._journey.shown if self.read is None else self.read.name

    @property
    def network(self) -> Network:
        """What was read. Raises ModelError where that is more than can be cut."""
        with self._reading:  # not the lock that runs take: they go on meanwhile
            if self.read is None:
                self.read = self._journey.read()
            return self.read

    def begin(self, *, background: bool) -> None:
        """Have somebody answer: at once, with a plan made behind it, or with the plan.

        What cannot be read, planned or tried runs as a whole, and a note says why. Raises InputError for shapes that
        contradict the network, ModelError where no runtime loads it, or what ``prepare`` raises of a planner that
        refuses.
        """
        shapes = self._journey.shapes or None
        start = self._journey.start() if background else None
        try:
            if background and not (start is not None and start.planned) and self._opens():
                if shapes and start is None:  # else they were fine when that was found out
                    self.network.check(shapes)
                log.info("%s: %s answers meanwhile", self.name, self._whole.get().runtime)
                self._worker.submit(partial(self._begin_behind, shapes, start is not None))
            else:
                self.prepare(shapes)
        except OpenShapeError as error:
            if shapes:
                raise
            self._run_whole(error)
        except Exception as error:  # whatever befalls us, the application has its answers
            callers = isinstance(error, HopeError) and not isinstance(error, (ModelError, ExecutionError))
            if callers or self._ready.closed:
                raise
            self._run_whole(error)

    def _opens(self) -> bool:
        with suppress(ModelError):  # a plan may still run it, and says more where that fails as well
            self._whole.get(at_once=True)
        return self._whole.loaded is not None

    def prepare(self, shapes: Shapes | None = None) -> Prepared:
        """Make a plan ready for these input shapes, unless one is, and return it. Takes as long as measuring takes.

        It is made where plans are made behind the answers, after what is under way there; who stops waiting ends it.

        Raises InputError, OpenShapeError or UnplannableError for shapes of which no plan can be made, or what preparing
        a plan raises.
        """
        if self.forked:
            raise DeviceClosedError(FORKED)
        if not self.planned:
            raise UnplannableError(f"'{self.name}' runs as a whole: {'; '.join(self.notes)}")
        if self.read is not None and (prepared := self._prepared(shapes)) is not None:
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

    def _prepared(self, shapes: Shapes | None) -> Prepared | None:
        network = self.network
        if shapes is None and network.is_open:
            return None
        return self._ready.at(self._key(shapes or {port.name: port.sizes for port in network.inputs}))

    def _bound(self, shapes: Shapes | None) -> Model:
        # What has but one set of shapes is never bound again, and keeps no second copy of its weights.
        network = self.network
        return network.bind(shapes) if network.is_open else network.bound_in_place(shapes)

    def _key(self, shapes: Mapping[str, Sequence[int]]) -> ShapeKey:
        return tuple(tuple(shapes.get(port.name, ())) for port in self.network.inputs)

    def key_of(self, feed: Feed) -> ShapeKey | None:
        """What the plan for inputs of these shapes is kept under; None where there is one for all shapes, or none."""
        if not self.planned or self.read is None or not self.read.is_open:
            return None
        return tuple([np.shape(feed[port.name]) if port.name in feed else () for port in self.read.inputs])

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
        if self._ready.closed:
            raise DeviceClosedError("the session is closed")
        return begun

    def _begin_behind(self, shapes: Shapes | None, known: bool) -> None:
        """``known`` says that an earlier start has found out who is best."""
        self._first_answer.wait(FIRST_ANSWER_S)  # the caller has the machine to itself until then
        check()
        try:
            self._prepare_behind(shapes, again=known)
        finally:
            self._over()

    def answered(self, feed: Feed) -> None:
        """Take note of what the whole network answered: shapes that come again are worth a plan.

        What was fed first at these shapes is kept, copied: a plan is tried with it where nothing can be drawn.
        """
        key = self.key_of(feed)
        with self._lock:
            if (key or ()) not in self._fed and self.planned and not self._ready.closed:
                self._fed[key or ()] = {name: np.array(value) for name, value in feed.items()}
                while len(self._fed) > KEPT:
                    self._fed.popitem(last=False)
        self._first_answer.set()
        network = self.read
        whole = network is not None and feed.keys() == {port.name for port in network.inputs}
        if key is not None and whole and self._demand.used(key):
            self._worker.submit(self._plan_next)

    def _own(self, shapes: Shapes | None) -> Feed | None:
        """What was fed first at these shapes, once something was."""
        with cancelling(self._first_answer.set):
            self._first_answer.wait()
        check()
        with self._lock:
            return self._fed.get(self._key(shapes) if shapes and self.network.is_open else ())

    def _plan_next(self) -> None:
        key = self._demand.chosen()
        if key is not None and key not in self._ready:
            with self._journey.services.budget.spending():
                names = (port.name for port in self.network.inputs)
                self._prepare_behind(dict(zip(names, key, strict=True)))
            self._over()

    def _prepare_behind(self, shapes: Shapes | None, *, again: bool = True) -> None:
        """Make a plan for shapes that the whole network answers meanwhile; none where they are open.

        ``again`` says that nothing is to be found out for the next start.
        """
        shown = (
            ", ".join(f"{name} {'x'.join(map(str, shape))}" for name, shape in (shapes or {}).items()) or "any input"
        )
        try:
            if not shapes and self.network.is_open:
                return
            model = self._bound(shapes)
            check()
            stays = f"{shown}: {self._whole.get().runtime} goes on answering, because others would round differently"
            if self._journey.deterministic or rounding(model.graph).differs:
                self.note(stays)
                if again:
                    return
            prepared = self._journey.prepared(model, partial(self._own, shapes), behind=True)
            if prepared.serving.pinned:
                prepared.close()
                self.note(stays)
                return
            prepared = self._kept(prepared)
            log.info("%s: from now on at %s: %s", self.name, shown, prepared.said())
            self._ready.count("", switches=1)
            if not self.network.is_open:
                self._whole.let_go()
            if prepared.obtained.preliminary and self._journey.travelling is None:
                renewed(self._journey.services, prepared)
        except NotWantedError:
            raise
        except Exception as error:  # noqa: BLE001  as in the foreground
            if self._ready.closed:
                return
            alone = self._ready.last is None and (self.read is None or not self.read.is_open)
            if alone and (isinstance(error, (ModelError, ProcessorError)) or not isinstance(error, HopeError)):
                self._run_whole(error)
            else:
                whole = self._whole.loaded
                self.note(f"{shown}: {whole.runtime if whole else 'nobody'} goes on answering ({_words(error)})")

    def _kept(self, prepared: Prepared) -> Prepared:
        """Take a prepared model in; the one used longest ago makes room where there are too many."""
        graph = prepared.model.graph
        key = self._key({name: graph.tensor[name].shape for name in graph.inputs})
        kept, gone = self._ready.keep(key, prepared)
        if kept is prepared:
            self._over()
            log.info("%s: ready: %s", self.name, kept.said())
            for note in kept.notes:
                log.info("%s: %s", self.name, note)
        for old in gone:
            self._demand.forget(old)
        return kept

    def _run_whole(self, why: Exception) -> None:
        """Have the whole network answer: from now on, or where only shapes are open, until there are plans.

        Raises ModelError where no runtime loads it either.
        """
        try:
            whole = self._whole.get()
        except ModelError as error:
            if isinstance(why, ModelError) and not isinstance(why, UnplannableError):
                raise why from error  # it is no network at all, and what is wrong with it says that best
            raise ModelError(f"{_words(why)}; nor does a runtime load it as a whole: {error}") from error
        if not isinstance(why, OpenShapeError):
            self.planned = False
            self.note(f"the whole network runs on {whole.runtime}, because nothing can be planned: {_words(why)}")
            log.debug("%s: why", self.name, exc_info=why)

    def note(self, text: str) -> None:
        """Say what is not as it should be, once."""
        log.info("%s: %s", self.name, text)
        with self._lock:
            if text not in self.notes:
                self.notes.append(text)

    def end(self) -> None:
        """Have nobody wait any more, before anything is closed that they wait for."""
        self._first_answer.set()
        self._begun.set()

    def close(self) -> None:
        """Cancel what goes on behind. Idempotent."""
        if not self.forked:
            self._worker.close()


def _words(error: Exception) -> str:
    """What is said of an error: its own words, and its class where it is none of ours."""
    return str(error) if isinstance(error, (HopeError, MemoryError)) else f"{type(error).__name__}: {error}"
