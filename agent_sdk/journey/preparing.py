"""How a network's plans come to be ready: with the caller waiting, or behind the whole network's answers."""

import logging
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import CancelledError
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from typing import Final

import numpy as np

from agent_sdk.cancel import Cancel, cancelling, check
from agent_sdk.closing import Closes
from agent_sdk.errors import (
    SESSION_CLOSED,
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
from agent_sdk.journey.opening import Opening
from agent_sdk.journey.planfile import refuse_other_network
from agent_sdk.journey.plans import KEPT, Feed, Plans
from agent_sdk.journey.prepared import Prepared
from agent_sdk.journey.reference import Reference
from agent_sdk.journey.rounding import rounding
from agent_sdk.journey.services import Services
from agent_sdk.journey.starts import start_after
from agent_sdk.journey.trial import PLAN
from agent_sdk.model import Model, Shapes
from agent_sdk.model.feeds import Drawn, feeds_of
from agent_sdk.planner.supplier import Obtained
from agent_sdk.tensors import array_of

FIRST_ANSWER_S: Final = 0.5
"""How long what goes on behind waits for the first run: measuring beside it would slow it down, and be disturbed."""
NEWER_FAILS: Final = "a newer plan cannot run here at present"
"""How the note begins that says why a plan was not taken up; the latest such reason stands."""

log = logging.getLogger(__name__)


class Preparing(Closes, Forks):
    """Prepares one network, at one set of shapes after the other. May be used from any number of threads.

    Args:
        plans: takes in what is prepared, and answers meanwhile; closed with this.
        cancel: ends it, and is cancelled when this is closed.

    Attributes:
        reference: what judges the answers.
    """

    def __init__(self, plans: Plans, services: Services, cancel: Cancel) -> None:
        self.plans, self.services, self._cancel = plans, services, cancel
        self._options = plans.options
        refuse_crashing = partial(services.first_runs.refuse_unjudged, self._options.content)
        self.reference = Reference(self._options.content, refuse_crashing)
        self._fed: OrderedDict[ShapeKey, Feed] = OrderedDict()
        self._demand = Demand(services.budget)
        self._worker = Worker(cancel)
        plans.asked = weakref.WeakMethod(self._answered)  # a session that nobody closes is freed all the same
        self._lock, self._renewing = threading.Lock(), threading.Lock()
        self._first_answer, self._begun = threading.Event(), threading.Event()
        watch_forks(self)

    def in_child(self) -> None:
        """Nobody waits for what is not made any more."""
        super().in_child()
        self._first_answer, self._begun = threading.Event(), threading.Event()
        self._begun.set()

    # The first preparation

    def begin(self, *, background: bool) -> None:
        """Have somebody answer: at once, with a plan made behind it, or with the plan.

        What cannot be read, planned or tried runs as a whole, and a note says why. Raises InputError for shapes that
        contradict the network, ModelError where no runtime loads it, or what ``prepare`` raises of a planner that
        refuses.
        """
        options, plans = self._options, self.plans
        shapes = options.shapes or None
        start = None
        if background and options.travelling is not None:
            start = options.travelling.start
        elif background:
            start = self.services.starts.known(options.content, options.shapes)
        try:
            if background and not (start is not None and start.planned) and self._opens():
                if shapes and start is None:  # else they were fine when that was found out
                    plans.network.check(shapes)
                log.info("%s: %s answers meanwhile", plans.name, plans.whole.get().runtime)
                self._behind(partial(self._begin_behind, shapes, start is not None))
            else:
                self.prepare(shapes)
        except OpenShapeError as error:
            if shapes:
                raise
            self._run_whole(error)
        except Exception as error:  # whatever befalls us, the application has its answers
            callers = isinstance(error, HopeError) and not isinstance(error, (ModelError, ExecutionError))
            if callers or plans.closed:
                raise
            self._run_whole(error)

    def _opens(self) -> bool:
        with suppress(ModelError):  # a plan may still run it, and says more where that fails as well
            self.plans.whole.get(at_once=True)
        return self.plans.whole.loaded is not None

    def prepare(self, shapes: Shapes | None = None) -> Prepared:
        """Make a plan ready for these input shapes, unless one is, and return it. Takes as long as measuring takes.

        It is made where plans are made behind the answers, after what is under way there; who stops waiting ends it.

        Raises InputError, OpenShapeError or UnplannableError for shapes of which no plan can be made, or whose plan
        would change an answer that has to stay; or what preparing a plan raises.
        """
        plans = self.plans
        if plans.forked:
            raise DeviceClosedError(FORKED)
        if not plans.planned:
            raise UnplannableError(f"'{plans.name}' runs as a whole: {'; '.join(plans.notes)}")
        if plans.read is not None and (prepared := self._ready(shapes)) is not None:
            return prepared
        self._first_answer.set()  # who waits here may be who would have run it first
        cancel = Cancel(self._cancel)
        making = self._worker.submit(partial(self._made, shapes), cancel)
        try:
            return making.result()
        except (NotWantedError, CancelledError) as error:
            raise DeviceClosedError(SESSION_CLOSED) from error
        finally:
            cancel.cancel()

    def _made(self, shapes: Shapes | None) -> Prepared:
        try:
            if (ready := self._ready(shapes)) is not None:
                return ready
            model = self._bound(shapes)
            self.plans.making_room(self.plans.key_for(model), pinned=self._pinned(model))  # else refused at once
            return self._kept(self._prepared(model))
        finally:
            self._over()

    def _ready(self, shapes: Shapes | None) -> Prepared | None:
        network = self.plans.network
        if shapes is None and network.is_open:
            return None
        return self.plans.ready_at(self.plans.key(shapes or {port.name: port.sizes for port in network.inputs}))

    @property
    def begun(self) -> bool:
        """Whether whoever is to answer at first does: the first preparation is over, whatever came of it."""
        return self._begun.is_set()

    def wait(self, timeout_s: float | None) -> bool:
        """Wait until ``begun``, for so long at most; whether it is. Raises DeviceClosedError once this is closed."""
        begun = self._begun.wait(timeout_s)
        if self._cancel.cancelled:
            raise DeviceClosedError(SESSION_CLOSED)
        return begun

    # The steps of one preparation

    def _bound(self, shapes: Shapes | None) -> Model:
        # What has but one set of shapes is never bound again, and keeps no second copy of its weights.
        network = self.plans.network
        return network.bind(shapes) if network.is_open else network.bound_in_place(shapes)

    def _pinned(self, model: Model) -> bool:
        return self._options.deterministic or rounding(model.graph).differs

    def _prepared(
        self, model: Model, own: Callable[[], Feed | None] = lambda: None, *, behind: bool = False
    ) -> Prepared:
        """Make a model of static shapes ready to run. Raises like ``Agent.load``.

        ``own`` gives what the application fed first, once there is such. ``behind`` takes the plan that is on disk, if
        any, and asks nobody, or else the first that the planner has.
        """
        options = self._options
        self.services.progress.phase("trying it in a child process")
        drawn = self._drawn(model, own)
        model = replace(model, taken=drawn.fixed)
        services = self.services.fit_for(model, drawn.tried)
        obtained = self._obtained(services, model, behind)
        opening = Opening(services, model, obtained, self.reference, drawn, options.all_rivals, options.in_flight)
        ready = opening.done(pinned=self._pinned(model))
        self.services.starts.keep(options.content, options.shapes, start_after(ready))
        return ready

    def _drawn(self, model: Model, own: Callable[[], Feed | None]) -> Drawn:
        """Feeds to try a model with. Raises UnplannableError where ONNX Runtime takes none that is drawn, or given."""
        feeds = feeds_of(model)
        drawn = self.services.first_runs.drawn(feeds, self._options.content, model.graph.model_hash)
        if drawn is not None:
            return drawn
        given = own()
        if given is None:
            raise UnplannableError("ONNX Runtime takes no inputs that are drawn, so no plan can be tried")
        return Drawn(feeds, own=dict(given))

    def _obtained(self, services: Services, model: Model, behind: bool) -> Obtained:
        """The plan that came with the network, is on disk, or the planner has."""
        if self._options.travelling is not None:
            refuse_other_network(self._options.travelling, model, model.name)
            return self._options.travelling.obtained()
        recalled = services.recall(model) if behind else None
        return recalled or services.obtain(model, at_once=behind)

    def _kept(self, prepared: Prepared) -> Prepared:
        """Take a prepared model in; the one used longest ago makes room where there are too many."""
        kept, gone = self.plans.keep(prepared)
        if kept is prepared:
            self._over()
            log.info("%s: ready: %s", self.plans.name, kept.said())
            for note in kept.notes:
                log.info("%s: %s", self.plans.name, note)
        for old in gone:
            self._demand.forget(old)
        return kept

    def _over(self) -> None:
        self.services.progress.done()
        self._begun.set()

    # Newer plans

    def refresh(self) -> bool:
        """Take up newer plans, where the planner has some; whether it has. Raises like ``Agent.refresh``."""
        taken_up = [self.renew(prepared) for prepared in self.plans.ready()]
        return any(taken_up)

    def renew(self, prepared: Prepared) -> bool:
        """Take up a newer plan, if the planner has one; whether it has. Raises like ``Agent.refresh``."""
        if prepared.pinned:  # the answer may not change
            return False
        with self._renewing, ExitStack() as ending:
            ending.callback(self.services.progress.done)
            if not self.plans.holds(prepared):
                if self.plans.closed:
                    raise DeviceClosedError(SESSION_CLOSED)
                return False  # another has taken its place, or other shapes have
            model, before = prepared.model, prepared.obtained.plan
            fit = self.services.fit_for(model, prepared.drawn.tried)
            # What rests on predictions is asked for anew, once a little more is measured.
            filled = before is not None and bool(before.filled)
            obtained = fit.obtain(model, renew=filled, known=prepared.obtained)
            if obtained.plan is None or (obtained.plan == before and PLAN in prepared.contenders):
                return False
            in_flight = prepared.executor.in_flight
            newer = Opening(fit, model, obtained, self.reference, prepared.drawn, in_flight=in_flight).done()
            if PLAN in newer.contenders:
                return self.plans.replace(prepared, newer)
            newer.close()
            kept = [note for note in prepared.notes if not note.startswith(NEWER_FAILS)]  # it may fail ever anew
            prepared.notes = [*kept, f"{NEWER_FAILS} ({newer.notes[-1]}); the one before it answers on"]
            return False

    # Behind the answers

    def _behind(self, work: Callable[[], None]) -> None:
        """Have work done that nobody waits for: what ends it is noted."""

        def noted() -> None:
            try:
                work()
            except NotWantedError:
                raise
            except BaseException as error:  # noqa: BLE001  the log has it
                if not self.plans.closed:
                    self.plans.note(f"what was being done behind the answers failed ({_words(error)})", error)
            finally:
                self._over()

        self._worker.submit(noted)

    def _begin_behind(self, shapes: Shapes | None, known: bool) -> None:
        """``known`` says that an earlier start has found out who is best."""
        self._first_answer.wait(FIRST_ANSWER_S)  # the caller has the machine to itself until then
        check()
        self._prepare_behind(shapes, again=known)

    def _answered(self, feed: Feed) -> None:
        """Take note of what the whole network answered: shapes that come again are worth a plan.

        What was fed first at these shapes is kept, copied: a plan is tried with it where nothing can be drawn.
        """
        plans = self.plans
        if plans.is_for_whole(feed):
            self._first_answer.set()
            return
        key = plans.key_of(feed)
        with self._lock:
            if (key or ()) not in self._fed and plans.planned and not plans.closed:
                own = {name: np.array(array) for name, given in feed.items() if (array := array_of(given)) is not None}
                if len(own) == len(feed):  # else no plan takes it
                    self._fed[key or ()] = own
                while len(self._fed) > KEPT:
                    self._fed.popitem(last=False)
        self._first_answer.set()
        network = plans.read
        every = network is not None and feed.keys() == {port.name for port in network.inputs}
        if key is not None and every and self._demand.used(key):
            self._behind(self._plan_next)

    def _own(self, shapes: Shapes | None) -> Feed | None:
        """What was fed first at these shapes, once something was."""
        with cancelling(self._first_answer.set):
            self._first_answer.wait()
        check()
        with self._lock:
            return self._fed.get(self.plans.key(shapes) if shapes and self.plans.network.is_open else ())

    def _plan_next(self) -> None:
        key = self._demand.chosen()
        if key is not None and self.plans.ready_at(key) is None:
            with self.services.budget.spending():
                names = (port.name for port in self.plans.network.inputs)
                self._prepare_behind(dict(zip(names, key, strict=True)))

    def _prepare_behind(self, shapes: Shapes | None, *, again: bool = True) -> None:
        """Make a plan for shapes that the whole network answers meanwhile; none where they are open.

        ``again`` says that nothing is to be found out for the next start.
        """
        plans = self.plans
        shown = (
            ", ".join(f"{name} {'x'.join(map(str, shape))}" for name, shape in (shapes or {}).items()) or "any input"
        )
        try:
            if not shapes and plans.network.is_open:
                return
            model = self._bound(shapes)
            check()
            runtime = plans.whole.get().runtime
            stays = f"{shown}: {runtime} goes on answering, because others would round differently"
            if self._pinned(model):
                plans.note(stays)
                if again:
                    return
            prepared = self._prepared(model, partial(self._own, shapes), behind=True)
            if prepared.pinned:
                prepared.close()
                plans.note(stays)
                return
            prepared = self._kept(prepared)
            log.info("%s: from now on at %s: %s", plans.name, shown, prepared.said())
            plans.switched()
            if not plans.network.is_open:
                plans.whole.let_go()
            if prepared.obtained.preliminary and self._options.travelling is None:
                self.renew(prepared)
        except NotWantedError:
            raise
        except Exception as error:  # noqa: BLE001  as in the foreground
            if plans.closed:
                return
            alone = plans.last is None and (plans.read is None or not plans.read.is_open)
            if alone and (isinstance(error, (ModelError, ProcessorError)) or not isinstance(error, HopeError)):
                self._run_whole(error)
            else:
                whole = plans.whole.loaded
                answers = f"{shown}: {whole.runtime if whole else 'nobody'} goes on answering"
                plans.note(f"{answers} ({_words(error)})", error)

    def _run_whole(self, why: Exception) -> None:
        """Have the whole network answer: from now on, or where only shapes are open, until there are plans.

        Raises ModelError where no runtime loads it either.
        """
        try:
            whole = self.plans.whole.get()
        except ModelError as error:
            if isinstance(why, ModelError) and not isinstance(why, UnplannableError):
                raise why from error  # it is no network at all, and what is wrong with it says that best
            if str(error) in str(why):  # nothing but the runtime's own refusal stood in the plan's way
                raise
            raise ModelError(f"{_words(why)}; nor does a runtime load it as a whole: {error}") from error
        if not isinstance(why, OpenShapeError):
            self.plans.planned = False
            runs = f"the whole network runs on {whole.runtime}, because nothing can be planned: {_words(why)}"
            self.plans.note(runs, why)
        self._over()

    def close(self) -> None:
        """Cancel what goes on behind, and free everything, after the runs that are under way. Idempotent."""
        self._cancel.cancel()  # before locks are waited for, which may be held by what this ends
        self._first_answer.set()
        self._begun.set()
        with ExitStack() as ending:
            if not self.plans.forked:
                ending.callback(self._worker.close)
            self.plans.close()


def _words(error: BaseException) -> str:
    """What is said of an error: its own words, and its class where it is none of ours."""
    return str(error) if isinstance(error, (HopeError, MemoryError)) else f"{type(error).__name__}: {error}"
