"""A network's journey, step by step: read, drawn for, planned, opened, remembered for the next start.

``Agent.load`` begins it. ``Plans`` takes the steps, those from drawing on once for each set of shapes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

from agent_sdk.errors import ExecutionError, ModelError, UnplannableError
from agent_sdk.journey.opening import Opening
from agent_sdk.journey.planfile import TravellingPlan, unpack_plan
from agent_sdk.journey.prepared import Prepared
from agent_sdk.journey.reference import Reference
from agent_sdk.journey.rounding import rounding
from agent_sdk.journey.services import Services
from agent_sdk.journey.starts import Start, start_after
from agent_sdk.journey.trial import PLAN
from agent_sdk.model import Content, Model, Network, Shapes, read_network
from agent_sdk.model.feeds import Drawn, feeds_of
from agent_sdk.planner.supplier import Obtained
from agent_sdk.progress import Reporter
from agent_sdk.runtimes.ort.whole import WholeOrt

OwnFeed = Callable[[], Mapping[str, Any] | None]
"""What the application fed first, once there is such."""


def nothing() -> None:
    """The application has fed nothing yet."""
    return None


@dataclass(frozen=True)
class Journey:
    """One network on its way from a file to whoever answers.

    Attributes:
        services: what it is planned, tried and remembered with.
        content: the network as it was loaded.
        shown: what to call the network before it is read.
        given_name: its name, where it is not the one that the file gives.
        shapes: those that it was loaded with; None where none were given.
        deterministic: one answer for one input, to the bit, as long as the session lives.
        all_rivals: keep the whole model ready on every kind of processor.
        in_flight: runs that each contender has under way at once.
        travelling: the plan file that it was loaded with.
    """

    services: Services
    content: Content
    shown: str
    given_name: str | None
    shapes: Shapes | None = None
    deterministic: bool = False
    all_rivals: bool = False
    in_flight: int = 1
    travelling: TravellingPlan | None = None

    @property
    def progress(self) -> Reporter:
        """Is told of what is done for it."""
        return self.services.obtainer.progress

    @cached_property
    def reference(self) -> Reference:
        """What judges the answers."""
        return Reference(self.content, partial(self.services.first_runs.refuse_unjudged, self.content))

    def start(self) -> Start | None:
        """How an earlier start found that this one should begin."""
        if self.travelling is not None:
            return self.travelling.start
        return self.services.starts.known(self.content, self.shapes)

    def whole(self, *, at_once: bool) -> WholeOrt:
        """The whole network as the application would have it without us; ``at_once`` without trying it in a child.

        Raises ModelError where it is refused.

        NOTE: nobody else runs a file as it is: of one that no graph was made of, no table can say who means the same.
        """
        if not at_once:
            self.services.first_runs.refuse_unjudged(self.content)
        try:
            with self.content.opened() as given:
                here = self.services.obtainer
                return WholeOrt(given.file, len(here.soc.cores), here.device.held_by_whole, given.beside)
        except ExecutionError as error:
            raise ModelError(str(error)) from error

    def read(self) -> Network:
        """The network's graph. Raises ModelError where that is more than can be cut."""
        return read_network(self.content, name=self.given_name)

    def prepared(self, model: Model, own: OwnFeed = nothing, *, behind: bool = False) -> Prepared:
        """Make a model of static shapes ready to run. Raises like ``Agent.load``.

        ``own`` gives what the application fed first, once there is such. ``behind`` takes the plan that is on disk, if
        any, and asks nobody, or else the first that the planner has.
        """
        self.progress.phase("trying it in a child process")
        drawn = self._drawn(model, own)
        model = replace(model, taken=drawn.fixed)
        services = self.services.fit_for(model, drawn.tried)
        obtained = self._obtained(services, model, behind)
        pinned = self.deterministic or rounding(model.graph).differs
        opening = Opening(services, model, obtained, self.reference, drawn, self.all_rivals, self.in_flight)
        ready = opening.done(pinned=pinned)
        self.services.starts.keep(self.content, self.shapes, start_after(ready.serving))
        return ready

    def _drawn(self, model: Model, own: OwnFeed) -> Drawn:
        """Feeds to try a model with. Raises UnplannableError where ONNX Runtime takes none that is drawn, or given."""
        feeds = feeds_of(model)
        drawn = self.services.first_runs.drawn(feeds, self.content, model.graph.model_hash)
        if drawn is not None:
            return drawn
        given = own()
        if given is None:
            raise UnplannableError("ONNX Runtime takes no inputs that are drawn, so no plan can be tried")
        return Drawn(feeds, own=dict(given))

    def _obtained(self, services: Services, model: Model, behind: bool) -> Obtained:
        """The plan that came with the network, is on disk, or the planner has."""
        if self.travelling is not None:
            return unpack_plan(self.travelling, model)
        recalled = services.obtainer.recall(model) if behind else None
        return recalled or services.obtainer.obtain(model, at_once=behind)


def renewed(services: Services, prepared: Prepared) -> bool:
    """Take up a newer plan, if the planner has one; whether it has. Raises like ``Agent.refresh``."""
    if prepared.serving.pinned:  # the answer may not change
        return False
    with prepared.changing():
        model, drawn = prepared.model, prepared.drawn
        fit = services.fit_for(model, drawn.tried)
        before = prepared.obtained.plan
        # What rests on predictions is asked for anew, once a little more is measured.
        filled = before is not None and bool(before.filled)
        obtained = fit.obtainer.obtain(model, renew=filled, known=prepared.obtained)
        if obtained.plan is None or (obtained.plan == before and PLAN in prepared.serving.contenders):
            return False
        in_flight = prepared.executor.in_flight
        ready = Opening(fit, model, obtained, prepared.reference, drawn, in_flight=in_flight).done()
        if PLAN in ready.serving.contenders:
            prepared.take_up(ready)
            return True
        ready.serving.close()
        note = f"a newer plan cannot run here at present ({ready.notes[-1]}); the one before it answers on"
        prepared.notes += [note] if note not in prepared.notes else []
        return False
