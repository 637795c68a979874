"""What the networks of one agent share, in one record."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from agent_sdk.cancel import Cancel
from agent_sdk.errors import ProcessorError
from agent_sdk.first.children import Children
from agent_sdk.first.runs import FirstRuns, told
from agent_sdk.journey.demand import Budget, cpu_s
from agent_sdk.journey.planning import Obtainer
from agent_sdk.journey.starts import Starts
from agent_sdk.model import Model
from agent_sdk.model.weights import LightModels
from agent_sdk.planner.field import Field
from agent_sdk.progress import Reporter
from agent_sdk.runtimes.base import Processor


@dataclass(frozen=True)
class Services:
    """What a network is planned, tried and remembered with.

    Attributes:
        obtainer: where plans come from, and who hears what they really took.
        processors: those of the device's processors that may run the network at hand, by id.
        first_runs: where whatever is new runs first.
        starts: how the next start of a network begins.
        field: hears how plans do; None where there is nobody to tell.
        cancel: ends everything when the agent is closed.
        budget: what plans of further shapes may cost.
    """

    obtainer: Obtainer
    processors: Mapping[str, Processor]
    first_runs: FirstRuns
    starts: Starts
    field: Field | None
    cancel: Cancel
    budget: Budget

    @classmethod
    def opened(cls, obtainer: Obtainer, directory: Path, lights: LightModels, children: Children) -> Services:
        """Those of one agent, which keep what they find out in ``directory``."""
        own = obtainer.device.processors
        return cls(
            obtainer=obtainer,
            processors=own,
            first_runs=FirstRuns(directory / "first_runs", own, lights, children),
            starts=Starts(directory / "starts", [processor.spec.kind for processor in own.values()]),
            field=None if obtainer.embedded is not None else Field(obtainer.tell),
            cancel=Cancel(),
            budget=Budget(lambda: cpu_s() + children.cpu_s()),
        )

    def end(self) -> None:
        """The agent is closed: nobody waits any more, and nothing is told. Idempotent."""
        self.cancel.cancel()
        self.first_runs.children.close()
        if self.field is not None:
            self.field.stop()

    def reporting(self, progress: Reporter) -> Services:
        """These, telling what they do by ``progress``."""
        return replace(self, obtainer=replace(self.obtainer, progress=progress))

    def fit_for(self, model: Model, feeds: Sequence[Mapping[str, Any]] = ()) -> Services:
        """These without the runtimes that crash at a model, or at a run of it on these feeds.

        Raises ProcessorError where none is left to plan with.
        """
        crashed = self.first_runs.at_model(model, feeds)
        if not crashed:
            return self
        notes, obtainer = told(crashed), self.obtainer
        processors = {name: own for name, own in self.processors.items() if own.compiler not in crashed}
        planned = tuple(spec for spec in obtainer.planned if spec.id in processors)
        if not planned:
            raise ProcessorError("; ".join(notes))
        obtainer = replace(obtainer, planned=planned, notes=(*obtainer.notes, *notes))
        return replace(self, obtainer=obtainer, processors=processors)
