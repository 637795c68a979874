"""Plan → program: which segments run where, in which order, waiting for what.

Numbered passes, each a function:

1. ``_live_steps``: the plan is checked against the model, steps that no output depends on are left out, and so are
   slices and joins that are no work (``views.py``).
2. ``_synchronise``: steps and moves (``places.py``) are queued; vector clocks find the fewest waits between queues that
   keep data and resource order.
3. ``_cut``: steps become segments, cut only where somebody waits (HOPE section 4.2 launches single ops; a
   segment is the longest run of them that delays nobody), or where the caller says.
4. ``_assemble``: what each piece of work reads and leaves, and where.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from agent_sdk.engine.places import Places, hops
from agent_sdk.engine.program import Copy, Event, Move, Program, ProgramSegment, Work, lane_of, memory_of
from agent_sdk.engine.views import View, find_views
from agent_sdk.errors import IllegalPlanError, PlanMismatchError
from agent_sdk.model import Model
from agent_sdk.model.cutting import cut_model
from agent_sdk.runtimes.base import Processor, Segment, Timed
from hope_schema import HOST, ModelGraph, Plan, Step
from hope_schema.cutting import CutError


def build_program(
    plan: Plan, model: Model, processors: Mapping[str, Processor], borders: Collection[int] = ()
) -> Program:
    """Turn a plan into a program for the processors of this device.

    Args:
        plan: a legal plan; every op of the graph that matters stands in exactly one step.
        model: the model whose hash the plan names; the program's is cut as the plan says.
        processors: what this device has, by id; those that the plan gives no step may be missing.
        borders: ids of steps that begin a segment though nobody waits there, so that others may have the processor.

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
    places = Places(model, steps, processors, views)
    nodes, lanes = _synchronise(steps, plan, model, used, places, views)
    _cut(nodes, model, frozenset(borders))
    halved = {
        (one.tensor, memory_of(end))
        for one in plan.transfers
        if one.dtype is not None
        for end in (one.source, one.target)
    }
    equals = equals_of(next(iter(used.values())), processors) if len(used) == 1 else []
    work, home = _assemble(model, places, nodes, lanes, views, equals, halved)
    floats = frozenset[int]().union(*(processor.caller_cores for processor in equals))
    return Program(plan, model, used, lanes, work, home, dead, floats, views)


def equals_of(used: Processor, processors: Mapping[str, Processor]) -> list[Processor]:
    """The processors of the same kind, itself among them, where it is a core that computes on the thread that calls it:
    what was compiled for it runs on each of them. Nothing for others.
    """
    if not (used.on_caller_thread and used.caller_cores):
        return []
    return [one for one in processors.values() if one.spec.kind == used.spec.kind]


def _check_identity(plan: Plan, model: Model, processors: Mapping[str, Processor]) -> None:
    """Raise where the plan is for another model or device, or for several networks."""
    if plan.model_hash != model.graph.model_hash:
        raise PlanMismatchError(
            f"the plan is for model {plan.model_hash[:12]}, not for '{model.graph.name}' "
            f"({model.graph.model_hash[:12]}); ask the planner for a plan of this model"
        )
    if len(plan.jobs) > 1:
        raise IllegalPlanError(f"the plan runs {len(plan.jobs)} networks side by side; a program runs one")
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
    stack = [graph.producer[name] for name in graph.outputs]
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
    return live, tuple(op.id for op in graph.ops if op.id not in needed)


@dataclass(eq=False)
class _Node:
    """A step, or a move, on its way to becoming part of a piece of work.

    ``processor`` is whose time it takes, or for whom a queue carries.
    """

    index: int
    processor: Processor
    resources: tuple[str, ...]
    lane: int
    step: Step | None = None
    ops: tuple[str, ...] = ()
    reads: tuple[str, ...] = ()
    move: Move | None = None
    position: int = 0
    waits: list[_Node] = field(default_factory=list)
    known: list[int] = field(default_factory=list)
    begins: bool = False
    ends: bool = False
    group: int = -1


