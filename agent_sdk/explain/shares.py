"""Whose time is it within a segment? Runtimes time segments; what lies between is shared out as it was predicted."""

from dataclasses import dataclass

from agent_sdk.engine.program import Program, ProgramSegment
from agent_sdk.model.work import work
from hope_schema import Op, Step


@dataclass(frozen=True)
class Share:
    """An op's part of its step's time, and of its segment's."""

    op: Op
    step: Step
    of_step: float
    of_segment: float


def shares(program: Program, segment: ProgramSegment) -> list[Share]:
    """The ops of a segment in order, each with its parts, which add up to 1.

    Steps share a segment by what they take alone, where the plan says it; the ops of a step, and steps of which nothing
    is known, by their work.
    """
    graph = program.graph
    carried = frozenset(segment.ops)
    steps = [program.plan.step[step] for step in segment.steps]
    ops = {step.id: [graph.op[name] for name in step.ops if name in carried] for step in steps}
    load = {step.id: sum(work(graph, op) for op in ops[step.id]) for step in steps}
    known = {step.id: step.alone_us for step in steps if step.alone_us is not None}
    of_step = known if len(known) == len(steps) and sum(known.values()) > 0 else load
    total = sum(of_step.values())
    found = []
    for step in steps:
        for op in ops[step.id]:
            part = work(graph, op) / load[step.id]
            found.append(Share(op, step, part, part * of_step[step.id] / total))
    return found
