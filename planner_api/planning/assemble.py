"""From an outcome back to the contract: a Plan whose body depends on the inputs, the seed and the rounds only."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from hope_schema import Alternative, Cut, ModelGraph, Plan, PlannedJob, Profile, Step, Transfer, merge
from hope_schema.cutgraph import node_of
from hope_schema.cutting import pieces
from hope_schema.graph import DType
from planner_api.planning.judge.causes import causes, next_best
from planner_api.planning.judge.simulator import Schedule
from planner_api.planning.optimise import Outcome
from planner_api.planning.problem import Problem, called
from planner_api.planning.problem.parts import RULE
from planner_api.planning.search.replays import ends

MAX_GAP = 1e9
"""What a gap reads when the bound is zero and the makespan is not."""


def assemble(graphs: Sequence[ModelGraph], profile: Profile, problem: Problem, outcome: Outcome) -> Plan:
    """Write a plan down: steps in topological order, order by start time, transfers as they are issued."""
    solution, bound = outcome.solution, outcome.bound
    schedule, cuts = solution.schedule, _by_job(solution.cuts, len(graphs))
    members = [one for job, graph in enumerate(graphs) for one in _members(job, graph, cuts[job])]
    problem = solution.cut or problem
    ends_us = solution.expected.job_us if solution.expected else ends(problem, np.array(schedule.done_us))
    kinds = {processor.id: processor.kind for processor in profile.processors}
    steps, ids = _steps(members, problem, schedule, [kinds[name] for name in problem.processors])
    place = {op: index for index, op in enumerate(schedule.sequence)}
    order = sorted(place, key=lambda op: (schedule.start_us[op], place[op]))

    jobs = [
        PlannedJob(
            model_hash=graph.model_hash,
            cuts=tuple(cuts[k]),
            run=job.run,
            release_us=job.release_us,
            period_us=job.period_us,
            deadline_us=job.deadline_us,
            weight=job.weight,
            finish_us=ends_us[k],
        )
        for k, (graph, job) in enumerate(zip(graphs, problem.jobs, strict=True))
    ]
    late = [job.weight * (job.finish_us - job.deadline_us) for job in jobs if job.deadline_us is not None]
    # A plan is late or early: its bound is told as its end, less what the job that decides could end sooner at most.
    makespan_us = solution.makespan_us
    decides = np.argmax(problem.weight * (np.array(schedule.done_us) - problem.due_us))
    sooner_us = (solution.value_us - bound.us) / float(problem.weight[decides])
    lower = max(0.0, min(makespan_us - sooner_us, makespan_us))
    gap = makespan_us / lower - 1 if lower > 0 else (MAX_GAP if makespan_us > 0 else 0.0)
    return Plan(
        jobs=tuple(jobs),
        soc=profile.soc,
        frequency=profile.frequency,
        objective=problem.objective,
        processors=problem.processors,
        steps=steps,
        order=tuple(step for op in order for step in ids[op]),
        transfers=_transfers(graphs, profile, problem, schedule, members, ids),
        makespan_us=makespan_us,
        lateness_us=max(late) if late else None,
        lower_bound_us=lower,
        gap=min(max(gap, 0.0), MAX_GAP),
        method=solution.method,
        bound_method=bound.method,
        single_processor_us={problem.processors[p]: plan.makespan_us for p, plan in outcome.singles.items()},
        profile_version=profile.version,
        filled=tuple(sentence[:1024] for sentence in (*problem.filled, *([RULE] if any(cuts) else []))),
        notes=tuple(note[:1024] for note in solution.notes[:64]),
    )


class _Members(NamedTuple):
    """What an op of the problem is: ops of a job's (cut) network with their types, and the tensors that it writes."""

    job: int
    ops: tuple[str, ...]
    dtypes: tuple[DType, ...]
    writes: tuple[str, ...]


def _by_job(cuts: Sequence[Cut], jobs: int) -> list[list[Cut]]:
    """The cuts of each network, of ops as they are called there."""
    named: list[list[Cut]] = [[] for _ in range(jobs)]
    for cut in cuts:
        job, op = (int(cut.op.partition(":")[0]), cut.op.partition(":")[2]) if jobs > 1 else (0, cut.op)
        named[job].append(cut.model_copy(update={"op": op}))
    return named