def _synchronise(
    steps: Sequence[Step],
    plan: Plan,
    model: Model,
    processors: Mapping[str, Processor],
    places: Places,
    views: Mapping[str, View],
) -> tuple[list[_Node], tuple[str, ...]]:
    """Give every step and every move the waits it needs, and no more.

    A move stands before its first reader, on that one's time; what a queue carries, behind the step that makes the
    tensor. ``known[l]`` of a node counts the nodes of queue l that are finished whenever it starts. A dependency that
    ``known`` covers already, by program order or through another wait, needs no wait of its own.
    """
    graph = model.graph
    in_memory = {processor.place.memory: processor for processor in processors.values()}
    carried = places.carried(plan, set(in_memory))
    carriers = (move.over or "" for moves in carried.values() for move in moves)
    lanes = tuple(dict.fromkeys([*(lane_of(processors[step.processor]) for step in steps), *carriers]))
    rank = {op.id: index for index, op in enumerate(graph.topological_ops)}
    last_in_lane: dict[int, _Node] = {}
    last_user: dict[str, _Node] = {}
    there: dict[tuple[str, str], _Node] = {}  # who makes or brings a tensor, by place
    nodes: list[_Node] = []

    def enqueue(node: _Node, wanted: Iterable[_Node | None]) -> None:
        before = last_in_lane.get(node.lane)
        node.position = before.position + 1 if before else 0
        node.known = list(before.known) if before else [0] * len(lanes)
        node.known[node.lane] = node.position
        rivals = (last_user.get(resource) for resource in node.resources)
        # Latest first: what a later node of another queue knows often makes an earlier wait needless.
        before_it = {one.index: one for one in (*wanted, *rivals) if one is not None}
        for _, other in sorted(before_it.items(), reverse=True):
            if other.position < node.known[other.lane]:
                continue
            node.waits.append(other)
            node.known = [max(a, b) for a, b in zip(node.known, other.known, strict=True)]
            node.known[other.lane] = max(node.known[other.lane], other.position + 1)
        last_in_lane[node.lane] = node
        last_user.update(dict.fromkeys(node.resources, node))
        nodes.append(node)

    def carry(move: Move, processor: Processor) -> None:
        lane, resources = move.over or lane_of(processor), (move.over,) if move.over else processor.spec.resources
        copy = _Node(len(nodes), processor, resources, lanes.index(lane), move=move)
        enqueue(copy, [there[move.tensor, move.source]])
        there[move.tensor, move.target] = copy

    for step in steps:
        processor = processors[step.processor]
        ops = tuple(sorted(step.ops, key=rank.__getitem__))
        own = {name for op in ops for name in graph.op[op].outputs}
        reads = tuple(dict.fromkeys(name for op in ops for name in graph.op[op].inputs if name not in own))
        parts = [
            (part, places.read(name, processor))
            for name in reads
            if name not in graph.inputs
            for part in (views[name].parts if name in views else (name,))
        ]
        for part, target in parts:
            for source, end in hops(places.made[part], target):
                if (part, end) not in there:
                    carry(Move(part, source, end), processor)
        node = _Node(len(nodes), processor, processor.spec.resources, lanes.index(lane_of(processor)), step, ops, reads)
        node.begins = any(name in views and views[name].parts != (name,) for name in reads)
        enqueue(node, [there[part, target] for part, target in parts])
        for name in (name for op in ops for name in graph.op[op].outputs):
            there[name, places.made[name]] = node
            for move in carried.get(name, ()):
                carry(move, in_memory[memory_of(move.target)])
    return nodes, lanes


def _cut(nodes: Sequence[_Node], model: Model, borders: Collection[int]) -> None:
    """Begin a piece of work at a border, or where a step waits, moves something or changes processor, or the network
    where that computes one at a time; end one where somebody waits.

    One that reads what several steps write has begun already: they may stand before it in its lane.
    So whatever a segment waits for is needed by its first step, and what others wait for is made by its last:
    an edge between segments goes from a last step to a first step, which the plan's total order makes acyclic.
    """
    before: dict[int, _Node] = {}
    for node in nodes:
        previous = before.get(node.lane)
        if previous is None or node.waits or node.move or previous.move or previous.processor is not node.processor:
            node.begins = True
        else:
            places = {model.member(one.ops[0])[0] for one in (previous, node)}
            node.begins |= len(places) > 1 and not node.processor.joins
        if node.step is not None and node.step.id in borders:
            node.begins = True
        for other in node.waits:
            other.ends = True
        before[node.lane] = node


