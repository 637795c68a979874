"""What cutting costs: a network in pieces on one core against the uncut network there, both through the engine."""

from __future__ import annotations

import statistics
import time
from contextlib import ExitStack

import numpy as np

from agent_sdk.engine import Device, Executor, build_program
from agent_sdk.engine.single import single_processor_plan
from agent_sdk.model import Model, read_model
from agent_sdk.model.feeds import draw
from agent_sdk.runtimes.offered import discover
from agent_sdk.runtimes.ort.processor import OrtProcessor
from hope_schema import Plan

ROUNDS = 20
SECONDS = 5.0
"""At least so many rounds, and for so long."""
PIECES = (1, 16)
"""Super-ops per piece."""
TWIN = "twin@0"


def loss(name: str) -> dict[str, float]:
    """Pieces ÷ whole on the first core, by super-ops per piece: CPU time within one round, median over the rounds.

    A second processor on the same core, equal but for its name, is what makes the engine cut: plans change between
    the two wherever a piece ends.
    """
    model = read_model(name)
    first, second = (discover("ort@0")[0] for _ in range(2))
    assert isinstance(second, OrtProcessor)
    second.spec = second.spec.model_copy(update={"id": TWIN})
    inputs = draw(model, 0)
    found = {}
    with Device([first, second]) as device:
        for size in PIECES:
            with ExitStack() as ready:
                cut, whole = (
                    ready.enter_context(
                        Executor(build_program(pieces(model, first.id, length), model, device.processors), device)
                    )
                    for length in (size, 0)
                )
                ratios: list[float] = []
                over = time.monotonic() + SECONDS
                while len(ratios) < ROUNDS or time.monotonic() < over:
                    ratios.append(_cpu_ns(cut, inputs) / _cpu_ns(whole, inputs))
            found[str(size)] = round(statistics.median(ratios), 4)
    return found


def _cpu_ns(executor: Executor, inputs: dict[str, np.ndarray]) -> int:
    """CPU time of a second run: the first brings back into the caches what others pushed out."""
    executor.run(inputs)
    started = time.thread_time_ns()
    executor.run(inputs)
    return time.thread_time_ns() - started


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
