"""Small ModelGraphs and Profiles for tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hope_schema import (
    HOST,
    Channel,
    LatencyColumns,
    ModelGraph,
    Op,
    Overheads,
    Processor,
    Profile,
    Tensor,
    TensorType,
    TransferColumns,
    merge,
)

CPU = Processor(
    id="cpu", runtime="ort", version="1", threads=1, core_class="big", resources=("cpu0",), place="host/cpu"
)
GPU = Processor(id="gpu", runtime="ocl", version="1", threads=1, core_class="gpu", resources=("gpu0",), place="gpu")
SHAPE = (1, 8, 16, 16)
FREE_HOST = tuple(
    Channel(source=source, target=target, fixed_us=0.0, us_per_byte=0.0)
    for source, target in (("gpu", HOST), (HOST, "gpu"))
)


def network(edges: Mapping[str, Sequence[str]], kinds: Mapping[str, str] | None = None) -> ModelGraph:
    """A graph of ops named by their output, each reading the tensors listed; ``x`` is the input.

    Every op has an attribute of its own, so that no two share a signature. Tensors nobody reads are outputs.
    """
    read = {name for inputs in edges.values() for name in inputs}
    ops = tuple(
        Op(type=(kinds or {}).get(name, "Conv"), attributes={"id": index}, inputs=tuple(inputs), outputs=(name,))
        for index, (name, inputs) in enumerate(edges.items())
    )
    return ModelGraph(
        name="net",
        tensors=tuple(Tensor(name=name, shape=SHAPE, dtype="float32") for name in ("x", *edges)),
        ops=ops,
        inputs=("x",),
        outputs=tuple(name for name in edges if name not in read),
    )


DIAMOND = {"a": ["x"], "b": ["a"], "c": ["a"], "d": ["b", "c"]}


def profile(
    graph: ModelGraph,
    latency: Mapping[str, Mapping[str, float | None]],
    moves: Sequence[tuple[str, str, tuple[int, ...], float]] = (),
    processors: Sequence[Processor] = (CPU, GPU),
    overheads: Overheads | None = None,
    channels: Sequence[Channel] = FREE_HOST,
) -> Profile:
    """A profile: latency per processor id and op id (None: unsupported, no key: absent), transfers as rows.

    A transfer row is (source id, target id, shape, microseconds); ``host`` may stand for an id.
    """
    kind = {processor.id: processor.kind for processor in processors}
    place = {processor.id: processor.place for processor in processors} | {HOST: HOST}
    signature = {op.id: op.signature for op in merge(graph)}
    rows = [(signature[op], kind[name], us) for name, row in latency.items() for op, us in row.items()]
    return Profile(
        soc="soc",
        frequency="top",
        processors=tuple(processors),
        channels=tuple(way for way in channels if {way.source, way.target} <= set(place.values())),
        latencies=LatencyColumns(
            signature=tuple(row[0] for row in rows),
            kind=tuple(row[1] for row in rows),
            us=tuple(row[2] for row in rows),
            spread_us=(0.0,) * len(rows),
            count=(1,) * len(rows),
        ),
        transfers=TransferColumns(
            tensor=tuple(TensorType(shape=shape, dtype="float32") for _, _, shape, _ in moves),
            source=tuple(place[source] for source, _, _, _ in moves),
            target=tuple(place[target] for _, target, _, _ in moves),
            us=tuple(us for _, _, _, us in moves),
            spread_us=(0.0,) * len(moves),
            count=(1,) * len(moves),
        ),
        overheads=overheads or Overheads(),
        version=7,
    )


BOTH_WAYS = (("cpu", "gpu", SHAPE, 10.0), ("gpu", "cpu", SHAPE, 4.0))
FIGURES: dict[str, dict[str, float | None]] = {
    "cpu": {"a": 40.0, "b": 60.0, "c": 60.0, "d": 20.0},
    "gpu": {"a": 50.0, "b": 30.0, "c": 30.0, "d": 90.0},
}
