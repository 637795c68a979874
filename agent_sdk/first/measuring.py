"""Measuring in a child: an op that ends the process that runs it is none that this processor supports."""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from agent_sdk.errors import OutOfMemory, ProcessorLost
from agent_sdk.first.bench import Measure, measure, write_model
from agent_sdk.first.children import LIMIT_S, Children, CrashedError, Steps
from agent_sdk.machine.columns import latency_columns
from agent_sdk.machine.soc import Soc
from agent_sdk.model import Model
from agent_sdk.model.weights import LightModels
from agent_sdk.runtimes.base import Processor
from hope_schema import LatencyColumns, Missing, MissingLatency, Observations

MAX_CRASHES: Final = 8
"""Ops that may end a child before measuring is given up."""

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Measuring:
    """Measures what is missing of a model.

    Attributes:
        lights: where models are written for a child to read.
    """

    children: Children
    lights: LightModels
    soc: Soc
    device_id: str

    def measured(
        self,
        model: Model,
        processors: Mapping[str, Processor],
        missing: Missing,
        budget_s: float,
        progress: Callable[[str], None],
    ) -> Observations:
        """What could be measured in so many seconds; ops that crash are unsupported.

        Processors that compile nothing are measured here: they raise where others crash. Raises ProcessorLost where
        something else ends a child, or measuring fails; DeviceClosedError; and what ``progress`` raises.
        """
        until = time.monotonic() + budget_s
        crashed: list[MissingLatency] = []
        while True:
            left_s = max(0.0, until - time.monotonic())
            try:
                found = self._once(model, processors, missing, left_s, progress)
                return _with_unsupported(found, crashed)
            except CrashedError as error:
                row = _begun(error.step, processors, missing)
                if row is None or len(crashed) == MAX_CRASHES:
                    begun = f" at '{error.step}'" if error.step else ""
                    raise ProcessorLost(f"measuring ended a child{begun}: {error.how}") from error
                log.info("unsupported: %s: %s", error.step, error.how)
                crashed.append(row)
                rows = tuple(other for other in missing.latencies if other != row)
                missing = missing.model_copy(update={"latencies": rows})

    def refused(self, model: Model, processors: Mapping[str, Processor], missing: Missing) -> Observations:
        """Figures that no table takes, as unsupported: nothing runs."""
        found = measure(self._request(processors, missing, 0.0), model, processors).observations
        assert found is not None
        return found

    def _request(self, processors: Mapping[str, Processor], missing: Missing, budget_s: float) -> Measure:
        return Measure(
            processors=tuple(processors),
            missing=missing,
            soc=self.soc.name,
            frequency=self.soc.frequency,
            device_id=self.device_id,
            budget_s=budget_s,
        )

    def _once(
        self,
        model: Model,
        processors: Mapping[str, Processor],
        missing: Missing,
        budget_s: float,
        progress: Callable[[str], None],
    ) -> Observations:
        request, reply = self._request(processors, missing, budget_s), None
        if any(processor.compiler is not None for processor in processors.values()):
            try:
                light, folder = self.lights.get(model)
                write_model(model, light, folder)
            except (OutOfMemory, OSError) as error:
                raise ProcessorLost(f"nothing is measured, because the model cannot be written: {error}") from error
            asked = request.model_copy(update={"model": str(folder)})
            reply = self.children.ask(asked, step=progress, limit_s=budget_s + LIMIT_S)
        if reply is None:
            with Steps(self.children.held) as steps:

                def begin(what: str) -> None:
                    progress(what)
                    steps.begin()

                reply = measure(request, model, processors, begin)
        if reply.observations is None:
            raise ProcessorLost(f"measuring failed: {reply.failure}")
        return reply.observations


def _begun(step: str, processors: Mapping[str, Processor], missing: Missing) -> MissingLatency | None:
    """The op that was begun; None where it was something else."""
    ids = {(processor.spec.kind, name) for name, processor in processors.items()}
    asked = ((row, name) for row in missing.latencies for kind, name in ids if kind == row.kind)
    return next((row for row, name in asked if step == f"{row.signature} on {name}"), None)


def _with_unsupported(found: Observations, rows: Sequence[MissingLatency]) -> Observations:
    if not rows:
        return found
    own, more = found.latencies, latency_columns({(row.signature, row.kind): None for row in rows})
    columns = {name: (*getattr(own, name), *getattr(more, name)) for name in LatencyColumns.model_fields}
    if own.share:
        columns["share"] = (*own.share, *(1.0 for _ in rows))
    return found.model_copy(update={"latencies": LatencyColumns(**columns)})
