"""Plan → program: which segments run where, in which order, waiting for what.

Numbered passes, each a function:

1. ``_live_steps``: the plan is checked against the model, steps that no output depends on are left out, and so are
   slices and joins of what stands in one piece of memory anyway (``views.py``).
2. ``_synchronise``: steps and copies are queued; vector clocks find the fewest waits between queues that keep data and
   resource order.
3. ``_cut``: steps become segments, cut only where somebody waits (HOPE section 4.2 launches single ops; a
   segment is the longest run of them that delays nobody).
4. ``_assemble``: borders, layouts and copies of each piece of work.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from agent_sdk.engine.program import Event, Move, Program, ProgramSegment, Work, lane_of
from agent_sdk.engine.views import View, find_views, same_layout
from agent_sdk.errors import IllegalPlanError, PlanMismatchError
from agent_sdk.model.cutting import cut_model
from agent_sdk.runtimes.base import Processor, Segment
from hope_schema import HOST, ModelGraph, Plan, Step
from hope_schema.cutting import CutError

if TYPE_CHECKING:
    from agent_sdk.model import Model


def build_program(plan: Plan, model: Model, processors: Mapping[str, Processor]) -> Program:
    """Turn a plan into a program for the processors of this device.

    Args:
        plan: a legal plan; every op of the graph that matters stands in exactly one step.
        model: the model whose hash the plan names; the program's is cut as the plan says.
        processors: what this device has, by id; those that the plan gives no step may be missing.

    Raises:
        PlanMismatchError: the plan is for another model, or uses a processor that is not there.
        IllegalPlanError: an op is unknown or missing, or cannot be cut as asked, or the order is not topological.
    """
    _check_identity(plan, model, processors)
    if plan.jobs[0].cuts:
        try:
            model = cut_model(model, plan.jobs[0].cuts)
        except CutError as error:
            raise IllegalPlanError(f"the plan's cuts cannot be made: {error}") from error
    steps, dead = _live_steps(plan, model.graph)
    used = {step.processor: processors[step.processor] for step in steps}
    views, steps = find_views(model, steps, used)
    nodes, lanes = _synchronise(steps, plan, model.graph, used, views)
    _cut(nodes)
    return _assemble(plan, model, used, nodes, lanes, dead, _floats(used, processors), views)


def _floats(used: Mapping[str, Processor], processors: Mapping[str, Processor]) -> frozenset[int]:
    """All cores of the kind that is used, where a single one computes everything on the thread that calls it."""
    kinds = {processor.spec.kind for processor in used.values()}
    alone = len(used) == 1 and all(processor.on_caller_thread for processor in used.values())
    equals = [processor.caller_cores for processor in processors.values() if processor.spec.kind in kinds]
    return frozenset().union(*equals) if alone else frozenset()


@dataclass
class _Node:
    """A step, or a copy that a resource of its own carries, on its way to becoming part of a piece of work."""

    index: int
    step: Step
    ops: tuple[str, ...]
    lane: int
    position: int
    reads: tuple[str, ...]
    copies: Move | None = None
    waits: list[_Node] = field(default_factory=list)
    known: list[int] = field(default_factory=list)
    begins: bool = False
    ends: bool = False
    group: int = -1


def _check_identity(plan: Plan, model: Model, processors: Mapping[str, Processor]) -> None:
    if plan.model_hash != model.graph.model_hash:
        raise PlanMismatchError(
            f"the plan is for model {plan.model_hash[:12]}, not for '{model.graph.name}' "
            f"({model.graph.model_hash[:12]}); ask the planner for a plan of this model"
        )
    if len(plan.jobs) > 1:
        raise IllegalPlanError(f"the plan runs {len(plan.jobs)} networks side by side, which this agent cannot do yet")
    for step in plan.steps:
        if step.processor not in processors:
            raise PlanMismatchError(
                f"the plan puts step {step.id} on processor '{step.processor}', which this device lacks; "
                f"it has {', '.join(sorted(processors)) or 'none'}"
            )


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


def _carried(
    plan: Plan,
    graph: ModelGraph,
    processors: Mapping[str, Processor],
    home: Mapping[str, str],
    read: Collection[tuple[str, str]],
) -> dict[str, list[Move]]:
    """The plan's transfers that a resource of their own carries between memories, by tensor; the rest is the readers'.

    Graph inputs are loaded before a run and outputs stored after it, whatever carries them: ``read`` says which tensors
    are read in which memories besides. Raises IllegalPlanError for what cannot be executed.
    """
    memories = {processor.place.memory for processor in processors.values()}
    carried: dict[str, list[Move]] = {}
    for transfer in plan.transfers:
        what = f"the plan moves '{transfer.tensor}' from {transfer.source} to {transfer.target}"
        if transfer.tensor not in graph.tensor:
            raise IllegalPlanError(f"{what}, which model '{graph.name}' does not have")
        source, target = (place.partition("/")[0] for place in (transfer.source, transfer.target))
        if {source, target} - memories - {HOST}:
            raise IllegalPlanError(f"{what}, where none of its processors computes")
        if source == target or transfer.tensor not in home:
            continue
        stored = target == HOST and (transfer.tensor, HOST) not in read
        if transfer.tensor in graph.inputs or stored or target not in memories:
            continue
        before = carried.setdefault(transfer.tensor, [])
        if source not in {home[transfer.tensor], *(move.target for move in before)}:
            raise IllegalPlanError(f"{what}, but it is not there")
        if transfer.over is not None:
            before.append(Move(transfer.tensor, source, target, transfer.over))
    return carried


def _synchronise(
    steps: Sequence[Step],
    plan: Plan,
    graph: ModelGraph,
    processors: Mapping[str, Processor],
    views: Mapping[str, View],
) -> tuple[list[_Node], tuple[str, ...]]:
    """Give every step, and every copy behind the step that makes the tensor, the waits it needs, and no more.

    ``known[l]`` of a node counts the nodes of queue l that are finished whenever it starts. A dependency that
    ``known`` covers already, by program order or through another wait, needs no wait of its own.
    """
    home = dict.fromkeys(graph.inputs, HOST) | {
        name: processors[step.processor].place.memory
        for step in steps
        for op in step.ops
        for name in graph.op[op].outputs
    }
    home |= {name: home[view.parts[0]] for name, view in views.items()}
    read = {
        (name, processors[step.processor].place.memory)
        for step in steps
        for op in step.ops
        for name in graph.op[op].inputs
    }
    carried = _carried(plan, graph, processors, home, read)
    carriers = (move.over or "" for moves in carried.values() for move in moves)
    lanes = tuple(dict.fromkeys([*(lane_of(processors[step.processor]) for step in steps), *carriers]))
    place = {op.id: index for index, op in enumerate(graph.topological_ops)}
    last_in_lane: dict[int, _Node] = {}
    last_user: dict[str, _Node] = {}
    there: dict[tuple[str, str], _Node] = {}  # who makes or brings a tensor, by memory
    nodes: list[_Node] = []

    def enqueue(node: _Node, wanted: Iterable[_Node]) -> None:
        before = last_in_lane.get(node.lane)
        node.position = before.position + 1 if before else 0
        node.known = list(before.known) if before else [0] * len(lanes)
        node.known[node.lane] = node.position
        # Latest first: what a later node of another queue knows often makes an earlier wait needless.
        for other in sorted({id(one): one for one in wanted}.values(), key=lambda one: one.index, reverse=True):
            if other.position < node.known[other.lane]:
                continue
            node.waits.append(other)
            node.known = [max(a, b) for a, b in zip(node.known, other.known, strict=True)]
            node.known[other.lane] = max(node.known[other.lane], other.position + 1)
        last_in_lane[node.lane] = node
        nodes.append(node)

    for step in steps:
        processor = processors[step.processor]
        memory, resources = processor.place.memory, processor.spec.resources
        ops = tuple(sorted(step.ops, key=place.__getitem__))
        own = {name for op in ops for name in graph.op[op].outputs}
        reads = tuple(dict.fromkeys(name for op in ops for name in graph.op[op].inputs if name not in own))
        node = _Node(len(nodes), step, ops, lanes.index(lane_of(processor)), 0, reads)
        node.begins = any(name in views and views[name].parts != (name,) for name in reads)
        parts = [part for name in reads for part in (views[name].parts if name in views else (name,))]
        sources = [there.get((name, memory)) or there.get((name, home[name])) for name in parts]
        rivals = [last_user.get(resource) for resource in resources]
        enqueue(node, [other for other in (*sources, *rivals) if other is not None])
        last_user |= dict.fromkeys(resources, node)
        for name in reads:  # from here on it is here, because this step has brought it if nobody had
            if name not in graph.inputs:
                there.setdefault((name, memory), node)
        for name in (name for op in ops for name in graph.op[op].outputs):
            there[name, memory] = node
            for move in carried.get(name, ()):
                copy = _Node(len(nodes), step, (), lanes.index(move.over or ""), 0, (), move)
                enqueue(copy, [there[name, move.source]])
                there[name, move.target] = copy
    return nodes, lanes


def _cut(nodes: Sequence[_Node]) -> None:
    """Begin a segment where a step waits or its lane changes processor; end one where somebody waits for a step.

    One that reads what several steps write has begun already: they may stand before it in its lane.
    So whatever a segment waits for is needed by its first step, and what others wait for is made by its last:
    an edge between segments goes from a last step to a first step, which the plan's total order makes acyclic.
    """
    before: dict[int, _Node] = {}
    for node in nodes:
        previous = before.get(node.lane)
        if previous is None or node.waits or node.copies or previous.step.processor != node.step.processor:
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
    views: Mapping[str, View],
) -> Program:
    """Number the segments and give each its border."""
    groups: list[list[_Node]] = []
    current: dict[int, int] = {}
    for node in nodes:
        if node.begins:
            current[node.lane] = len(groups)
            groups.append([])
        node.group = current[node.lane]
        groups[node.group].append(node)
    position: list[int] = []
    per_lane = [0] * len(lanes)
    # upto[l][n]: how much work of queue l is finished once its first n nodes are.
    upto: list[list[int]] = [[0] for _ in lanes]
    for group in groups:
        position.append(per_lane[group[0].lane])
        per_lane[group[0].lane] += 1
    for node in nodes:
        last = groups[node.group][-1] is node
        upto[node.lane].append(position[node.group] + (1 if last else 0))
    border = _Border(model, processors, groups, views)
    work: list[Work] = []
    used: dict[str, Event] = {}
    segments = 0
    for index, group in enumerate(groups):
        first = group[0]
        leads, own = lanes[first.lane], Event(first.lane, position[index] + 1)
        lent = used.get(leads)
        common: dict[str, Any] = {
            "lane": first.lane,
            "position": position[index],
            "processor": next(p.id for p in processors.values() if p.place.memory == first.copies.target)
            if first.copies
            else first.step.processor,
            "waits": tuple(Event(other.lane, position[other.group] + 1) for other in first.waits),
            "lent": lent if lent is not None and lent.lane != first.lane else None,
            "moves": (first.copies,) if first.copies else border.moves(index),
            "finished": tuple(upto[lane][count] for lane, count in enumerate(first.known)),
        }
        used |= dict.fromkeys((leads,) if first.copies else processors[first.step.processor].spec.resources, own)
        if first.copies:
            work.append(Work(**common))
            continue
        work.append(
            ProgramSegment(
                **common,
                index=segments,
                segment=border.segment(index, model),
                steps=tuple(node.step.id for node in group),
                start_us=first.step.start_us,
                finish_us=max(node.step.finish_us for node in group),
            )
        )
        segments += 1
    return Program(plan, model, dict(processors), lanes, tuple(work), border.home, dead, floats, views)


class _Border:
    """What crosses the borders of segments, and in which layout."""

    def __init__(
        self,
        model: Model,
        processors: Mapping[str, Processor],
        groups: Sequence[Sequence[_Node]],
        views: Mapping[str, View],
    ) -> None:
        self._graph = graph = model.graph
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
        crossing = kept | readers.keys()
        crossing |= {part for name in crossing & views.keys() for part in views[name].parts}
        self._writes: list[list[str]] = [[] for _ in groups]
        for name, index in producer.items():
            if name in crossing:
                self._writes[index].append(name)
                self.home[name] = self._processor(index).id
        self.home |= {name: self.home[views[name].parts[-1]] for name in crossing & views.keys()}
        self._plain = {
            name
            for name, home in self.home.items()
            if home == HOST
            or name in kept
            or any(self._processor(r).place.name != processors[home].place.name for r in readers.get(name, ()))
        }
        for storage in {views[name].storage for name in crossing & views.keys()}:
            family = [name for name in crossing & views.keys() if views[name].storage == storage]
            makers = {name: processors[self.home[name]] for name in family}
            if not self._plain.isdisjoint(family) or not same_layout(makers, model):
                self._plain |= set(family)
        # Who brings a tensor to a memory: what copies only, else the first reader.
        self._first: dict[tuple[str, str], int] = {
            (group[0].copies.tensor, group[0].copies.target): index
            for index, group in enumerate(groups)
            if group[0].copies
        }
        for name, indices in readers.items():
            for index in indices:
                self._first.setdefault((name, self._processor(index).place.memory), index)

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
        """The tensors that this segment, as the first reader in its memory, brings there from another one."""
        target = self._processor(index).place.memory
        return tuple(
            Move(name, source, target)
            for name in self._reads[index]
            if self.home[name] != HOST
            and self._first[name, target] == index
            and (source := self._processors[self.home[name]].place.memory) != target
        )
