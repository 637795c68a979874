"""The scheduling problem as validated plain data: what every solver reads and nothing else."""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import networkx as nx
import numpy as np
from numpy.typing import NDArray

TransferMode = Literal["blocking", "overlap"]
FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]


class PlanningError(ValueError):
    """A problem that cannot be planned; the message names the op or the tensor and the reason."""


@dataclass(frozen=True)
class Lists:
    """A problem as nested Python lists: scalar indexing into arrays is what makes pure Python schedulers slow.

    Attributes:
        latency: [op][processor] microseconds, ``inf`` for unsupported.
        transfer: [tensor][source][target] microseconds; the host is the last row and column.
        producer: [tensor] op, or -1 for a graph input.
        reads: [op] tensors it reads.
        writes: [op] tensors it writes, ascending.
        readers: [tensor] ops that read it, ascending.
        outputs: tensors that must end on the host, ascending.
        before: [op] its direct predecessors, each once, ascending.
        after: [op] its direct successors, each once, ascending.
        rivals: [processor] processors that never run beside it, itself included.
        order: the ops in a topological order that depends on nothing but the graph (smallest index first).
    """

    latency: list[list[float]]
    transfer: list[list[list[float]]]
    producer: list[int]
    reads: list[list[int]]
    writes: list[list[int]]
    readers: list[list[int]]
    outputs: list[int]
    before: list[list[int]]
    after: list[list[int]]
    rivals: list[list[int]]
    order: list[int]


