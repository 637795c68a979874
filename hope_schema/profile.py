"""What a device measured (Observations) and what the planner made of it (Profile)."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from hope_schema.base import (
    MAX_ROWS,
    PRINTABLE,
    Column,
    Contract,
    Count,
    FigureMicroseconds,
    Frequency,
    Item,
    Label,
    Share,
)
from hope_schema.graph import DType, TensorType

HOST = "host"
"""The place in which graph inputs start and outputs must end: plain arrays in host memory."""

Precision = Literal["model", "tf32", "float16"]
"""What a processor computes in: the types that the model says, or fewer bits that the user allowed."""

Signature = Annotated[str, Field(min_length=1, max_length=160, pattern=PRINTABLE)]
Samples = Annotated[int, Field(ge=1, le=1_000_000_000)]


def kind_of(runtime: str, version: str, threads: int, core_class: str, precision: str = "model") -> str:
    """Return the kind of a processor, see ``Processor.kind``."""
    narrowed = "" if precision == "model" else f"+{precision}"
    return f"{runtime}-{version}{narrowed}/{threads}x{core_class}"


class Processor(Contract):
    """A runtime on a set of hardware resources.

    ``id`` names it on the device (``ort@0-1``). ``resources`` are what its ops take their share of: cores (``cpu0``),
    a GPU's multiprocessors; what runs at the same time never takes more of one than there is. ``core_class`` names the
    kind of core, so that equal cores are measured once. ``place`` is where it reads and leaves its tensors: a memory,
    and behind a slash the layout family within it (``host``, ``host/ort``, ``cuda:0``). ``host`` is the machine it
    belongs to: where that is not the device itself, id, resources and place carry its name (``edge1:host/ort``).
    """

    id: Label
    runtime: Label
    version: Label
    threads: Annotated[int, Field(ge=1, le=4096)]
    core_class: Label
    resources: Annotated[tuple[Label, ...], Field(min_length=1, max_length=256)]
    place: Label = HOST
    precision: Precision = "model"
    host: Label = HOST

    @model_validator(mode="after")
    def _names_its_host(self) -> Processor:
        if self.host != HOST:
            for label in (self.id, self.place, *self.resources):
                if not label.startswith(f"{self.host}:"):
                    raise ValueError(f"'{label}' belongs to host '{self.host}', so it reads '{self.host}:{label}'")
        return self

    @property
    def kind(self) -> str:
        """What latencies are keyed by: equal for processors that are measured once, e.g. two equal cores."""
        kind = kind_of(self.runtime, self.version, self.threads, self.core_class, self.precision)
        return kind if self.host == HOST else f"{self.host}:{kind}"

    @property
    def memory(self) -> str:
        """The memory that its place lies in; processors of one memory slow each other while they work."""
        return self.place.split("/", 1)[0]


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


TextColumn = Annotated[tuple[Item, ...], Field(max_length=MAX_ROWS), AfterValidator(_printable)]
SignatureColumn = TextColumn[
    Annotated[str, Field(min_length=1, max_length=160, json_schema_extra={"pattern": PRINTABLE})]
]
KindColumn = TextColumn[Annotated[str, Field(min_length=3, max_length=512, json_schema_extra={"pattern": PRINTABLE})]]
PlaceColumn = TextColumn[Annotated[str, Field(min_length=1, max_length=128, json_schema_extra={"pattern": PRINTABLE})]]


class _Columns(Contract):
    """Rows, as columns of equal lengths; ``share`` may be empty beside the others."""

    @model_validator(mode="after")
    def _are_equally_long(self) -> Self:
        if len({len(column) for name, column in self if column or name != "share"}) > 1:
            raise ValueError(f"{type(self).__name__.removesuffix('Columns').lower()} columns differ in length")
        return self


class LatencyColumns(_Columns):
    """Op latencies, one row per (signature, processor kind). Columns have equal lengths.

    ``us`` is the median in microseconds, ``spread_us`` the median absolute deviation, ``count`` the samples.
    A ``null`` in ``us`` says *unsupported*, explicitly: the op cannot run there. ``share`` is the part of each of the
    processor's resources that the op takes while it runs; empty: all of them, as on cores.
    Beside an op's own row stand those of its further recipes, other kernels for it, under ``superop.by_recipe``.
    """

    signature: SignatureColumn = ()
    kind: KindColumn = ()
    us: Column[FigureMicroseconds | None] = ()
    spread_us: Column[FigureMicroseconds] = ()
    count: Column[Samples] = ()
    share: Column[Share] = ()


class TransferColumns(_Columns):
    """Transfer costs, one row per (shape, dtype, source place, target place). Columns have equal lengths.

    ``us`` covers the move and the change of layout. A row from a place to itself is the price of handing a tensor
    from one processor there to another, where a runtime's segments have plain borders.
    """

    tensor: Column[TensorType] = ()
    source: PlaceColumn = ()
    target: PlaceColumn = ()
    us: Column[FigureMicroseconds] = ()
    spread_us: Column[FigureMicroseconds] = ()
    count: Column[Samples] = ()


class PartColumns(_Columns):
    """What parts of a super-op take that nobody measured: ``fixed + (1 - fixed) * share`` of the whole op's latency.

    ``axis`` is that of its output along which it is cut, ``share`` how much of that axis the part makes.
    """

    signature: Column[Label] = ()
    kind: Column[Kind] = ()
    axis: Column[Annotated[int, Field(ge=0, lt=8)]] = ()
    fixed: Column[Annotated[float, Field(ge=0.0, le=1.0, allow_inf_nan=False)]] = ()


class Channel(Contract):
    """The way from one place to another.

    ``busy`` names what carries the moves: a copy engine or a link, first in, first out, which other channels may
    share; null: the consumer's own time (HOPE eq. 1). A move costs its measured row, else
    ``fixed_us + us_per_byte * bytes``, else what a line through the measured rows says. Where it says
    ``float16_us_per_byte``, float32 may cross in half as many bytes for so much more per byte (`halves`).
    """

    source: Label
    target: Label
    busy: Label | None = None
    fixed_us: FigureMicroseconds | None = None
    us_per_byte: FigureMicroseconds | None = None
    float16_us_per_byte: FigureMicroseconds | None = None

    @model_validator(mode="after")
    def _is_a_way(self) -> Channel:
        if self.source == self.target:
            raise ValueError(f"a channel from '{self.source}' to itself")
        if (self.fixed_us is None) != (self.us_per_byte is None):
            raise ValueError("fixed_us and us_per_byte are given together, or neither")
        return self

    def halves(self, dtype: DType) -> bool:
        """Whether tensors of a type cross as float16: where that is allowed, and pays."""
        allowed, us = self.float16_us_per_byte, self.us_per_byte
        return dtype == "float32" and allowed is not None and us is not None and allowed < us / 2


Slowdown = Annotated[float, Field(ge=1.0, le=100.0, allow_inf_nan=False)]
"""How many times as long a kind takes while all of its neighbours are at work."""


Spread = Annotated[float, Field(ge=0.0, le=1.0, allow_inf_nan=False)]
"""Standard deviation of what an op takes in a plan from run to run, relative to what it is charged."""


PerKind = Annotated[
    dict[Kind, FigureMicroseconds], Field(max_length=1024, json_schema_extra={"additionalProperties": False})
]
"""A duration per kind of processor."""


class Overheads(Contract):
    """Fixed costs of a device's engine.

    ``launch_us``: what beginning a segment costs a kind of processor. ``end_us``: how long after its last op a
    segment's outputs are there for other lanes. ``slowdown``: see ``Slowdown``; what is not listed is not slowed.
    ``spread``: see ``Spread``; what is not listed takes in every run what it is charged.
    """

    launch_us: PerKind = {}
    end_us: PerKind = {}
    slowdown: Annotated[
        dict[Kind, Slowdown], Field(max_length=1024, json_schema_extra={"additionalProperties": False})
    ] = {}
    spread: Annotated[
        dict[Kind, Spread], Field(max_length=1024, json_schema_extra={"additionalProperties": False})
    ] = {}


class Measured(Contract):
    """The figures of a profile: shared by what a device uploads and what the planner keeps."""

    soc: Label
    frequency: Frequency
    processors: Annotated[tuple[Processor, ...], Field(max_length=1024)]
    channels: Annotated[tuple[Channel, ...], Field(max_length=1024)] = ()
    latencies: LatencyColumns = LatencyColumns()
    transfers: TransferColumns = TransferColumns()
    overheads: Overheads = Overheads()

    @property
    def hosts(self) -> tuple[str, ...]:
        """The memory of each host, in which its processors' inputs arrive and from which their outputs leave."""
        others = (one.host for one in self.processors if one.host != HOST)
        return (HOST, *(f"{host}:{HOST}" for host in dict.fromkeys(others)))

    @model_validator(mode="after")
    def _rows_belong_to_processors(self) -> Measured:
        ids = [processor.id for processor in self.processors]
        if len(set(ids)) != len(ids):
            raise ValueError("a processor id stands twice")
        kinds = {processor.kind for processor in self.processors}
        costs = self.overheads
        for kind in {*self.latencies.kind, *costs.launch_us, *costs.end_us, *costs.slowdown, *costs.spread}:
            if kind not in kinds:
                raise ValueError(f"figures for processor kind '{kind}', which no listed processor has")
        ways = [(channel.source, channel.target) for channel in self.channels]
        if len(set(ways)) != len(ways):
            raise ValueError("two channels lead from one place to the same other place")
        places = {*(processor.place for processor in self.processors), *self.hosts}
        moved = {*self.transfers.source, *self.transfers.target}
        for place in {*moved, *(place for way in ways for place in way)}:
            if place not in places:
                raise ValueError(f"transfers for place '{place}', which no listed processor computes in")
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
    yet, asked of devices (``POST /profiles/missing``), and filled by a stated rule or left out, which the plan says.
    ``predicted`` holds rows for what is absent, while a plan is made: ``spread_us`` is then the prediction's standard
    deviation.
    ``parts`` says what is predicted of parts, likewise.
    Where devices have tokens, what no two of them agree on is absent too if it is more than ten times what their agreed
    figures predict of it, or less than a tenth.
    """

    version: Count
    predicted: LatencyColumns = LatencyColumns()
    parts: PartColumns = PartColumns()
