"""From networks and a profile to a Problem. Every rule that fills a missing figure stands here and in `transfers`."""

import math
from collections.abc import Mapping, Sequence

import numpy as np

from hope_schema import HOST, ModelGraph, Processor, Profile, SuperOp, Tensor, merge
from hope_schema.hosts import on_host
from planner_api.planning.problem import (
    FloatArray,
    IntArray,
    Job,
    Machine,
    Objective,
    PlanningError,
    Problem,
    Recipe,
    called,
)
from planner_api.planning.problem.choices import WHOLE
from planner_api.planning.problem.feasible import prune
from planner_api.planning.problem.known import KnownKind, Way, known_kinds
from planner_api.planning.problem.machine import routes
from planner_api.planning.problem.parts import cutter_of
from planner_api.planning.problem.transfers import TransferTable, Type

SHOWN = 5
"""How many names a sentence on filled figures lists before it says how many more there are."""


def build_problem(
    graphs: ModelGraph | Sequence[ModelGraph],
    profile: Profile,
    processors: Sequence[str] | None = None,
    jobs: Sequence[Job] | None = None,
    objective: Objective = "makespan",
    *,
    cut: bool = False,
) -> Problem:
    """Merge networks into super-ops and look up what each costs on each processor.

    A super-op runs on a processor as a fused group or as its parts, one after the other, whichever the profile knows
    to be faster. Filled by rule, and flagged in ``Problem.filled``:

    - a latency that was never measured on a kind of processor is the predicted one, where the profile has that; else
      the op stays off that processor until it is measured;
    - a transfer that was never measured follows the rules of ``transfers.TransferTable``.

    Arguments are those of `planning.plan`; ``cut`` says whether ops may be cut into parts.

    Raises:
        PlanningError: an unknown processor; an op that no candidate supports or that was measured nowhere; a
            tensor that cannot get from where it can be produced to where it can be read.
    """
    networks = (graphs,) if isinstance(graphs, ModelGraph) else tuple(graphs)
    jobs = tuple(jobs) if jobs is not None else (Job(),) * len(networks)
    if len(jobs) != len(networks) or not networks:
        raise PlanningError(f"{len(networks)} networks for {len(jobs)} jobs")
    candidates = _candidates(profile, processors)
    filled: list[str] = []
    supers = [(job, op) for job, network in enumerate(networks) for op in merge(network)]
    names = [
        (job, name)
        for job, network in enumerate(networks)
        for name in dict.fromkeys((*network.inputs, *(n for op in merge(network) for n in op.outputs)))
    ]
    index = {name: tensor for tensor, name in enumerate(names)}
    producer = np.full(len(names), -1, dtype=np.int64)
    for op, (job, super_op) in enumerate(supers):
        for name in super_op.outputs:
            producer[index[job, name]] = op
    known = known_kinds(profile)
    table = TransferTable(profile.transfers, profile.channels)
    tensors = _Types([networks[job].tensor[name] for job, name in names])
    machine, labels = _machine(profile, candidates, table, tensors)
    latency, share, in_parts, spread = _latencies([op for _, op in supers], candidates, known, filled)
    recipes = _recipes([op for _, op in supers], candidates, known, latency, share, in_parts)
    cutter = WHOLE
    if cut:
        kinds = [known[one.kind] for one in candidates]
        cutter = cutter_of(networks, supers, latency, kinds, profile.latencies.signature, table, machine, labels)
    problem = Problem(
        machine=machine,
        ops=tuple(called(op.id, job, len(networks)) for job, op in supers),
        latency_us=latency,
        producer=producer,
        reads=tuple(tuple(index[job, name] for name in op.inputs) for job, op in supers),
        is_output=np.array([name in networks[job].kept for job, name in names], dtype=np.bool_),
        transfer_us=_transfers(networks, names, tensors, machine, labels, table, filled),
        tensors=tuple(called(name, job, len(networks)) for job, name in names),
        share=share,
        recipes=recipes,
        job=np.array([job for job, _ in supers], dtype=np.int64) if len(networks) > 1 else None,
        jobs=jobs,
        objective=objective,
        in_parts=in_parts,
        cutter=cutter,
        predicted_spread=spread,
        filled=tuple(filled),
    )
    return prune(problem)


