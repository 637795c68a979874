"""Rehearsals: who is a neighbour, copies that compute what the network does, a legal plan, and what is read off it."""

from __future__ import annotations

import math
import os
import time
from collections import defaultdict
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper

from agent_sdk.engine import Executor, build_program
from agent_sdk.engine.trace import Span
from agent_sdk.machine.soc import Soc
from agent_sdk.machine.timing import Timing
from agent_sdk.measure import rehearsal
from agent_sdk.measure.launch import segment_of_all, stretch
from agent_sdk.measure.rehearsal import dealt, like_the_nearest, neighbours, rehearse, side_by_side
from agent_sdk.measure.truth import Costs
from agent_sdk.model import Model, extract, read_model
from agent_sdk.model.feeds import draw
from agent_sdk.model.nodes import subgraphs
from agent_sdk.model.united import marked
from agent_sdk.runtimes.base import Processor
from agent_sdk.runtimes.ort.graph import FrozenGraphs
from agent_sdk.runtimes.ort.processor import OrtProcessor
from hope_schema import merge
from tests.agent.runtimes.networks import random_model

SOC = Soc("test", "test", dict.fromkeys(range(16), "core"))


def ort(first: int, last: int) -> OrtProcessor:
    """ONNX Runtime on these cores, which need not exist."""
    made = OrtProcessor(SOC, frozenset(range(first, last + 1)), frozen=FrozenGraphs(Path(os.devnull)))
    made.caller_cores = frozenset()
    return made


def alone(model: Model, processors: list[Processor]) -> dict[tuple[str, str], Timing | None]:
    """Made-up latencies, of every op on every kind."""
    signatures = sorted({super_op.signature for super_op in merge(model.graph)})
    kinds = {own.spec.kind for own in processors}
    return {(name, kind): Timing(10.0 + row, 0.0, 1) for row, name in enumerate(signatures) for kind in kinds}


def singles(processors: list[Processor]) -> list[Processor]:
    """Single cores of one runtime."""
    return [own for own in processors if own.spec.runtime == "ort" and own.spec.threads == 1]


def answered(model: Model, feed: Mapping[str, Any]) -> dict[str, Any]:
    """What ONNX Runtime makes of a model."""
    session = onnxruntime.InferenceSession(model.proto.SerializeToString(), providers=["CPUExecutionProvider"])
    return dict(zip(model.graph.outputs, session.run(list(model.graph.outputs), dict(feed)), strict=True))


def test_neighbours_are_as_wide_and_share_nothing() -> None:
    """Equal ones where there are any, others on the cores that are left; never on cores that are taken."""
    offered = [ort(0, 15), ort(0, 7), ort(8, 15), ort(0, 3), ort(4, 7), ort(8, 11), ort(12, 15), ort(0, 0), ort(1, 1)]
    assert [other.id for other in neighbours(offered[1], offered)] == ["ort@8-15"]
    assert [other.id for other in neighbours(offered[3], offered)] == ["ort@4-7", "ort@8-11", "ort@12-15"]
    assert neighbours(offered[0], offered) == []
    assert [other.id for other in neighbours(ort(0, 0), offered)][:2] == ["ort@1", "ort@4-7"]


def test_who_was_not_rehearsed_is_slowed_like_the_nearest() -> None:
    """In width, of the same runtime, the narrower of two; nothing for who has no neighbours, or nobody's figure."""
    offered = [ort(0, 15), ort(0, 7), ort(8, 15), ort(0, 3), ort(4, 7), ort(0, 1), ort(2, 3), ort(0, 0)]
    single, pair, eight = offered[-1].spec.kind, offered[5].spec.kind, offered[1].spec.kind
    narrow, wide = Costs(9.0, 1.5), Costs(9.0, 1.4)
    found = like_the_nearest([offered[0], offered[1], offered[3]], offered, {single: narrow, pair: wide})
    assert found == {eight: 1.4, offered[3].spec.kind: 1.4}
    known = {pair: wide, eight: Costs(9.0, 1.1)}
    assert like_the_nearest([offered[3]], offered, known) == {offered[3].spec.kind: 1.4}
    assert like_the_nearest([offered[3]], offered, {"another": wide}) == {}


