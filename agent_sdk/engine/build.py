"""Plan → program: which segments run where, in which order, waiting for what.

Numbered passes, each a function:

1. ``_live_steps``: the plan is checked against the model, steps that no output depends on are left out.
2. ``_synchronise``: vector clocks find the fewest waits between lanes that keep data and resource order.
3. ``_cut``: steps become segments, cut only where somebody waits (HOPE section 4.2 launches single ops; a
   segment is the longest run of them that delays nobody).
4. ``_assemble``: borders, layouts and transfers of each segment.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from agent_sdk.engine.errors import IllegalPlanError
from agent_sdk.engine.program import Move, Program, ProgramSegment, Wait, lane_of
from agent_sdk.errors import PlanMismatchError
from agent_sdk.runtimes.base import Processor, Segment
from hope_schema import HOST, ModelGraph, Plan, Step

if TYPE_CHECKING:
    from agent_sdk.model import Model


def build_program(plan: Plan, model: Model, processors: Mapping[str, Processor]) -> Program:
    """Turn a plan into a program for the processors of this device.

    Args:
        plan: a legal plan; every op of the graph that matters stands in exactly one step.
        model: the model whose hash the plan names.
        processors: what this device has, by id; those that the plan gives no step may be missing.

    Raises:
        PlanMismatchError: the plan is for another model, or uses a processor that is not there.
        IllegalPlanError: an op is unknown or missing, parts are asked for, or the order is not topological.
    """
    _check_identity(plan, model, processors)
    steps, dead = _live_steps(plan, model.graph)
    used = {step.processor: processors[step.processor] for step in steps}
    nodes, lanes = _synchronise(steps, model.graph, used)
    _cut(nodes)
    return _assemble(plan, model, used, nodes, lanes, dead, _floats(used, processors))


def _floats(used: Mapping[str, Processor], processors: Mapping[str, Processor]) -> frozenset[int]:
    """All cores of the kind that is used, where a single one computes everything on the thread that calls it."""
    kinds = {processor.spec.kind for processor in used.values()}
    alone = len(used) == 1 and all(processor.on_caller_thread for processor in used.values())
    equals = [processor.caller_cores for processor in processors.values() if processor.spec.kind in kinds]
    return frozenset().union(*equals) if alone else frozenset()


@dataclass
class _Node:
    """A step on its way to becoming part of a segment."""

    index: int
    step: Step
    ops: tuple[str, ...]
    lane: int
    position: int
    reads: tuple[str, ...]
    waits: list[_Node] = field(default_factory=list)
    known: list[int] = field(default_factory=list)
    begins: bool = False
    ends: bool = False
    segment: int = -1


def _check_identity(plan: Plan, model: Model, processors: Mapping[str, Processor]) -> None:
    if plan.model_hash != model.graph.model_hash:
        raise PlanMismatchError(
            f"the plan is for model {plan.model_hash[:12]}, not for '{model.graph.name}' "
            f"({model.graph.model_hash[:12]}); ask the planner for a plan of this model"
        )
    for step in plan.steps:
        if step.processor not in processors:
            raise PlanMismatchError(
                f"the plan puts step {step.id} on processor '{step.processor}', which this device lacks; "
                f"it has {', '.join(sorted(processors)) or 'none'}"
            )
        if step.part is not None:
            raise IllegalPlanError(f"step {step.id} asks for a part of an op, which this agent cannot run yet")


def _live_steps(plan: Plan, graph: ModelGraph) -> tuple[list[Step], tuple[str, ...]]:
    """Check that the steps cover the graph in a topological order; leave out what no output depends on."""
    owner: dict[str, Step] = {}
    for step in plan.steps:
        for op in step.ops:
            if op not in graph.op:
                raise IllegalPlanError(f"step {step.id} names op '{op}', which model '{graph.name}' does not have")
            owner[op] = step
    needed: set[str] = set()
    stack = [graph.producer[name] for name in graph.outputs if name in graph.producer]
    while stack:
        op = stack.pop()
        if op in needed:
            continue
        needed.add(op)
        if op not in owner:
            raise IllegalPlanError(f"no step of the plan runs op '{op}', on which an output depends")
        stack += [graph.producer[name] for name in graph.op[op].inputs if name in graph.producer]
        stack += [other for other in owner[op].ops if other not in needed]
    place = {step_id: index for index, step_id in enumerate(plan.order)}
    for op in needed:
        for name in graph.op[op].inputs:
            before = graph.producer.get(name)
            if before is not None and place[owner[before].id] > place[owner[op].id]:
                raise IllegalPlanError(
                    f"the plan's order puts step {owner[op].id}, which reads '{name}', before step "
                    f"{owner[before].id}, which makes it"
                )
    live = [plan.step[step_id] for step_id in plan.order if plan.step[step_id].ops[0] in needed]
    if not live:
        raise IllegalPlanError(f"no output of model '{graph.name}' depends on any op: there is nothing to run")
    return live, tuple(op.id for op in graph.ops if op.id not in needed)


def _inside(step: Step, graph: ModelGraph) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The ops of a step in a topological order, and the tensors they read from outside."""
    members = set(step.ops)
    order: list[str] = []
    placed: set[str] = set()
    remaining = list(step.ops)
    while remaining:
        later = []
        for op in remaining:
            before = {graph.producer.get(name) for name in graph.op[op].inputs} & members
            if before <= placed:
                order.append(op)
                placed.add(op)
            else:
                later.append(op)
        remaining = later
    reads = dict.fromkeys(
        name for op in order for name in graph.op[op].inputs if graph.producer.get(name) not in members
    )
    return tuple(order), tuple(reads)


