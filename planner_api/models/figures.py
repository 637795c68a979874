"""Which figures a plan of a model rests on, whatever the device: signatures and the tensor types that may move."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from pydantic import BaseModel

from hope_schema import HOST, ModelGraph, SuperOp, TensorType, merge

Latency = tuple[str, str]
"""(signature, kind)"""
Transfer = tuple[str, tuple[int, ...], str, str]
"""(dtype, shape, source kind, target kind)"""


class Figures(BaseModel):
    """What has to be known of a model: once per signature and kind, once per tensor type and pair of kinds."""

    signatures: tuple[str, ...]
    inputs: tuple[TensorType, ...]
    """Types that leave the host."""
    inner: tuple[TensorType, ...]
    """Types that may move between processors."""
    outputs: tuple[TensorType, ...]
    """Types that end on the host."""

    def latencies(self, kinds: Sequence[str]) -> Iterator[Latency]:
        """Every (signature, kind), signature by signature."""
        return ((signature, kind) for signature in self.signatures for kind in kinds)

    def transfers(self, kinds: Sequence[str], repeated: Iterable[str]) -> Iterator[Transfer]:
        """Every (dtype, shape, source, target); ``repeated`` kinds have several processors, so they face themselves."""
        twins = set(repeated)
        for tensor in self.inputs:
            for target in kinds:
                yield tensor.dtype, tensor.shape, HOST, target
        for tensor in self.inner:
            for source in kinds:
                for target in kinds:
                    if source != target or source in twins:
                        yield tensor.dtype, tensor.shape, source, target
        for tensor in self.outputs:
            for source in kinds:
                yield tensor.dtype, tensor.shape, source, HOST


def figures_of(graph: ModelGraph, supers: Sequence[SuperOp] | None = None) -> Figures:
    """Work out the figures of a graph; ``supers`` are its super-ops when they are at hand."""
    supers = merge(graph) if supers is None else supers
    graph_inputs = set(graph.inputs)
    read = dict.fromkeys(name for op in supers for name in op.inputs)
    return Figures(
        signatures=tuple(dict.fromkeys(op.signature for op in supers)),
        inputs=_types(graph, (name for name in read if name in graph_inputs)),
        inner=_types(graph, (name for name in read if name not in graph_inputs)),
        outputs=_types(graph, graph.outputs),
    )


def _types(graph: ModelGraph, names: Iterable[str]) -> tuple[TensorType, ...]:
    return tuple(dict.fromkeys(graph.tensor[name].type for name in names))
