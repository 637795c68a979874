"""What changed between two plans. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from hope_schema import MovedStep, Plan, Step


@dataclass(frozen=True)
class Moves:
    """Steps that run elsewhere, how many do not, and the ops that only one of the plans has."""

    moved: tuple[MovedStep, ...]
    unmoved: int
    only_before: tuple[str, ...]
    only_after: tuple[str, ...]


def moves(before: Plan, after: Plan) -> Moves:
    """Compare where the same ops run; a step counts by its first op, in the order in which the plan after runs them."""
    old = {(step.job, op): step for step in before.steps for op in step.ops}
    new = {(step.job, op) for step in after.steps for op in step.ops}
    moved, unmoved = [], 0
    for step in (after.step[number] for number in after.order):
        was = old.get((step.job, step.ops[0]))
        if was is None:
            continue
        if was.processor == step.processor:
            unmoved += 1
        else:
            moved.append(_moved(was, step))
    only_before = tuple(op for job, op in old if (job, op) not in new)
    only_after = tuple(op for step in after.steps for op in step.ops if (step.job, op) not in old)
    return Moves(tuple(moved), unmoved, only_before, only_after)


def _moved(before: Step, after: Step) -> MovedStep:
    return MovedStep(
        job=after.job,
        ops=after.ops,
        before=before.processor,
        after=after.processor,
        before_us=before.finish_us - before.start_us,
        after_us=after.finish_us - after.start_us,
        cause=after.cause,
    )
