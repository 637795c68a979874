"""What trials on this device have shown of segments, of all its networks.

A launch, a slowdown and a spread are the device's and not one network's: whoever plans the next one of ops alike knows
them. They are read off plans that ran; what profiling times by itself, on warm caches and between rests, is less.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Final

from pydantic import Field

from agent_sdk.machine.soc import Soc
from agent_sdk.measure.truth import Sample, alike, fitted, op_sizes, overheads_with
from agent_sdk.records import Records
from hope_schema import Observations
from hope_schema.base import Contract, Digest, Frequency, Label
from hope_schema.hashing import digest

MAX_NETWORKS: Final = 16
"""Networks of which trials are kept, those tried last."""
MAX_SAMPLES: Final = 4096
"""Segments that are kept of one network."""


class Shown(Contract):
    """What the last trials of a network showed, and where."""

    model_hash: Digest
    soc: Label
    frequency: Frequency
    samples: Annotated[tuple[Sample, ...], Field(max_length=MAX_SAMPLES)]


class Trials:
    """Samples by network, in a directory; of this SoC at this frequency only."""

    def __init__(self, directory: Path, soc: Soc) -> None:
        self._records = Records(directory, Shown, MAX_NETWORKS)
        self._soc, self._frequency = soc.name, soc.frequency

    def keep(self, model_hash: str, samples: Iterable[Sample]) -> None:
        """Remember what a network's trials showed in place of earlier ones of it, if they showed anything."""
        if kept := tuple(samples)[-MAX_SAMPLES:]:
            shown = Shown(model_hash=model_hash, soc=self._soc, frequency=self._frequency, samples=kept)
            self._records.keep(digest([model_hash, self._soc, self._frequency])[:32], shown)

    def of_others(self, model_hash: str = "") -> list[Sample]:
        """What trials of all networks but this one showed."""
        here = [one for one in self._records.all() if (one.soc, one.frequency) == (self._soc, self._frequency)]
        return [sample for one in here if one.model_hash != model_hash for sample in one.samples]

    def instead(self, measured: Observations) -> Observations:
        """What profiling measured, with what trials of ops alike tell in place of what it timed by itself."""
        rows = zip(measured.latencies.kind, measured.latencies.us, strict=True)
        sizes = op_sizes((kind, us, us) for kind, us in rows if us is not None)
        told = fitted(alike(self.of_others(), sizes))
        return measured.model_copy(update={"overheads": overheads_with(measured.overheads, told)})
