"""Why every op is where it is: a plan's own words beside what a run of it took."""

from collections.abc import Mapping
from typing import Any, Final

from agent_sdk.engine.trace import Trace
from agent_sdk.explain.explanation import ExplainedOp, Explanation, measured_bars, planned_bars
from agent_sdk.explain.shares import shares
from agent_sdk.journey.prepared import Prepared
from agent_sdk.journey.trial import PLAN
from hope_schema import ModelGraph, Op, Plan, Step, merge
from hope_schema.cutgraph import node_of
from hope_schema.cutting import whole_because
from hope_schema.wording import reason

ALONE: Final = "the whole network on {}: there was no planner to ask"
OPAQUE: Final = "its parts stay together, because what passes between them has no static shape or is none of numbers"


def explain(prepared: Prepared, inputs: Mapping[str, Any], *, runs: int, notes: tuple[str, ...]) -> Explanation:
    """Run the plan, also where somebody else answers, and put what was measured beside what was predicted.

    The run that counts is the middle one. Raises what ``Executor.run`` raises.
    """
    executor = prepared.plan_executor
    traces = sorted((executor.traced(inputs) for _ in range(runs)), key=lambda trace: trace.total_us)
    trace = traces[len(traces) // 2]
    plan = trace.program.plan
    here = _made_here(plan)
    return Explanation(
        model=prepared.model.name,
        answers=prepared.current,
        why=_who(prepared),
        processors=trace.program.processors_used,
        planned_us=None if here else plan.makespan_us,
        lower_bound_us=None if here else plan.lower_bound_us,
        measured_us=trace.total_us,
        method="" if here else plan.method,
        ops=_rows(trace, prepared.model.graph),
        planned=() if here else planned_bars(plan),
        measured=measured_bars(trace),
        notes=notes,
    )


def explain_whole(name: str, runtime: str, measured_us: float, notes: tuple[str, ...]) -> Explanation:
    """What there is to say where a runtime runs the whole network."""
    return Explanation(
        model=name,
        answers=f"whole:{runtime}",
        why=notes[0] if notes else f"{runtime} answers with the whole network until there is a plan",
        processors=(runtime,),
        measured_us=measured_us,
        notes=notes,
    )


def _who(prepared: Prepared) -> str:
    us, current = prepared.quiet_us, prepared.current
    others = {name: took for name, took in us.items() if name != current}
    if current not in us or not others:
        return f"{_named(current)} answers; there is nobody to compare it with"
    other = PLAN if PLAN in others else min(others, key=lambda name: others[name])
    verb = "is the fastest here" if us[current] <= min(others.values()) else "answers under the present load"
    return f"{_named(current)} {verb}: {us[current] / 1e3:.2f} ms at load, {_named(other)} {others[other] / 1e3:.2f} ms"


def _named(contender: str) -> str:
    return "the plan" if contender == PLAN else f"{contender} alone"


def _rows(trace: Trace, source: ModelGraph) -> tuple[ExplainedOp, ...]:
    program = trace.program
    shapes = {tensor.name: tensor.shape for tensor in source.tensors}
    whole = {op.id: whole_because(node_of(op), shapes) for op in merge(source)}
    plan, graph = program.plan, program.graph
    here = _made_here(plan)
    split = {cut.op for job in plan.jobs for cut in job.cuts}
    took = {span.segment: span.us for span in trace.segments}
    rows: dict[str, ExplainedOp] = {}
    for segment in program.segments:
        for share in shares(program, segment):
            step, op = share.step, share.op
            other = step.next_best
            why = ALONE.format(step.processor) if here else reason(step)
            rows[op.id] = ExplainedOp(
                op=op.id,
                type=op.type,
                super_op=step.ops[-1],
                segment=segment.index,
                processor=step.processor,
                predicted_us=(step.finish_us - step.start_us) * share.of_step,
                alone_us=None if step.alone_us is None else step.alone_us * share.of_step,
                measured_us=took[segment.index] * share.of_segment,
                next_best=other.processor if other else None,
                next_best_us=other.us * share.of_step if other else None,
                cause="single" if here else step.cause.value,
                why="; ".join([why, *_besides(op, step, split), *_unsplit(step, split, whole)]),
                whole=whole.get(step.ops[-1]),
            )
    for step in plan.steps:
        for name in step.ops:
            if name not in rows:
                rows[name] = ExplainedOp(
                    op=name,
                    type=graph.op[name].type,
                    super_op=step.ops[-1],
                    processor=step.processor,
                    cause="unused" if name in program.dead else "in_place",
                    why="left out: no output depends on it"
                    if name in program.dead
                    else "stands in one piece of memory anyway: nothing is copied"
                    if name in program.views
                    else "is an output: it is stored part by part",
                )
    return tuple(rows[name] for step in plan.order for name in plan.step[step].ops)


def _made_here(plan: Plan) -> bool:
    return plan.profile_version == 0


def _unsplit(step: Step, split: set[str], whole: Mapping[str, str | None]) -> list[str]:
    """Why a super-op is not split in a plan that splits others."""
    name = step.ops[-1]
    if not split or name in split or name not in whole:
        return []
    return [f"not split: {whole[name] or 'no worthwhile split of it was found'}"]


def _besides(op: Op, step: Step, split: set[str]) -> list[str]:
    """What else there is to say of an op: what it hides, that it computes a part, or serves those that do."""
    said = []
    hidden = op.attributes.get("ops")
    if "anatomy" in op.attributes:
        said.append(f"hides {hidden}: {OPAQUE}")
    # NOTE: ``hope_schema.cutting`` says what parts, slices and joins are called.
    whole, bracket, region = step.ops[-1].partition("[")
    if not bracket:
        return [*said, f"joins the parts of '{whole}'"] if whole in split and op.type == "Concat" else said
    spans = [span.split(":") for span in region.partition("]")[0].split(",")]
    if all(len(span) == 3 for span in spans) and split:
        what = "part" if whole in split and op.type not in ("Slice", "Concat") else "taken for a part:"
        bounds, axes = " and ".join(f"{one[1]} to {one[2]}" for one in spans), " and ".join(one[0] for one in spans)
        said.append(f"{what} {bounds} of '{whole}' along {'axis' if len(spans) == 1 else 'axes'} {axes}")
    return said