def _assemble(
    model: Model,
    places: Places,
    nodes: Sequence[_Node],
    lanes: tuple[str, ...],
    views: Mapping[str, View],
    equals: Sequence[Processor],
    halved: Collection[tuple[str, str]],
) -> tuple[tuple[Work, ...], dict[str, str]]:
    """Number the pieces of work and give each its border; and by tensor that crosses one, who makes it.

    Work that any of several ``equals`` may do wants what one of them has. ``halved`` are the tensors that cross the way
    to or from a memory as float16, each with that memory.
    """
    either = tuple(dict.fromkeys(resource for one in equals for resource in one.spec.resources))
    groups: list[list[_Node]] = []
    current: dict[int, int] = {}
    for node in nodes:
        if node.begins or groups[current[node.lane]][-1].ends:
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
    finished = [tuple(upto[lane][count] for lane, count in enumerate(group[0].known)) for group in groups]
    border = _Border(model, groups, views)
    border.find_resident(places, position, finished)
    work: list[Work] = []
    used: dict[str, Event] = {}
    there: dict[int, frozenset[int]] = {}  # by lane, where its thread is
    segments = [index for index, group in enumerate(groups) if group[0].move is None]
    number = {index: at for at, index in enumerate(segments)}
    for index, group in enumerate(groups):
        first = group[0]
        cores = (len(groups) == 1 and first.processor.whole_cores) or first.processor.caller_cores
        if first.move is not None and first.move.over:  # set to work on the cores of whoever has that queue
            cores = places.cores_of(first.move.over)
        moves = bool(cores) and cores != there.setdefault(first.lane, cores)
        there[first.lane] = cores or there.get(first.lane, cores)
        lent, far = used.get(lanes[first.lane]), first.processor.spec.host != HOST
        common: dict[str, Any] = {
            "lane": first.lane,
            "position": position[index],
            "processor": first.processor.id,
            # What another host has, it grants itself: inputs of one run are sent while it computes another.
            "resources": () if far else either or first.resources,
            "either": bool(either) or first.processor.at_once > 1,
            "cores": cores,
            "moves": moves,
            "waits": tuple(Event(other.lane, position[other.group] + 1) for other in first.waits),
            "lent": lent if lent is not None and lent.lane != first.lane else None,
            "finished": finished[index],
            "far": far,
        }
        used |= dict.fromkeys(first.resources, Event(first.lane, position[index] + 1))
        if first.move is not None:
            reader = border.ahead.get(index)
            work.append(_copy(first, places, common | {"ahead_of": None if reader is None else number[reader]}))
            continue
        steps = [node.step for node in group if node.step is not None]
        work.append(
            ProgramSegment(
                **common,
                index=number[index],
                segment=border.segment(index, model, places, halved),
                steps=tuple(step.id for step in steps),
                start_us=steps[0].start_us,
                finish_us=max(step.finish_us for step in steps),
            )
        )
    return tuple(work), border.home


def _copy(node: _Node, places: Places, common: dict[str, Any]) -> Copy:
    """A move as a piece of work."""
    move = node.move
    assert move is not None
    layout = move.source if memory_of(move.source) != move.source else move.target
    changer = places.changer(layout, node.resources) if move.changes_layout else None
    assert changer is not None or not move.changes_layout, move  # one layout's bytes are not another's
    return Copy(**common, move=move, changer=changer)


