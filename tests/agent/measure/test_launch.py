"""What it costs to cut segments apart."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest

from agent_sdk.machine.timing import Timing
from agent_sdk.measure import launch as module
from agent_sdk.measure.launch import ROWS, STRETCH, end_us, launch_us, segment_of_all, stretch
from agent_sdk.runtimes.base import Processor
from agent_sdk.runtimes.ort.processor import OrtProcessor
from tests.agent.runtimes.networks import random_model


def test_a_border_costs_what_two_pieces_take_beyond_the_whole(
    processors: list[Processor], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And beyond the launch, which is charged by itself; nothing where tensors stay as the runtime has them."""
    model = random_model(3, steps=12)
    pair = (stretch(model, STRETCH)[0], stretch(model, STRETCH)[1])
    both = sum(len(super_op.ops) for super_op in pair)
    monkeypatch.setattr(
        module, "time_segment", lambda _, segment, __: Timing(100.0 if len(segment.ops) == both else 70.0, 0.0, 1)
    )
    monkeypatch.setattr(module, "_pairs", lambda model: [pair])
    plain: Any = SimpleNamespace(hands_over_native=False)
    assert end_us(plain, model, 15.0, time.monotonic() + 9) == 25.0
    assert end_us(plain, model, 90.0, time.monotonic() + 9) == 0.0
    assert end_us(next(p for p in processors if p.hands_over_native), model, 0.0, 0.0) == 0.0


def test_a_launch_is_that_of_a_plans_segment(processors: list[Processor], monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers stay on their cores and end their spinning with the run, as nothing that is a whole network's."""
    own = next(p for p in processors if isinstance(p, OrtProcessor) and p.spec.threads > 1)
    opened, compiled = [], own._compiled

    def recorded(*given: Any, **named: Any) -> Any:
        opened.append((named["lingers"], named["moves"]))
        return compiled(*given, **named)

    monkeypatch.setattr(own, "_compiled", recorded)
    launch_us(own, ROWS, time.monotonic())
    assert opened == [(False, False)] * 2


@pytest.mark.parametrize("seed", range(4))
def test_a_stretch_is_a_legal_segment(seed: int, processors: list[Processor]) -> None:
    """It reads nothing that it makes, makes what others read, and every runtime takes it."""
    model = random_model(seed, steps=20)
    segment = segment_of_all(stretch(model, STRETCH), model)
    made = {name for op in segment.ops for name in model.graph.op[op].outputs}
    assert not set(segment.inputs) & made
    assert set(segment.outputs) <= made
    processors[0].compile(segment).close()
