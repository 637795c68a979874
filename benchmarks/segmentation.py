"""What cutting costs: a network in pieces on one core against the uncut network there, both through the engine."""

from __future__ import annotations

import statistics
import time

from agent_sdk.engine import Device, Executor, build_program
from agent_sdk.processors.discovery import discover
from agent_sdk.processors.ort import OrtProcessor
from agent_sdk.reader import Model, read_model
from agent_sdk.single import single_processor_plan
from agent_sdk.verify import random_inputs
from hope_schema import Plan

ROUNDS = 20
PIECES = (1, 16)
"""Super-ops per piece."""
TWIN = "twin@0"


def loss(name: str) -> dict[str, float]:
    """Pieces ÷ whole on the first core, by super-ops per piece: CPU time of interleaved runs, 20th percentile.

    A second processor on the same core, equal but for its name, is what makes the engine cut: plans change between
    the two wherever a piece ends.
    """
    model = read_model(name)
    first, second = (discover("ort@0")[0] for _ in range(2))
    assert isinstance(second, OrtProcessor)
    second.spec = second.spec.model_copy(update={"id": TWIN})
    inputs = random_inputs(model.graph, 0)
    with Device([first, second]) as device:
        executors = {
            size: Executor(build_program(pieces(model, first.id, size), model, device.processors), device)
            for size in (0, *PIECES)
        }
        times: dict[int, list[float]] = {size: [] for size in executors}
        for turn in range(-2, ROUNDS):
            for size, executor in executors.items():
                started = time.thread_time_ns()
                executor.run(inputs)
                if turn >= 0:
                    times[size].append(float(time.thread_time_ns() - started))
        for executor in executors.values():
            executor.close()
    low = {size: statistics.quantiles(samples, n=5)[0] for size, samples in times.items()}
    return {str(size): round(low[size] / low[0], 4) for size in PIECES}


def pieces(model: Model, processor: str, size: int) -> Plan:
    """Everything on one core, changing name after every ``size`` super-ops; never for 0."""
    plan = single_processor_plan(model.graph, processor, soc="benchmark", frequency="fixed")
    if size == 0:
        return plan
    steps = tuple(
        step.model_copy(update={"processor": TWIN}) if index // size % 2 else step
        for index, step in enumerate(plan.steps)
    )
    return plan.model_copy(update={"steps": steps, "processors": (processor, TWIN)})
