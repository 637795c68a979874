"""Side by side: who is a neighbour, that they really work meanwhile, and what is made of the times."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest

from agent_sdk.machine.soc import Soc
from agent_sdk.machine.timing import Timing, Turn, Turns
from agent_sdk.measure import neighbours as module
from agent_sdk.measure.neighbours import (
    end_us,
    kept_busy,
    like_the_nearest,
    neighbours,
    segment_of_all,
    slowdown,
    stretch,
)
from agent_sdk.runtimes.base import Processor, Segment
from agent_sdk.runtimes.ort.processor import OrtProcessor
from tests.agent.runtimes.networks import random_model
from tests.agent.test_session_shapes import until

SOC = Soc("test", "test", dict.fromkeys(range(16), "core"))


def ort(first: int, last: int) -> OrtProcessor:
    """ONNX Runtime on these cores, which need not exist."""
    made = OrtProcessor(SOC, frozenset(range(first, last + 1)))
    made.caller_cores = frozenset()
    return made


def test_neighbours_are_as_wide_and_share_nothing() -> None:
    """Equal ones where there are any, others on the cores that are left; never on cores that are taken."""
    offered = [ort(0, 15), ort(0, 7), ort(8, 15), ort(0, 3), ort(4, 7), ort(8, 11), ort(12, 15), ort(0, 0), ort(1, 1)]
    assert [other.id for other in neighbours(offered[1], offered)] == ["ort@8-15"]
    assert [other.id for other in neighbours(offered[3], offered)] == ["ort@4-7", "ort@8-11", "ort@12-15"]
    assert neighbours(offered[0], offered) == []
    assert [other.id for other in neighbours(ort(0, 0), offered)][:2] == ["ort@1", "ort@4-7"]


@pytest.mark.parametrize(("ratio", "cores", "factor"), [(1.2, 16, 1.2), (1.1, 8, 1.2), (0.9, 16, 1.0), (99.0, 16, 16)])
def test_what_few_neighbours_cost_is_scaled_up(
    ratio: float, cores: int, factor: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half of the other cores at work cost half; nobody is faster beside others, nor slower without end."""
    own = ort(0, 3)
    offered = [own, *[ort(first, first + 3) for first in range(4, cores, 4)], ort(0, 15)]
    if cores == 8:  # four of the twelve other cores are at work; the rest is only in the gang of all
        factor = 1.0 + (ratio - 1.0) / (4 / 12)
    monkeypatch.setattr(module, "bound", lambda executable: lambda: None)
    monkeypatch.setattr(OrtProcessor, "compile", lambda self, segment: SimpleNamespace(close=lambda: None))
    found = Turns({"alone": [Turn(100.0)], "beside": [Turn(100.0 * ratio)]})
    monkeypatch.setattr(module, "take_turns", lambda calls, **_: found)
    assert slowdown(own, offered, random_model(1, steps=4), time.monotonic() + 9) == pytest.approx(factor)


def test_who_was_not_measured_is_slowed_like_the_nearest() -> None:
    """In width, of the same runtime, the narrower of two; nothing for who has no neighbours, or nobody's figure."""
    offered = [ort(0, 15), ort(0, 7), ort(8, 15), ort(0, 3), ort(4, 7), ort(0, 1), ort(2, 3), ort(0, 0)]
    single, pair, eight = offered[-1].spec.kind, offered[5].spec.kind, offered[1].spec.kind
    found = like_the_nearest([offered[0], offered[1], offered[3]], offered, {single: 1.5, pair: 1.4})
    assert found == {eight: 1.4, offered[3].spec.kind: 1.4}
    assert like_the_nearest([offered[3]], offered, {pair: 1.4, eight: 1.1}) == {offered[3].spec.kind: 1.4}
    assert like_the_nearest([offered[3]], offered, {"another": 1.4}) == {}


def test_neighbours_work_when_told_and_end_with_the_block(processors: list[Processor]) -> None:
    """While they are to work they do, while they are to rest they do not, and no thread is left."""
    made: list[int] = []

    def call() -> None:
        made.append(1)
        time.sleep(0.001)

    with kept_busy(processors[:1], [call]) as at_work:
        assert not made
        at_work(True)
        until(lambda: bool(made))
        at_work(False)
        so_far = len(made)
        time.sleep(0.05)
        assert len(made) == so_far
        at_work(True)
    assert "hope-neighbour" not in {thread.name for thread in threading.enumerate()}


def test_who_takes_longer_beside_others_is_said_to(monkeypatch: pytest.MonkeyPatch) -> None:
    """A processor whose calls take twice as long while its neighbour computes has a factor of about two."""
    own, other = ort(0, 0), ort(1, 1)
    made: list[int] = []

    def call(processor: Processor) -> None:
        before = len(made)
        time.sleep(0.001 if processor is other else 0.01)
        if processor is other:
            made.append(1)
        elif len(made) > before:
            time.sleep(0.01)

    def compiled(self: OrtProcessor, _: Segment) -> SimpleNamespace:
        return SimpleNamespace(close=lambda: None, processor=self)

    monkeypatch.setattr(module, "bound", lambda executable: lambda: call(executable.processor))
    monkeypatch.setattr(OrtProcessor, "compile", compiled)
    found = slowdown(own, [own, other], random_model(1, steps=4), time.monotonic() + 30)
    assert found == pytest.approx(2.0, rel=0.25)


def test_a_border_costs_what_two_pieces_take_beyond_the_whole(
    processors: list[Processor], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And beyond the launch, which is charged by itself; nothing where tensors stay as the runtime has them."""
    model = random_model(3, steps=12)
    pair = (stretch(model)[0], stretch(model)[1])
    both = sum(len(super_op.ops) for super_op in pair)
    monkeypatch.setattr(
        module, "time_segment", lambda _, segment, __: Timing(100.0 if len(segment.ops) == both else 70.0, 0.0, 1)
    )
    monkeypatch.setattr(module, "_pairs", lambda model: [pair])
    plain: Any = SimpleNamespace(hands_over_native=False)
    assert end_us(plain, model, 15.0, time.monotonic() + 9) == 25.0
    assert end_us(plain, model, 90.0, time.monotonic() + 9) == 0.0
    assert end_us(next(p for p in processors if p.hands_over_native), model, 0.0, 0.0) == 0.0


@pytest.mark.parametrize("seed", range(4))
def test_a_stretch_is_a_legal_segment(seed: int, processors: list[Processor]) -> None:
    """It reads nothing that it makes, makes what others read, and every runtime takes it."""
    model = random_model(seed, steps=20)
    segment = segment_of_all(stretch(model), model)
    made = {name for op in segment.ops for name in model.graph.op[op].outputs}
    assert not set(segment.inputs) & made
    assert set(segment.outputs) <= made
    processors[0].compile(segment).close()