class _Types:
    """The types of T tensors, of which there are few: the distinct ones, and (T,) the number of each tensor's."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        numbers: dict[Type, int] = {}
        number = [numbers.setdefault((tensor.shape, tensor.dtype), len(numbers)) for tensor in tensors]
        self.number, self.distinct = np.array(number, dtype=np.int64), list(numbers)

    def costs(self, table: TransferTable, tensors: IntArray, source: str, target: str) -> tuple[FloatArray, str]:
        """What `TransferTable.costs` says of some tensors."""
        present, number = np.unique(self.number[tensors], return_inverse=True)
        costs, note = table.costs([self.distinct[type_] for type_ in present], source, target)
        return costs[number], note


def _candidates(profile: Profile, wanted: Sequence[str] | None) -> list[Processor]:
    known = {processor.id: processor for processor in profile.processors}
    if wanted is None:
        wanted = tuple(known)
    if not wanted:
        raise PlanningError(f"there is no processor to plan for: the profile of '{profile.soc}' lists none")
    for name in wanted:
        if name not in known:
            raise PlanningError(
                f"processor '{name}' is not in the profile of '{profile.soc}', which knows {', '.join(known) or 'none'}"
            )
    return [known[name] for name in dict.fromkeys(wanted)]


def _machine(
    profile: Profile, candidates: list[Processor], table: TransferTable, tensors: _Types
) -> tuple[Machine, list[str]]:
    """The machine, and the label of each of its places.

    Where handing a tensor on within one place costs something, every processor there is a place of its own. Ways over
    several channels are those that are cheapest for all tensors of the networks together.
    """
    split = {source for source, target in zip(profile.transfers.source, profile.transfers.target, strict=True)
             if source == target}  # fmt: skip
    keys = [(one.place, one.id if one.place in split else "") for one in candidates]
    hosts = list(dict.fromkeys([HOST, *(one.host for one in profile.processors)]))
    plain = [(on_host(host, HOST), "") for host in hosts]
    places = list(dict.fromkeys([*plain, *keys]))
    labels = [label for label, _ in places]
    host_of = dict(zip(keys, [one.host for one in candidates], strict=True)) | dict(zip(plain, hosts, strict=True))
    owner = np.array([hosts.index(host_of[place]) for place in places], dtype=np.int64)
    hop = _hops(table, tensors, labels, owner)
    held = [{(one.host, resource) for resource in one.resources} for one in candidates]
    resources = sorted(set().union(*held))
    memories = {name: number for number, name in enumerate(dict.fromkeys((one.host, one.memory) for one in candidates))}
    carried = {(way.source, way.target): way.busy for way in profile.channels if way.busy is not None}
    queues = sorted(set(carried.values()))
    costs = profile.overheads
    return Machine(
        processors=tuple(one.id for one in candidates),
        uses=np.array([[resource in mine for resource in resources] for mine in held], dtype=np.bool_),
        places=tuple(f"{label} ({owner})" if owner else label for label, owner in places),
        place=np.array([places.index(key) for key in keys], dtype=np.int64),
        busy=np.array(
            [[queues.index(carried[a, b]) if (a, b) in carried else -1 for b in labels] for a in labels],
            dtype=np.int64,
        ),
        queues=tuple(queues),
        launch_us=np.array([costs.launch_us.get(one.kind, 0.0) for one in candidates]),
        end_us=np.array([costs.end_us.get(one.kind, 0.0) for one in candidates]),
        slowdown=np.array([costs.slowdown.get(one.kind, 1.0) for one in candidates]),
        memory=np.array([memories[one.host, one.memory] for one in candidates], dtype=np.int64),
        hop=hop,
        owner=owner if len(hosts) > 1 else None,
        spread=np.array([costs.spread.get(one.kind, 0.0) for one in candidates])
        if any(costs.spread.values())
        else None,
    ), labels


def _hops(table: TransferTable, tensors: _Types, labels: Sequence[str], owner: IntArray) -> IntArray | None:
    """`Machine.hop`: of what no channel joins, and between hosts, where one may be dearer than several."""
    known = {(a, b): table.joins(a, b) for a in labels for b in labels}
    if all(known.values()) and not owner.any():
        return None
    every = np.arange(len(tensors.number))
    total = {way: float(tensors.costs(table, every, *way)[0].sum()) for way, joined in known.items() if joined}
    direct = np.array([[total.get((a, b), math.inf) for b in labels] for a in labels])
    np.fill_diagonal(direct, 0.0)
    hop = routes(direct, np.isfinite(direct) & (owner[:, None] == owner))
    return hop if (hop != np.arange(len(labels))[:, None]).any() else None


def _latencies(
    supers: list[SuperOp], candidates: list[Processor], known: Mapping[str, KnownKind], filled: list[str]
) -> tuple[FloatArray, FloatArray | None, np.ndarray, FloatArray | None]:
    """Latency (measured, else predicted; ``inf`` where unsupported or neither), share, mode and spread, each (n, P)."""
    found: dict[str, list[Way | None]] = {kind: [] for kind in dict.fromkeys(one.kind for one in candidates)}
    for super_op in supers:
        ways = {kind: known[kind].way(super_op) for kind in found}
        if all(way is None or way.us is None for way in ways.values()):
            name = f"op '{super_op.id}' ({super_op.ops[0].type})"
            if None in ways.values():
                raise PlanningError(f"{name} has no measured latency on any candidate processor")
            raise PlanningError(f"no processor supports {name}")
        for kind, way in ways.items():
            found[kind].append(way)
    placed = [[way or Way(None) for way in found[processor.kind]] for processor in candidates]
    figures = np.array(placed, dtype=np.float64).transpose(2, 1, 0).copy()  # what takes None is not a number
    latency, taken, spread = np.nan_to_num(figures[0], nan=math.inf, posinf=math.inf), figures[1], figures[3]
    in_parts = figures[2] > 0
    for column, processor in enumerate(candidates):
        guessed = np.flatnonzero(spread[:, column])
        if guessed.size:
            names, most = [supers[op].id for op in guessed], spread[:, column].max()
            filled.append(f"latency on '{processor.id}' predicted (spread at most {most:.0%}): {_list(names)}")
    for processor in candidates:
        if names := [op.id for op, way in zip(supers, found[processor.kind], strict=True) if way is None]:
            filled.append(f"not measured on '{processor.id}', nor predicted, so not placed there: {_list(names)}")
    return latency, None if (taken == 1.0).all() else taken, in_parts, spread if spread.any() else None


def _recipes(
    supers: list[SuperOp],
    candidates: list[Processor],
    known: Mapping[str, KnownKind],
    latency: FloatArray,
    share: FloatArray | None,
    in_parts: np.ndarray,
) -> tuple[Recipe, ...]:
    """The recipes of what has several and runs as a whole. What leaves no room has no use for others."""
    found: list[Recipe] = []
    if share is None:
        return ()
    for column, processor in enumerate(candidates):
        for op, super_op in enumerate(supers):
            ways = known[processor.kind].recipes.get(super_op.signature, {})
            others = [Recipe(op, column, one, way.us, way.share) for one, way in ways.items() if way.us is not None]
            if others and math.isfinite(latency[op, column]) and not in_parts[op, column]:
                own = Recipe(op, column, -1, float(latency[op, column]), float(share[op, column]))
                found += [own, *others]
    return tuple(found)


def _list(names: list[str]) -> str:
    shown = ", ".join(f"'{name[:80]}'" for name in names[:SHOWN])
    more = len(names) - SHOWN
    return f"{shown} and {more} more" if more > 0 else shown


def _transfers(
    networks: Sequence[ModelGraph],
    names: Sequence[tuple[int, str]],
    tensors: _Types,
    machine: Machine,
    labels: Sequence[str],
    table: TransferTable,
    filled: list[str],
) -> FloatArray:
    """The (T, L, L) costs of moves.

    Only moves that can happen are looked up (and flagged where they are filled): graph inputs leave the host,
    graph outputs reach it, and what an op writes for another goes between places. All others stay zero.
    """
    cost = np.zeros((len(names), len(labels), len(labels)))
    made = np.array([name in networks[job].producer for job, name in names])
    read = np.array([name in networks[job].consumers for job, name in names])
    out = np.array([name in networks[job].kept for job, name in names])
    computes = set(machine.place.tolist())
    sentences: dict[str, None] = {}
    for source, start in enumerate(labels):
        for target, end in enumerate(labels):
            if source == target:
                continue
            wanted = (read & (target in computes)) | (made & out & (target == machine.host))
            moved = np.flatnonzero(wanted & np.where(made, source in computes, source == machine.host))
            if not moved.size or (start == end == HOST and machine.host in (source, target)):
                continue
            for a, b in machine.way(source, target):
                cost[moved, a, b], note = tensors.costs(table, moved, labels[a], labels[b])
                if note:
                    sentences[f"transfers from '{labels[a]}' to '{labels[b]}': {note}"] = None
            if len(machine.way(source, target)) > 1:
                over = ", ".join(labels[b] for _, b in machine.way(source, target)[:-1])
                sentences[f"transfers from '{start}' to '{end}': over {over}, where no channel leads there"] = None
    filled.extend(sentences)
    return machine.along(cost)