class _Border:
    """What crosses the borders of segments."""

    def __init__(self, model: Model, groups: Sequence[Sequence[_Node]], views: Mapping[str, View]) -> None:
        self._graph = graph = model.graph
        self._groups = groups
        self._reads = [self._read_by(index) for index in range(len(groups))]
        self.home: dict[str, str] = dict.fromkeys(graph.inputs, HOST)
        crossing = {*model.held, *(name for names in self._reads for name in names)}
        crossing |= {part for name in crossing & views.keys() for part in views[name].parts}
        self._writes: list[list[str]] = [[] for _ in groups]
        for index, group in enumerate(groups):
            for name in (name for node in group for op in node.ops for name in graph.op[op].outputs):
                if name in crossing:
                    self._writes[index].append(name)
                    self.home[name] = group[0].processor.id
        self.home |= {name: self.home[views[name].parts[-1]] for name in crossing & views.keys()}
        moves = (group[0].move for group in groups)
        self._leaving = {move.tensor for move in moves if move is not None and not move.changes_layout}
        self._leaving.update(model.held)
        self._resident: list[set[str]] = [set() for _ in groups]
        self._stays: list[set[str]] = [set() for _ in groups]
        self.ahead: dict[int, int] = {}
        """The moves to other hosts that their queues carry before their readers' turn, and the first of the readers."""

    def find_resident(self, places: Places, position: Sequence[int], finished: Sequence[tuple[int, ...]]) -> None:
        """What stands where a group reads it because a group that ended before made it there, or brought it along.

        ``position`` is each group's place in its lane, ``finished`` how much of each lane is before it.
        """
        self._find_ahead(places, position, finished)
        # who reads what where, and who brought it for them
        ahead = [(index, move) for index in self.ahead if (move := self._groups[index][0].move)]
        source = {(move.tensor, move.target): [(index, index)] for index, move in ahead}
        for index, group in enumerate(self._groups):
            if group[0].move is not None or not group[0].processor.place.keeps:
                continue
            for name in self._reads[index]:
                here = (name, places.read(name, group[0].processor))
                known = source.setdefault(here, [])
                brought = [by for other, by in known if position[other] < finished[index][self._groups[other][0].lane]]
                if brought:
                    self._resident[index].add(name)
                    self._stays[brought[0]].add(name)
                known.append((index, brought[0] if brought else index))
            for name in self._writes[index]:
                source[name, places.made[name]] = [(index, index)]

    def _find_ahead(self, places: Places, position: Sequence[int], finished: Sequence[tuple[int, ...]]) -> None:
        """All of a queue, where one may begin before its reader's lane has come to that reader, or before the reader of
        the one in front has ended. Elsewhere a reader's request takes its tensor along, which saves a round trip.
        """
        first: dict[tuple[str, str], int] = {}
        for index, group in reversed([*enumerate(self._groups)]):
            if group[0].move is None:
                first |= {(name, places.read(name, group[0].processor)): index for name in self._reads[index]}
        queues: dict[int, dict[int, int]] = {}
        for index, group in enumerate(self._groups):
            move = group[0].move
            if move is not None and places.sends(move) and (move.tensor, move.target) in first:
                queues.setdefault(group[0].lane, {})[index] = first[move.tensor, move.target]
        for moves in queues.values():
            turns = [
                (finished[index], self._groups[reader][0].lane, position[reader]) for index, reader in moves.items()
            ]
            busy = any(done[lane] < turn for done, lane, turn in turns)
            if busy or any(done[lane] <= turn for (_, lane, turn), (done, _, _) in pairwise(turns)):
                self.ahead |= moves

    def _read_by(self, index: int) -> tuple[str, ...]:
        own = {name for node in self._groups[index] for op in node.ops for name in self._graph.op[op].outputs}
        return tuple(dict.fromkeys(name for node in self._groups[index] for name in node.reads if name not in own))

    def segment(self, index: int, model: Model, places: Places, halved: Collection[tuple[str, str]]) -> Segment:
        group, reads, writes = self._groups[index], self._reads[index], self._writes[index]
        processor = group[0].processor
        memory = processor.place.memory
        return Segment(
            model=model,
            ops=tuple(op for node in group for op in node.ops),
            inputs=reads,
            outputs=tuple(writes),
            exports=frozenset(name for name in writes if places.made[name] == memory),
            imports=frozenset(name for name in reads if places.read(name, processor) == memory),
            times=tuple(
                Timed(node.ops, node.step.start_us, node.step.finish_us, node.step.alone_us, node.step.recipe)
                for node in group
                if node.step
            ),
            resident=frozenset(self._resident[index]),
            stays=frozenset(self._stays[index]),
            inside=frozenset(name for name in writes if name not in self._leaving),
            halved=frozenset(name for name in (*reads, *writes) if (name, memory) in halved),
        )
