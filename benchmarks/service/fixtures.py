"""Made-up models, SoCs and uploads of realistic size; nothing of them comes from anybody's device."""

from __future__ import annotations

import random

import zstandard
from pydantic import BaseModel

from hope_schema import (
    HOST,
    Job,
    LatencyColumns,
    ModelGraph,
    Observations,
    Op,
    PlanRequest,
    Processor,
    Tensor,
    TensorType,
    TransferColumns,
    merge,
)
from hope_schema.graph import AttributeValue

FREQUENCY = "max"


def processors(count: int = 2) -> tuple[Processor, ...]:
    """Processors of different kinds, each on a resource of its own."""
    return tuple(
        Processor(
            id=f"ort@{i}",
            runtime="ort",
            version="1",
            threads=1,
            core_class=f"class{i}",
            resources=(f"cpu{i}",),
            place=f"host/{i}",
        )
        for i in range(count)
    )


def ladder(ops: int, name: str, *, salt: int = 0) -> ModelGraph:
    """A network of two branches that meet every few ops; every op has a signature of its own per ``salt``."""
    tensors = [Tensor(name="input", shape=(1, 8, 8, 8), dtype="float32")]
    found: list[Op] = []
    left = right = "input"
    names = random.Random(name)
    for i in range(ops):
        # As long and as little repetitive as the names that exporters write.
        output = f"{name}/block_{i // 5}/branch_{i % 5}/{names.getrandbits(32):08x}/Relu:0"
        tensors.append(Tensor(name=output, shape=(1, 8 + i % 16, 8, 8), dtype="float32"))
        attributes: dict[str, AttributeValue] = {"group": i + 1, "pads": salt}
        if i % 5 == 4:
            found.append(Op(type="Concat", attributes=attributes, inputs=(left, right), outputs=(output,)))
            left = right = output
        elif i % 2:
            found.append(Op(type="Conv", attributes=attributes, inputs=(left,), outputs=(output,)))
            left = output
        else:
            found.append(Op(type="Conv", attributes=attributes, inputs=(right,), outputs=(output,)))
            right = output
    outputs = (left,) if left == right else (left, right)
    return ModelGraph(name=name, tensors=tuple(tensors), ops=tuple(found), inputs=("input",), outputs=outputs)


def upload(
    graphs: list[ModelGraph],
    soc: str,
    *,
    device: str,
    number: int = 0,
    seed: int = 0,
    spread: float = 0.0,
    factor: float = 1.0,
    rows: int | None = None,
    count: int = 2,
) -> Observations:
    """Everything the graphs need on a SoC, measured by one device.

    Args:
        graphs: what is measured.
        soc: on which SoC.
        device: by whom.
        number: which upload of the device.
        seed: of the true figures (the same for all devices).
        spread: standard deviation of this device's own relative error.
        factor: what a lying device multiplies every figure with.
        rows: cut or fill the latency rows up to this many.
        count: processors.
    """
    truth, noise = random.Random(seed), random.Random(f"{device}/{number}")
    kinds = [processor.kind for processor in processors(count)]

    def figure(low: float, high: float) -> float:
        return truth.uniform(low, high) * factor * max(0.05, 1.0 + noise.gauss(0.0, spread))

    signatures = sorted({op.signature for graph in graphs for op in merge(graph)})
    if rows is not None:
        signatures = [*signatures, *(f"Made@{i}" for i in range(rows))][: rows // len(kinds)]
    types = sorted({tensor.type for graph in graphs for tensor in graph.tensors}, key=str)
    places = [HOST, *(processor.place for processor in processors(count))]
    moves = [(tensor, a, b) for tensor in types for a in places for b in places if a != b]
    latencies = [(signature, kind, figure(20.0, 400.0)) for signature in signatures for kind in kinds]
    transfers = [(tensor, a, b, figure(2.0, 30.0)) for tensor, a, b in moves]
    return Observations(
        soc=soc,
        frequency=FREQUENCY,
        device_id=device,
        upload_id=f"u{number}",
        processors=processors(count),
        latencies=LatencyColumns(
            signature=tuple(row[0] for row in latencies),
            kind=tuple(row[1] for row in latencies),
            us=tuple(row[2] for row in latencies),
            spread_us=(0.5,) * len(latencies),
            count=(10,) * len(latencies),
        ),
        transfers=TransferColumns(
            tensor=tuple(TensorType(shape=row[0].shape, dtype=row[0].dtype) for row in transfers),
            source=tuple(row[1] for row in transfers),
            target=tuple(row[2] for row in transfers),
            us=tuple(row[3] for row in transfers),
            spread_us=(0.1,) * len(transfers),
            count=(10,) * len(transfers),
        ),
    )


def key(graph: ModelGraph, soc: str, chosen: tuple[str, ...] | None = None) -> bytes:
    """The body of ``POST /plans``."""
    request = PlanRequest(jobs=(Job(model_hash=graph.model_hash),), soc=soc, frequency=FREQUENCY, processors=chosen)
    return request.model_dump_json(exclude_none=True).encode()


def compressed(message: BaseModel) -> bytes:
    """A message as zstd-compressed JSON."""
    return zstandard.ZstdCompressor(level=3).compress(message.model_dump_json().encode())