@dataclass(frozen=True, eq=False)
class Problem:
    """n super-ops, P processors, T tensors. Times in microseconds.

    Arrays are read-only. The host is row and column P of ``transfer_us``.

    Attributes:
        ops: n names.
        processors: P names.
        latency_us: (n, P); ``inf`` says that the processor does not support the op.
        conflicts: (P, P) symmetric; True where two processors share a resource (the diagonal is True).
        producer: (T,) op that writes each tensor; -1 for a graph input, which starts on the host.
        reads: for each op the tensors it reads, each once, in input order.
        is_output: (T,) True for tensors that must end on the host.
        transfer_us: (T, P + 1, P + 1) cost from source to target; ``inf`` where no move exists. The diagonal is 0.
        mode: ``blocking`` (HOPE eq. 1) or ``overlap``.
        tensors: T names.
        filled: sentences on figures that were missing and filled by rule.

    Raises:
        PlanningError: for an empty graph, a cycle, an op that nobody supports, NaN, negative or misshapen figures.
    """

    ops: tuple[str, ...]
    processors: tuple[str, ...]
    latency_us: FloatArray
    conflicts: BoolArray
    producer: IntArray
    reads: tuple[tuple[int, ...], ...]
    is_output: BoolArray
    transfer_us: FloatArray
    mode: TransferMode
    tensors: tuple[str, ...]
    filled: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        n, p, t = len(self.ops), len(self.processors), len(self.tensors)
        if n == 0:
            raise PlanningError("the graph has no ops")
        if p == 0:
            raise PlanningError("there is no processor to plan for")
        shapes = {
            "latency_us": (self.latency_us, (n, p)),
            "conflicts": (self.conflicts, (p, p)),
            "producer": (self.producer, (t,)),
            "is_output": (self.is_output, (t,)),
            "transfer_us": (self.transfer_us, (t, p + 1, p + 1)),
        }
        for name, (array, shape) in shapes.items():
            if array.shape != shape:
                raise PlanningError(f"{name} has shape {array.shape}, expected {shape}")
            array.setflags(write=False)
        if len(self.reads) != n:
            raise PlanningError(f"reads lists {len(self.reads)} ops, expected {n}")
        self._check_figures()
        self._check_graph()

    def _check_figures(self) -> None:
        bad = ~(self.latency_us >= 0)
        if bad.any():
            op, processor = (int(i) for i in np.argwhere(bad)[0])
            raise PlanningError(
                f"latency of op '{self.ops[op]}' on '{self.processors[processor]}' is {self.latency_us[op, processor]}"
            )
        nowhere = ~np.isfinite(self.latency_us).any(axis=1)
        if nowhere.any():
            raise PlanningError(f"no processor supports op '{self.ops[int(np.argmax(nowhere))]}'")
        bad = ~(self.transfer_us >= 0)
        if bad.any():
            tensor, source, target = (int(i) for i in np.argwhere(bad)[0])
            places = (*self.processors, "host")
            raise PlanningError(
                f"transfer of tensor '{self.tensors[tensor]}' from '{places[source]}' to '{places[target]}' "
                f"is {self.transfer_us[tensor, source, target]}"
            )
        if (np.einsum("tpp->tp", self.transfer_us) != 0).any():
            raise PlanningError("a transfer from a processor to itself must cost nothing")
        if not (np.diagonal(self.conflicts).all() and (self.conflicts == self.conflicts.T).all()):
            raise PlanningError("conflicts must be symmetric with a true diagonal")

    def _check_graph(self) -> None:
        t, n = len(self.tensors), len(self.ops)
        if t and (self.producer.min() < -1 or self.producer.max() >= n):
            raise PlanningError("a tensor is produced by an op that does not exist")
        for op, tensors in enumerate(self.reads):
            if len(set(tensors)) != len(tensors) or any(not 0 <= tensor < t for tensor in tensors):
                raise PlanningError(f"op '{self.ops[op]}' reads a tensor twice or one that does not exist")
        if len(self.lists.order) < n:
            cycle = nx.find_cycle(self.graph)
            raise PlanningError(f"the graph has a cycle through op '{self.ops[cycle[0][0]]}'")

    @cached_property
    def graph(self) -> nx.DiGraph:
        """Ops as nodes 0..n-1, an edge where one reads what the other writes."""
        graph = nx.DiGraph()
        graph.add_nodes_from(range(len(self.ops)))
        graph.add_edges_from(
            (int(self.producer[tensor]), op)
            for op, tensors in enumerate(self.reads)
            for tensor in tensors
            if self.producer[tensor] >= 0
        )
        return graph

    @cached_property
    def lists(self) -> Lists:
        """The same problem as nested lists; read-only by convention."""
        n, t = len(self.ops), len(self.tensors)
        producer: list[int] = self.producer.tolist()
        writes: list[list[int]] = [[] for _ in range(n)]
        readers: list[list[int]] = [[] for _ in range(t)]
        for tensor, op in enumerate(producer):
            if op >= 0:
                writes[op].append(tensor)
        before: list[list[int]] = []
        after: list[list[int]] = [[] for _ in range(n)]
        for op, tensors in enumerate(self.reads):
            producers = {producer[tensor] for tensor in tensors}
            producers.discard(-1)
            before.append(sorted(producers))
            for earlier in producers:
                after[earlier].append(op)
            for tensor in tensors:
                readers[tensor].append(op)
        return Lists(
            latency=self.latency_us.tolist(),
            transfer=self.transfer_us.tolist(),
            producer=producer,
            reads=[list(tensors) for tensors in self.reads],
            writes=writes,
            readers=readers,
            outputs=np.flatnonzero(self.is_output).tolist(),
            before=before,
            after=after,
            rivals=[np.flatnonzero(row).tolist() for row in self.conflicts],
            order=_topological(before, after),
        )

    @property
    def host(self) -> int:
        """Index of the host in ``transfer_us``."""
        return len(self.processors)


def _topological(before: list[list[int]], after: list[list[int]]) -> list[int]:
    """Kahn's order, smallest index first; shorter than the graph if that has a cycle."""
    waiting = [len(ops) for ops in before]
    ready = [op for op, count in enumerate(waiting) if count == 0]
    order = []
    while ready:
        op = heapq.heappop(ready)
        order.append(op)
        for later in after[op]:
            waiting[later] -= 1
            if waiting[later] == 0:
                heapq.heappush(ready, later)
    return order