def _synchronise(
    steps: Sequence[Step], graph: ModelGraph, processors: Mapping[str, Processor]
) -> tuple[list[_Node], tuple[str, ...]]:
    """Give every step the waits it needs, and no more.

    ``known[l]`` of a step counts the steps of lane l that are finished whenever it starts. A dependency that
    ``known`` covers already, by program order or through another wait, needs no wait of its own.
    """
    lanes = tuple(dict.fromkeys(lane_of(processors[step.processor]) for step in steps))
    length = [0] * len(lanes)
    last_in_lane: list[_Node | None] = [None] * len(lanes)
    last_user: dict[str, _Node] = {}
    maker: dict[str, _Node] = {}
    nodes: list[_Node] = []
    for step in steps:
        processor = processors[step.processor]
        lane = lanes.index(lane_of(processor))
        ops, reads = _inside(step, graph)
        node = _Node(len(nodes), step, ops, lane, length[lane], reads)
        before = last_in_lane[lane]
        node.known = list(before.known) if before else [0] * len(lanes)
        node.known[lane] = node.position
        rivals = [last_user[resource] for resource in processor.spec.resources if resource in last_user]
        wanted = {id(other): other for other in (*rivals, *(maker[name] for name in reads if name in maker))}
        # Latest first: what a later step of another lane knows often makes an earlier wait needless.
        for other in sorted(wanted.values(), key=lambda other: other.index, reverse=True):
            if other.position < node.known[other.lane]:
                continue
            node.waits.append(other)
            node.known = [max(a, b) for a, b in zip(node.known, other.known, strict=True)]
            node.known[other.lane] = max(node.known[other.lane], other.position + 1)
        length[lane] += 1
        last_in_lane[lane] = node
        for resource in processor.spec.resources:
            last_user[resource] = node
        for op in ops:
            for name in graph.op[op].outputs:
                maker[name] = node
        nodes.append(node)
    return nodes, lanes


def _cut(nodes: Sequence[_Node]) -> None:
    """Begin a segment where a step waits or its lane changes processor; end one where somebody waits for a step.

    So whatever a segment waits for is needed by its first step, and what others wait for is made by its last:
    an edge between segments goes from a last step to a first step, which the plan's total order makes acyclic.
    """
    before: dict[int, _Node] = {}
    for node in nodes:
        previous = before.get(node.lane)
        if previous is None or node.waits or previous.step.processor != node.step.processor:
            node.begins = True
        for other in node.waits:
            other.ends = True
        before[node.lane] = node
    before.clear()
    for node in nodes:
        previous = before.get(node.lane)
        if previous is not None and previous.ends:
            node.begins = True
        before[node.lane] = node