@pytest.mark.parametrize("seed", range(3))
def test_every_copy_computes_what_its_stretch_of_the_network_does(seed: int) -> None:
    """ONNX Runtime on the copies side by side gives what it gives on the stretch alone, copy by copy."""
    model = random_model(seed, steps=14)
    row = stretch(model, 9)
    copies = side_by_side(model, row, 3)
    segment = segment_of_all(row, model)
    piece = read_model(extract(model, segment.ops, segment.inputs, segment.outputs))
    assert len(merge(copies.graph)) == 3 * len(row)
    assert {one.signature for one in merge(copies.graph)} == {one.signature for one in row}
    feed = draw(copies)
    found = answered(copies, feed)
    for place in range(3):
        own = {name: feed[marked(place, name)] for name in piece.graph.inputs}
        for name, expected in answered(piece, own).items():
            np.testing.assert_allclose(found[marked(place, name)], expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("seed", range(3))
def test_a_rehearsal_is_a_legal_plan(seed: int, processors: list[Processor]) -> None:
    """The engine takes it; nobody computes two ops at once, and a copy's ops follow one another."""
    seats = singles(processors)
    copies = side_by_side(random_model(seed, steps=14), stretch(random_model(seed, steps=14), 12), 2)
    plan = dealt(copies, seats, alone(copies, seats))
    build_program(plan, copies, {seat.id: seat for seat in seats})
    rows = defaultdict(list)
    for step in (plan.step[step] for step in plan.order):
        rows[step.processor].append(step)
        rows[step.ops[0].partition("/")[0]].append(step)
    assert len(rows) == len(seats) + 2
    for row in rows.values():
        assert all(before.finish_us <= after.start_us for before, after in pairwise(row))


def test_only_what_is_rehearsed_may_have_no_subgraphs(
    processors: list[Processor], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A branch behind the stretch is in nobody's way; one within it has names that copies would share."""
    plain, seats = random_model(4, steps=14), singles(processors)
    proto = onnx.ModelProto()
    proto.CopyFrom(plain.proto)
    [*_, last] = proto.graph.output
    body = helper.make_graph([helper.make_node("Exp", [last.name], ["grown"])], "body", [], [onnx.ValueInfoProto()])
    body.output[0].CopyFrom(last)
    body.output[0].name = "grown"
    proto.graph.input.append(helper.make_tensor_value_info("yes", onnx.TensorProto.BOOL, []))
    proto.graph.node.append(helper.make_node("If", ["yes"], ["chosen"], then_branch=body, else_branch=body))
    proto.graph.output.add().CopyFrom(last)
    proto.graph.output[-1].name = "chosen"
    model = read_model(proto)
    assert any(map(subgraphs, model.proto.graph.node))
    deadline = time.monotonic() + 600
    assert not rehearse(seats[0], processors, model, alone(model, processors), deadline)
    monkeypatch.setattr(rehearsal, "LAUNCHES", len(merge(model.graph)))
    assert rehearse(seats[0], processors, model, alone(model, processors), deadline)


def test_samples_say_what_segments_took(processors: list[Processor], monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside what the same ops take alone, of all of them; there are none for a gang of all cores, which has no
    neighbours, nor where nobody knows what an op takes alone.
    """

    def traced(self: Executor, _: object) -> Any:
        step = self.program.plan.step
        took_us = [2 * sum(step[own].alone_us or 0.0 for own in one.steps) for one in self.program.segments]
        spans = [
            Span("segment", one.processor, one.processor, one.index, one.start_us, one.start_us + us)
            for one, us in zip(self.program.segments, took_us, strict=True)
        ]
        total_us = sum(took_us)
        return type("Ran", (), {"program": self.program, "segments": spans, "total_us": total_us})()

    monkeypatch.setattr(Executor, "traced", traced)
    model, seats = random_model(4, steps=14), singles(processors)
    known = alone(model, processors)
    deadline = time.monotonic() + 600
    found = rehearse(seats[0], processors, model, known, deadline)
    assert {sample.kind for sample in found} == {seats[0].spec.kind}
    row = merge(model.graph)
    times = [known[one.signature, seats[0].spec.kind] for one in row]
    assert math.fsum(one.alone_us for one in found) == pytest.approx(2 * sum(one.us for one in times if one))
    assert [one.us for one in found] == pytest.approx([2 * one.alone_us for one in found])
    assert any(one.launches for one in found)
    gang = max(processors, key=lambda own: (own.spec.runtime == "ort", own.spec.threads))
    assert rehearse(gang, processors, model, known, deadline) == []
    unknown = {**known, (row[0].signature, seats[0].spec.kind): None}
    assert rehearse(seats[0], processors, model, unknown, deadline) == []
