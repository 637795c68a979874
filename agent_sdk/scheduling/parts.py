"""What computes a plan of several networks: one program of all, or one for each run where each has its own time.

Runs that are asked for at once are one program, whose segments follow the plan's order exactly. A run that is asked
for by itself is a program of its own: its answer is held back by nobody, and it waits for nobody's request.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple

from agent_sdk.engine import Device, Executor, build_program
from agent_sdk.errors import ProcessorError, UnplannableError
from agent_sdk.journey.prepared import Prepared
from agent_sdk.journey.rounding import SWITCH
from agent_sdk.journey.services import Services
from agent_sdk.journey.trial import warm
from agent_sdk.journey.verify import relative_error
from agent_sdk.model.united import UnitedModel, marked, united
from agent_sdk.model.weights import copies_at_once
from agent_sdk.planner.field import Sample
from agent_sdk.runtimes.base import Processor
from hope_schema import Plan, PlannedJob


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
    mine = [step for step in plan.steps if step.job == job]
    start = min(step.start_us for step in mine)

    def moved(us: float) -> float:
        return max(us - start, 0.0)

    steps = tuple(
        step.model_copy(update={"job": 0, "start_us": moved(step.start_us), "finish_us": moved(step.finish_us)})
        for step in mine
    )
    own = {step.id for step in steps}
    return plan.model_copy(
        update={
            "jobs": (plan.jobs[job],),
            "steps": steps,
            "order": tuple(step for step in plan.order if step in own),
            "transfers": tuple(
                move.model_copy(update={"job": 0, "start_us": moved(move.start_us), "finish_us": moved(move.finish_us)})
                for move in plan.transfers
                if move.job == job
            ),
        }
    )


def open_parts(
    plan: Plan, jobs: Sequence[int], prepared: Prepared, services: Services, device: Device, sample: Sample | None
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
                opened[alike] = closing.enter_context(_opened(part, prepared, services, device))
            start = min(step.start_us for step in plan.steps if step.job == job)
            release, begin, end = (
                round(us * 1e3) for us in (plan.jobs[job].release_us, start, plan.jobs[job].finish_us)
            )
            found.append(Part(opened[alike], release, begin, end, sample))
        closing.pop_all()
    return found


def _opened(plan: Plan, prepared: Prepared, services: Services, device: Device) -> Executor:
    """One run's part, compiled and judged by the network's file."""
    feed = prepared.drawn.tried[0]
    fit: Mapping[str, Any] = services.fit_for(prepared.model, prepared.drawn.tried).processors
    services.first_runs.at_plan(prepared.model, plan, prepared.drawn.tried)
    executor = Executor(build_program(plan, prepared.model, fit), device)
    try:
        answers, failures = warm({"plan": executor}, feed)
        wrong = {**failures, **prepared.judge(feed).agreement({"plan": executor}, answers).wrong}
        if wrong:
            raise ProcessorError(f"the plan of several networks is not used: {wrong['plan']}") from wrong["plan"]
    except BaseException:
        executor.let_go()
        raise
    return executor


def plan_of_all(plan: Plan, jobs: Sequence[int], model: UnitedModel) -> Plan:
    """A plan of several networks as a plan of one, of which they are members; ``jobs`` are their runs, in its order."""
    place = {job: index for index, job in enumerate(jobs)}
    whole = PlannedJob(model_hash=model.graph.model_hash, finish_us=max(plan.jobs[job].finish_us for job in jobs))
    steps = [
        step.model_copy(update={"job": 0, "ops": tuple(marked(place[step.job], op) for op in step.ops)})
        for step in plan.steps
        if step.job in place
    ]
    moves = [
        move.model_copy(update={"job": 0, "tensor": marked(place[move.job], move.tensor)})
        for move in plan.transfers
        if move.job in place
    ]
    own = {step.id for step in steps}
    order = tuple(step for step in plan.order if step in own)
    update = {"jobs": (whole,), "steps": tuple(steps), "order": order, "transfers": tuple(moves)}
    return Plan.model_construct(**{**dict(plan), **update})


def open_whole(
    plan: Plan, jobs: Sequence[int], networks: Sequence[Prepared], services: Services, device: Device
) -> Executor:
    """A run of each network as one program; ``jobs`` are these runs, by network.

    Each network's part is compiled by itself first, judged by the network's file, and let go again. Raises
    ProcessorError where the networks cannot be compiled as one, or do not compute what their parts do.
    """
    members, alone = [], []
    processors: dict[str, Processor] = {}
    for job, prepared in zip(jobs, networks, strict=True):
        with _opened(part_of(plan, job), prepared, services, device) as part:
            members.append(part.program.model)
            alone.append(part.run(prepared.drawn.tried[0])[0])
        processors |= services.fit_for(prepared.model, prepared.drawn.tried).processors
    model = united(members)
    executor = Executor(build_program(plan_of_all(plan, jobs, model), model, processors), device)
    try:
        answers, failures = warm({"whole": executor}, model.feed(one.drawn.tried[0] for one in networks))
        for error in failures.values():
            raise ProcessorError(f"the networks do not run as one: {error}") from error
        for prepared, wanted, found in zip(networks, alone, model.answers(answers["whole"]), strict=True):
            if relative_error(found, wanted) > SWITCH:
                raise ProcessorError(f"the networks as one answer otherwise than '{prepared.model.name}'")
    except BaseException:
        executor.let_go()
        raise
    return executor