def _assemble(
    plan: Plan,
    model: Model,
    processors: Mapping[str, Processor],
    nodes: Sequence[_Node],
    lanes: tuple[str, ...],
    dead: tuple[str, ...],
    floats: frozenset[int],
) -> Program:
    """Number the segments and give each its border."""
    groups: list[list[_Node]] = []
    current: dict[int, int] = {}
    for node in nodes:
        if node.begins:
            current[node.lane] = len(groups)
            groups.append([])
        node.segment = current[node.lane]
        groups[node.segment].append(node)
    position: list[int] = []
    per_lane = [0] * len(lanes)
    # upto[l][n]: how many segments of lane l are finished once its first n steps are.
    upto: list[list[int]] = [[0] for _ in lanes]
    for group in groups:
        position.append(per_lane[group[0].lane])
        per_lane[group[0].lane] += 1
    for node in nodes:
        last = groups[node.segment][-1] is node
        upto[node.lane].append(position[node.segment] + (1 if last else 0))
    border = _Border(model.graph, processors, groups)
    segments = []
    for index, group in enumerate(groups):
        first = group[0]
        segments.append(
            ProgramSegment(
                index=index,
                lane=first.lane,
                position=position[index],
                processor=first.step.processor,
                segment=border.segment(index, model),
                steps=tuple(node.step.id for node in group),
                waits=tuple(Wait(other.lane, position[other.segment] + 1) for other in first.waits),
                moves=border.moves(index),
                finished=tuple(upto[lane][count] for lane, count in enumerate(first.known)),
                start_us=first.step.start_us,
                finish_us=max(node.step.finish_us for node in group),
            )
        )
    return Program(plan, model, dict(processors), lanes, tuple(segments), border.home, dead, floats)


class _Border:
    """What crosses the borders of segments, and in which layout."""

    def __init__(
        self,
        graph: ModelGraph,
        processors: Mapping[str, Processor],
        groups: Sequence[Sequence[_Node]],
    ) -> None:
        self._graph = graph
        self._processors = processors
        self._groups = groups
        self._reads = [self._read_by(index) for index in range(len(groups))]
        self.home: dict[str, str] = dict.fromkeys(graph.inputs, HOST)
        producer = {
            name: index
            for index, group in enumerate(groups)
            for node in group
            for op in node.ops
            for name in graph.op[op].outputs
        }
        kept = set(graph.outputs)
        readers: dict[str, list[int]] = {}
        for index, names in enumerate(self._reads):
            for name in names:
                readers.setdefault(name, []).append(index)
        self._writes: list[list[str]] = [[] for _ in groups]
        for name, index in producer.items():
            if name in kept or name in readers:
                self._writes[index].append(name)
                self.home[name] = self._processor(index).id
        self._plain = {
            name
            for name, home in self.home.items()
            if home == HOST
            or name in kept
            or any(not self._processor(r).same_layout(processors[home]) for r in readers.get(name, ()))
        }
        # Graph inputs: the processors that have been given memory of their own for each.
        self._loaded: dict[str, list[str]] = {}
        self._first: dict[tuple[str, str], int] = {}
        for name, indices in readers.items():
            for index in indices:
                self._first.setdefault((name, self._processor(index).id), index)

    def _processor(self, index: int) -> Processor:
        return self._processors[self._groups[index][0].step.processor]

    def _read_by(self, index: int) -> tuple[str, ...]:
        own = {name for node in self._groups[index] for op in node.ops for name in self._graph.op[op].outputs}
        return tuple(dict.fromkeys(name for node in self._groups[index] for name in node.reads if name not in own))

    def segment(self, index: int, model: Model) -> Segment:
        """What the processor compiles."""
        return Segment(
            model=model,
            ops=tuple(op for node in self._groups[index] for op in node.ops),
            inputs=self._reads[index],
            outputs=tuple(self._writes[index]),
            exports=frozenset(self._writes[index]) & self._plain,
            imports=frozenset(self._reads[index]) & self._plain,
            times=tuple((node.ops, node.step.start_us, node.step.finish_us) for node in self._groups[index]),
        )

    def moves(self, index: int) -> tuple[Move, ...]:
        """The tensors that this segment, as the first reader on its processor, brings there."""
        target = self._processor(index)
        moves = []
        for name in self._reads[index]:
            source = self.home[name]
            if source == target.id or self._first[(name, target.id)] != index:
                continue
            keepers = self._loaded.setdefault(name, []) if source == HOST else [source]
            keeper = next((k for k in keepers if _sees(target, self._processors[k])), target.id)
            if source == HOST and keeper == target.id:
                keepers.append(keeper)
            moves.append(Move(name, source, target.id, keeper))
        return tuple(moves)


def _sees(processor: Processor, other: Processor) -> bool:
    """Whether ``processor`` reads plain memory of ``other`` without a copy."""
    return processor.same_layout(other) or processor.shares_memory(other)
