"""From an outcome back to the contract: a Plan whose body depends on the inputs, the seed and the rounds only."""

from __future__ import annotations

from hope_schema import HOST, ModelGraph, Plan, PlannedJob, Profile, Step, Transfer, merge
from planner_api.planning.judge.causes import causes
from planner_api.planning.judge.simulator import Schedule
from planner_api.planning.optimise import Outcome
from planner_api.planning.problem import Problem

MAX_GAP = 1e9
"""What a gap reads when the bound is zero and the makespan is not."""


def assemble(graph: ModelGraph, profile: Profile, problem: Problem, outcome: Outcome) -> Plan:
    """Write a plan down: steps in topological order, order by start time, transfers as they are issued."""
    schedule, bound = outcome.solution.schedule, outcome.bound
    supers = merge(graph)
    why = causes(problem, schedule)
    steps = tuple(
        Step(
            id=op,
            ops=tuple(member.id for member in super_op.ops),
            dtype=graph.tensor[super_op.id].dtype,
            processor=problem.processors[schedule.assignment[op]],
            start_us=schedule.start_us[op],
            finish_us=schedule.finish_us[op],
            cause=why[op],
        )
        for op, super_op in enumerate(supers)
    )
    place = {op: index for index, op in enumerate(schedule.sequence)}
    gap = schedule.makespan_us / bound.us - 1 if bound.us > 0 else (MAX_GAP if schedule.makespan_us > 0 else 0.0)
    return Plan(
        jobs=(PlannedJob(model_hash=graph.model_hash, finish_us=schedule.makespan_us),),
        soc=profile.soc,
        frequency=profile.frequency,
        processors=problem.processors,
        steps=steps,
        order=tuple(sorted(place, key=lambda op: (schedule.start_us[op], place[op]))),
        transfers=_transfers(profile, problem, schedule),
        makespan_us=schedule.makespan_us,
        lower_bound_us=bound.us,
        gap=min(max(gap, 0.0), MAX_GAP),
        method=outcome.solution.method,
        bound_method=bound.method,
        single_processor_us={problem.processors[p]: plan.makespan_us for p, plan in outcome.singles.items()},
        profile_version=profile.version,
        filled=tuple(sentence[:1024] for sentence in problem.filled),
        notes=tuple(note[:1024] for note in outcome.solution.notes[:64]),
    )


def _transfers(profile: Profile, problem: Problem, schedule: Schedule) -> tuple[Transfer, ...]:
    """The moves between places, each with the resource that carries it or the step that pays for it."""
    placed = {processor.id: processor.place for processor in profile.processors}
    places = [*(placed[name] for name in problem.processors), HOST]
    busy = {(channel.source, channel.target): channel.busy for channel in profile.channels}
    payer: dict[tuple[int, int], int] = {}
    for op in schedule.sequence:
        for tensor in problem.reads[op]:
            payer.setdefault((tensor, schedule.assignment[op]), op)
    moves = []
    for move in schedule.transfers:
        source, target = places[move.source], places[move.target]
        if source == target:
            continue
        over = busy.get((source, target))
        moves.append(
            Transfer(
                tensor=problem.tensors[move.tensor],
                source=source,
                target=target,
                over=over,
                reader=payer.get((move.tensor, move.target)) if over is None else None,
                start_us=move.start_us,
                finish_us=move.finish_us,
            )
        )
    return tuple(moves)
