"""The plan that needs no planner: the whole model on one processor."""

from collections.abc import Collection, Iterable
from itertools import accumulate

from agent_sdk.engine import Device, Executor, build_program
from agent_sdk.model import Model
from agent_sdk.model.work import work
from agent_sdk.runtimes.base import Processor
from hope_schema import Cause, ModelGraph, Plan, PlannedJob, Step, merge


def whole_run(
    model: Model,
    processor: Processor,
    device: Device,
    in_flight: int = 1,
    *,
    equals: Iterable[Processor] = (),
    borders: Collection[int] = (),
    latency_us: float = 0.0,
) -> Executor:
    """The whole network on one processor, as the engine runs it; ``device`` lends the lanes. Raises ProcessorError.

    ``equals`` are processors that each of its runs may be on instead; ``borders`` are super-ops before which it lets
    others in; ``latency_us`` is as for ``single_processor_plan``.
    """
    plan = single_processor_plan(model.graph, processor.id, soc="here", frequency="now", latency_us=latency_us)
    processors = {one.id: one for one in (processor, *equals)}
    return Executor(build_program(plan, model, processors, borders), device, in_flight)


def single_processor_plan(
    graph: ModelGraph, processor: str, *, soc: str, frequency: str, latency_us: float = 0.0
) -> Plan:
    """Return the plan that runs every super-op of ``graph`` on ``processor``, one after the other.

    ``latency_us`` is the whole model's time there, where it is known; steps share it by their work, because nothing
    finer was measured.
    """
    super_ops = merge(graph)
    works = [sum(work(graph, op) for op in super_op.ops) for super_op in super_ops]
    ends = [latency_us * done / sum(works) for done in accumulate(works, initial=0.0)]
    steps = tuple(
        Step(
            id=index,
            ops=tuple(op.id for op in super_op.ops),
            dtype=graph.tensor[super_op.outputs[0]].dtype,
            processor=processor,
            start_us=ends[index],
            finish_us=ends[index + 1],
            cause=Cause.ONLY_SUPPORTED,
        )
        for index, super_op in enumerate(super_ops)
    )
    return Plan(
        jobs=(PlannedJob(model_hash=graph.model_hash, finish_us=latency_us),),
        soc=soc,
        frequency=frequency,
        processors=(processor,),
        steps=steps,
        order=tuple(step.id for step in steps),
        makespan_us=latency_us,
        lower_bound_us=latency_us,
        gap=0.0,
        method="single",
        bound_method="single",
        single_processor_us={processor: latency_us},
        profile_version=0,
        notes=(f"made on the device without a planner: everything on {processor}",),
    )
