"""The first pass from plan to program: is the plan one of this model, on this device, and which of its steps matter?"""

from collections.abc import Mapping

from agent_sdk.errors import IllegalPlanError, PlanMismatchError
from agent_sdk.model import Model
from agent_sdk.runtimes.base import Processor
from hope_schema import ModelGraph, Plan, Step


def check_identity(plan: Plan, model: Model, processors: Mapping[str, Processor]) -> None:
    """Raise where the plan is for another model or device, or for several networks."""
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


def live_steps(plan: Plan, graph: ModelGraph) -> tuple[list[Step], tuple[str, ...]]:
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
