"""What computes a plan of several networks: one program of all, or one for each run where each has its own time.

Runs that are asked for at once are one program, whose segments follow the plan's order exactly. A run that is asked
for by itself is a program of its own: its answer is held back by nobody, and it waits for nobody's request.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple

from agent_sdk.engine import Device, Executor, Program, build_program
from agent_sdk.errors import ProcessorError, UnplannableError
from agent_sdk.journey.prepared import Prepared
from agent_sdk.journey.rounding import SWITCH, rounding
from agent_sdk.journey.services import Services
from agent_sdk.journey.trial import warm
from agent_sdk.journey.verify import relative_error
from agent_sdk.model.united import UnitedModel, marked, united
from agent_sdk.model.weights import copies_at_once
from agent_sdk.planner.field import Sample
from hope_schema import Plan, PlannedJob, Step, Transfer


class Part(NamedTuple):
    """One run of a network in a round of a plan; times are nanoseconds.

    Attributes:
        executor: computes it; its segments' planned starts count from ``start_ns``.
        release_ns: when it is asked for, from the begin of a round.
        start_ns: when it begins, likewise.
        finish_ns: when it ends, likewise.
        sample: hears whether runs kept their deadlines; None where nobody is to be told.
    """

    executor: Executor
    release_ns: int
    start_ns: int
    finish_ns: int
    sample: Sample | None


def part_of(plan: Plan, job: int) -> Plan:
    """One run's part of a plan of several, with the times that it has there, from its first step on."""
    return _as_one(plan, {job: ""}, plan.jobs[job], _start_us(plan, job))


def plan_of_all(plan: Plan, jobs: Sequence[int], model: UnitedModel) -> Plan:
    """A plan of several networks as a plan of one, of which they are members; ``jobs`` are their runs, in its order."""
    whole = PlannedJob(model_hash=model.graph.model_hash, finish_us=max(plan.jobs[job].finish_us for job in jobs))
    return _as_one(plan, {job: marked(place, "") for place, job in enumerate(jobs)}, whole)


def _as_one(plan: Plan, runs: Mapping[int, str], whole: PlannedJob, start_us: float = 0.0) -> Plan:
    """What a plan has of these runs as one job; their names begin as said by run, their times count from the start."""

    def of_one(own: Step | Transfer) -> dict[str, Any]:
        return {
            "job": 0,
            "start_us": max(own.start_us - start_us, 0.0),
            "finish_us": max(own.finish_us - start_us, 0.0),
        }

    steps = [
        step.model_copy(update={**of_one(step), "ops": tuple(runs[step.job] + op for op in step.ops)})
        for step in plan.steps
        if step.job in runs
    ]
    moves = [
        move.model_copy(update={**of_one(move), "tensor": runs[move.job] + move.tensor})
        for move in plan.transfers
        if move.job in runs
    ]
    own = {step.id for step in steps}
    order = tuple(step for step in plan.order if step in own)
    update = {"jobs": (whole,), "steps": tuple(steps), "order": order, "transfers": tuple(moves)}
    return Plan.model_construct(**{**dict(plan), **update})  # not validated: a name may be as long as names may be


def _start_us(plan: Plan, job: int) -> float:
    return min(step.start_us for step in plan.steps if step.job == job)


def open_parts(
    plan: Plan, jobs: Sequence[int], prepared: Prepared, services: Services, sample: Sample | None
) -> list[Part]:
    """A network's runs in a plan, in the order of their releases; runs that are placed alike share an executor.

    Raises ProcessorError where one answers otherwise than the network's file, UnplannableError where memory has no
    room for so many executors.
    """
    opened: dict[object, Executor] = {}
    found = []
    with ExitStack() as closing:
        for job in sorted(jobs, key=lambda one: (plan.jobs[one].release_us, plan.jobs[one].run)):
            part = part_of(plan, job)
            by_id = part.step
            where = tuple((by_id[step].ops, by_id[step].dtype, by_id[step].processor) for step in part.order)
            alike = (where, plan.jobs[job].cuts)
            if alike not in opened:
                if opened and copies_at_once(prepared.model) < 2:
                    raise UnplannableError(f"memory has no room for all ways in which '{prepared.model.name}' runs")
                program = _program(part, prepared, services)
                opened[alike] = closing.enter_context(_opened(program, prepared, services.device))
            run = plan.jobs[job]
            release, begin, end = (round(us * 1e3) for us in (run.release_us, _start_us(plan, job), run.finish_us))
            found.append(Part(opened[alike], release, begin, end, sample))
        closing.pop_all()
    return found


def _program(plan: Plan, prepared: Prepared, services: Services) -> Program:
    """One run's part, once it has not crashed in a child."""
    fit = services.fit_for(prepared.model, prepared.drawn.tried).processors
    services.first_runs.at_plan(prepared.model, plan, prepared.drawn.tried)
    return build_program(plan, prepared.model, fit)


def _opened(program: Program, prepared: Prepared, device: Device) -> Executor:
    """One run's part, compiled and judged by the network's file."""
    executor = Executor(program, device)
    try:
        for error in prepared.refused({"plan": executor}).values():
            raise ProcessorError(f"the plan of several networks is not used: {error}") from error
    except BaseException:
        executor.let_go()
        raise
    return executor


def open_whole(plan: Plan, jobs: Sequence[int], networks: Sequence[Prepared], services: Services) -> Executor:
    """A run of each network as one program; ``jobs`` are these runs, by network.

    Raises ProcessorError where the networks cannot be compiled as one, or are answered otherwise than by their files.
    """
    parts = [_program(part_of(plan, job), prepared, services) for job, prepared in zip(jobs, networks, strict=True)]
    processors = {name: own for part in parts for name, own in part.processors.items()}
    model = united([part.model for part in parts])
    executor = Executor(build_program(plan_of_all(plan, jobs, model), model, processors), services.device)
    try:
        answers, failures = warm({"whole": executor}, model.feed(one.drawn.tried[0] for one in networks))
        for error in failures.values():
            raise ProcessorError(f"the networks do not run as one: {error}") from error
        for part, prepared, found in zip(parts, networks, model.answers(answers["whole"]), strict=True):
            _refuse_other(part, prepared, found, services.device)
    except BaseException:
        executor.let_go()
        raise
    return executor


def _refuse_other(part: Program, prepared: Prepared, found: Mapping[str, Any], device: Device) -> None:
    """Raise ProcessorError where a network is answered otherwise than by its file.

    What rounding does not explain at first sight its part is asked, judged by itself: it may magnify what is rounded.
    """
    feed = prepared.drawn.tried[0]
    tolerance = max(rounding(prepared.model.graph, precision).tolerance for precision in part.precisions)
    if relative_error(found, prepared.judge(feed).outputs) > tolerance:
        with _opened(part, prepared, device) as alone:
            wanted = alone.run(feed)[0]
        if relative_error(found, wanted) > SWITCH:
            raise ProcessorError(f"the networks as one answer otherwise than '{prepared.model.name}'")
