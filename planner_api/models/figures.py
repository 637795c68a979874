"""Which figures a plan of a model rests on, whatever the device: signatures and the tensor types that may move."""

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Any

from pydantic import BaseModel

from hope_schema import HOST, ModelGraph, SuperOp, TensorType

Latency = tuple[str, str]
"""(signature, kind)"""
Transfer = tuple[str, tuple[int, ...], str, str]
"""(dtype, shape, source place, target place)"""


def figure_hash(key: tuple[Any, ...]) -> bytes:
    return hashlib.blake2b(repr(key).encode(), digest_size=8).digest()


class Figures(BaseModel):
    """What has to be known of a model: once per signature and kind, once per tensor type and pair of places."""

    signatures: tuple[str, ...]
    counts: tuple[int, ...] = ()
    """How often the model runs each; empty for several networks."""
    inputs: tuple[TensorType, ...]
    """Types that leave the host."""
    inner: tuple[TensorType, ...]
    """Types that may move between places."""
    outputs: tuple[TensorType, ...]
    """Types that end on the host."""
    parts: tuple[str, ...] = ()
    """Signatures of the ops that super-ops are merged of, as which these may run instead; asked of nobody."""

    def latencies(self, kinds: Sequence[str]) -> Iterator[Latency]:
        return ((signature, kind) for signature in self.signatures for kind in kinds)

    def count_transfers(self, places: Sequence[str]) -> int:
        """How many ``transfers`` there are, without listing any."""
        count = Counter(places)
        others = sum(place != HOST for place in count)
        facing = sum(number > 1 and place != HOST for place, number in count.items())
        ways = len(count) * (len(count) - 1) + facing
        return (len(self.inputs) + len(self.outputs)) * others + len(self.inner) * ways

    def transfers(self, places: Sequence[str]) -> Iterator[Transfer]:
        """Every (dtype, shape, source, target) between the places of some processors, one place per processor.

        A place in which several processors compute faces itself: one of them may hand a tensor to another.
        """
        count = Counter(places)
        others = [place for place in count if place != HOST]
        for tensor in self.inputs:
            for target in others:
                yield tensor.dtype, tensor.shape, HOST, target
        for tensor in self.inner:
            for source in count:
                for target in count:
                    if source != target or (count[source] > 1 and source != HOST):
                        yield tensor.dtype, tensor.shape, source, target
        for tensor in self.outputs:
            for source in others:
                yield tensor.dtype, tensor.shape, source, HOST


def figures_of(graph: ModelGraph, supers: Sequence[SuperOp]) -> Figures:
    graph_inputs = set(graph.inputs)
    read = dict.fromkeys(name for op in supers for name in op.inputs)
    counts = Counter(op.signature for op in supers)
    return Figures(
        signatures=tuple(counts),
        counts=tuple(counts.values()),
        inputs=_types(graph, (name for name in read if name in graph_inputs)),
        inner=_types(graph, (name for name in read if name not in graph_inputs)),
        outputs=_types(graph, graph.outputs),
        parts=tuple(
            dict.fromkeys(SuperOp(graph, (op,)).signature for one in supers if len(one.ops) > 1 for op in one.ops)
        ),
    )


def union(figures: Iterable[Figures]) -> Figures:
    """What any of some networks rests on."""
    each = list(figures)

    def joined(name: str) -> dict[Any, None]:
        return dict.fromkeys(chain.from_iterable(getattr(one, name) for one in each))

    return Figures(**{name: tuple(joined(name)) for name in ("signatures", "inputs", "inner", "outputs", "parts")})


def _types(graph: ModelGraph, names: Iterable[str]) -> tuple[TensorType, ...]:
    return tuple(dict.fromkeys(graph.tensor[name].type for name in names))