def _members(job: int, graph: ModelGraph, cuts: Sequence[Cut]) -> Iterator[_Members]:
    """Members of a part are called after the region that it makes, slices and joins after what they write."""
    supers = {op.id: op for op in merge(graph)}
    shapes = {tensor.name: tensor.shape for tensor in graph.tensors}
    for piece in pieces([node_of(op) for op in supers.values()], cuts, shapes, graph.outputs):
        source = [member.id for member in supers[piece.op].ops] if piece.kind in ("whole", "part") else [piece.op]
        ops = source if piece.kind == "whole" else list(piece.writes)
        if piece.kind == "part" and piece.region is not None:
            ops = [piece.region.of(op) for op in source]
        yield _Members(job, tuple(ops), tuple(graph.tensor[op].dtype for op in source), piece.writes)


def _steps(
    members: Sequence[_Members],
    problem: Problem,
    schedule: Schedule,
    kinds: Sequence[str],
) -> tuple[tuple[Step, ...], list[list[int]]]:
    """The steps, and those of each super-op: one, or its parts one after the other in equal parts of its time."""
    why = causes(problem, schedule)
    spread = np.zeros(problem.latency_us.shape) if problem.predicted_spread is None else problem.predicted_spread
    steps: list[Step] = []
    ids: list[list[int]] = []
    for op, (job, names, dtypes, _) in enumerate(members):
        here = schedule.assignment[op]
        start, finish = schedule.start_us[op], schedule.finish_us[op]
        apart = problem.in_parts is not None and bool(problem.in_parts[op, here])
        groups = list(zip([(name,) for name in names], dtypes, strict=True)) if apart else [(names, dtypes[-1])]
        other = next_best(problem.lists.latency[op], here, kinds)
        ids.append([])
        for k, (group, dtype) in enumerate(groups):
            ids[op].append(len(steps))
            steps.append(
                Step(
                    id=len(steps),
                    job=job,
                    ops=group,
                    dtype=dtype,
                    processor=problem.processors[here],
                    start_us=start + (finish - start) * k / len(groups),
                    finish_us=finish if k + 1 == len(groups) else start + (finish - start) * (k + 1) / len(groups),
                    alone_us=float(problem.latency_us[op, here]) / len(groups),
                    next_best=other and Alternative(processor=problem.processors[other[0]], us=other[1] / len(groups)),
                    cause=why[op],
                    predicted_spread=float(spread[op, here]) or None,
                    recipe=None
                    if problem.recipe is None or problem.recipe[op, here] < 0
                    else int(problem.recipe[op, here]),
                    share=float(problem.shares[op, here]) if problem.shares[op, here] < 1.0 else None,
                )
            )
    return tuple(steps), ids


def _transfers(
    graphs: Sequence[ModelGraph],
    profile: Profile,
    problem: Problem,
    schedule: Schedule,
    members: Sequence[_Members],
    ids: Sequence[Sequence[int]],
) -> tuple[Transfer, ...]:
    """The moves between places, each with the resource that carries it or the step that pays for it."""
    machine = problem.machine
    placed = {processor.id: processor.place for processor in profile.processors}
    labels = dict(enumerate(machine.places)) | {
        int(place): placed[name] for place, name in zip(machine.place, problem.processors, strict=True)
    }
    ways = {(way.source, way.target): way for way in profile.channels}
    moves = []
    for move in schedule.transfers:
        queue = int(machine.busy[move.source, move.target])
        maker = problem.lists.producer[move.tensor]
        job = members[maker if maker >= 0 else problem.lists.readers[move.tensor][0]].job
        name = problem.tensors[move.tensor].removeprefix(called("", job, len(problem.jobs)))
        if maker >= 0:
            name = members[maker].writes[problem.lists.writes[maker].index(move.tensor)]
        if labels[move.source] == labels[move.target]:
            continue  # a price between processors, not a move
        way = ways.get((labels[move.source], labels[move.target]))
        dtype = graphs[job].tensor[name].dtype if name in graphs[job].tensor else members[maker].dtypes[-1]
        moves.append(
            Transfer(
                tensor=name,
                job=job,
                source=labels[move.source],
                target=labels[move.target],
                dtype="float16" if way is not None and way.halves(dtype) else None,
                over=machine.queues[queue] if queue >= 0 else None,
                reader=ids[move.reader][0] if move.reader >= 0 else None,
                start_us=move.start_us,
                finish_us=move.finish_us,
            )
        )
    return tuple(moves)
