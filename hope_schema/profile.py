"""What a device measured (Observations) and what the planner made of it (Profile)."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from hope_schema.base import MAX_ROWS, PRINTABLE, Contract, Label, Microseconds
from hope_schema.graph import TensorType

HOST = "host"
"""The side on which graph inputs start and outputs must end."""

Signature = Annotated[str, Field(min_length=1, max_length=160, pattern=PRINTABLE)]
Count = Annotated[int, Field(ge=1, le=1_000_000_000)]


def kind_of(runtime: str, version: str, threads: int, core_class: str) -> str:
    """Return the kind of a processor, see ``Processor.kind``."""
    return f"{runtime}-{version}/{threads}x{core_class}"


class Processor(Contract):
    """What runs one op at a time: a runtime on a set of hardware resources.

    ``id`` names it on the device (``ort@0-1``). ``resources`` are the cores or accelerators it occupies
    (``cpu0``); processors that share one never run at the same time. ``core_class`` names the kind of core,
    so that equal cores are measured once. ``host`` is the machine it belongs to.
    """

    id: Label
    runtime: Label
    version: Label
    threads: Annotated[int, Field(ge=1, le=4096)]
    core_class: Label
    resources: Annotated[tuple[Label, ...], Field(min_length=1, max_length=256)]
    host: Label = HOST

    @property
    def kind(self) -> str:
        """What latencies are keyed by: equal for processors that are measured once, e.g. two equal cores."""
        return kind_of(self.runtime, self.version, self.threads, self.core_class)


Kind = Annotated[str, Field(min_length=3, max_length=512, pattern=PRINTABLE)]
"""A ``Processor.kind``."""


_CONTROL = bytes([*range(0x20), 0x7F])


def _printable(column: tuple[str, ...]) -> tuple[str, ...]:
    """Refuse control characters in a whole column at once: a pattern per item would double what an upload costs."""
    text = "".join(column).encode()
    if len(text.translate(None, _CONTROL)) != len(text):
        at = next(row for row, item in enumerate(column) if item.encode().translate(None, _CONTROL) != item.encode())
        raise ValueError(f"row {at} holds a control character")
    return column


SignatureColumn = Annotated[
    tuple[Annotated[str, Field(min_length=1, max_length=160, json_schema_extra={"pattern": PRINTABLE})], ...],
    Field(max_length=MAX_ROWS),
    AfterValidator(_printable),
]
"""Signatures, one per row."""
KindColumn = Annotated[
    tuple[Annotated[str, Field(min_length=3, max_length=512, json_schema_extra={"pattern": PRINTABLE})], ...],
    Field(max_length=MAX_ROWS),
    AfterValidator(_printable),
]
"""Kinds of processor, one per row."""


class LatencyColumns(Contract):
    """Op latencies, one row per (signature, processor kind). Columns have equal lengths.

    ``us`` is the median in microseconds, ``spread_us`` the median absolute deviation, ``count`` the samples.
    A ``null`` in ``us`` says *unsupported*, explicitly: the op cannot run there.
    """

    signature: SignatureColumn = ()
    kind: KindColumn = ()
    us: Annotated[tuple[Microseconds | None, ...], Field(max_length=MAX_ROWS)] = ()
    spread_us: Annotated[tuple[Microseconds, ...], Field(max_length=MAX_ROWS)] = ()
    count: Annotated[tuple[Count, ...], Field(max_length=MAX_ROWS)] = ()

    @model_validator(mode="after")
    def _columns_are_equally_long(self) -> LatencyColumns:
        lengths = {len(getattr(self, name)) for name in type(self).model_fields}
        if len(lengths) > 1:
            raise ValueError("latency columns differ in length")
        return self


class TransferColumns(Contract):
    """Transfer costs, one row per (shape, dtype, source kind, target kind). Columns have equal lengths.

    ``source`` or ``target`` may be ``host``. ``us`` covers the move and the change of layout.
    """

    tensor: Annotated[tuple[TensorType, ...], Field(max_length=MAX_ROWS)] = ()
    source: KindColumn = ()
    target: KindColumn = ()
    us: Annotated[tuple[Microseconds, ...], Field(max_length=MAX_ROWS)] = ()
    spread_us: Annotated[tuple[Microseconds, ...], Field(max_length=MAX_ROWS)] = ()
    count: Annotated[tuple[Count, ...], Field(max_length=MAX_ROWS)] = ()

    @model_validator(mode="after")
    def _columns_are_equally_long(self) -> TransferColumns:
        lengths = {len(getattr(self, name)) for name in type(self).model_fields}
        if len(lengths) > 1:
            raise ValueError("transfer columns differ in length")
        return self


class Overheads(Contract):
    """Fixed costs of a device's engine: a segment's launch per processor kind, a hand-over between threads."""

    launch_us: Annotated[
        dict[Kind, Microseconds], Field(max_length=1024, json_schema_extra={"additionalProperties": False})
    ] = {}
    handover_us: Microseconds = 0.0


class Measured(Contract):
    """The figures of a profile: shared by what a device uploads and what the planner keeps."""

    soc: Label
    frequency: Label
    processors: Annotated[tuple[Processor, ...], Field(max_length=1024)]
    latencies: LatencyColumns = LatencyColumns()
    transfers: TransferColumns = TransferColumns()
    overheads: Overheads = Overheads()

    @model_validator(mode="after")
    def _rows_belong_to_processors(self) -> Measured:
        ids = [processor.id for processor in self.processors]
        if len(set(ids)) != len(ids):
            raise ValueError("a processor id stands twice")
        kinds = {processor.kind for processor in self.processors}
        for kind in {*self.latencies.kind, *self.overheads.launch_us}:
            if kind not in kinds:
                raise ValueError(f"figures for processor kind '{kind}', which no listed processor has")
        for kind in {*self.transfers.source, *self.transfers.target}:
            if kind != HOST and kind not in kinds:
                raise ValueError(f"transfers for processor kind '{kind}', which no listed processor has")
        return self


class Observations(Measured):
    """One upload of one device, columnar. Sending it twice (same device, same upload id) counts once.

    ``origin`` tells a profiling run from times measured while plans were executed.
    """

    device_id: Label
    upload_id: Label
    origin: Literal["profiler", "execution"] = "profiler"


class Profile(Measured):
    """What the planner knows of one SoC at one frequency, folded from many observations.

    A row that is present with ``us = null`` is *unsupported*; a row that is missing is *absent*: not measured
    yet, asked of devices (``POST /profiles/missing``) or filled by a stated rule and flagged in the plan.
    """

    version: Annotated[int, Field(ge=0)]
