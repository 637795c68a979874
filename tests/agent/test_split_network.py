"""A network like VGG under a plan with cuts, from the command line to the trace."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from agent_sdk.cli import commands as cli
from agent_sdk.journey.services import Services
from agent_sdk.model import Model
from agent_sdk.planner.client import ServedPlan
from agent_sdk.planner.supplier import Obtained
from hope_schema import Cut, PlanReply, merge
from tests.agent.cores import SEVERAL
from tests.agent.engine.test_splits import split

CHANNELS, ROWS = 1, 2


def vgg_like() -> onnx.ModelProto:
    """Blocks of convolutions with a maximum behind each, then a classifier."""
    rng, nodes, weights, name, before = np.random.default_rng(2), [], [], "x", 3
    for block, channels in enumerate((16, 32)):
        for index in range(2):
            key = f"{block}{index}"
            weights.append(
                numpy_helper.from_array(rng.standard_normal((channels, before, 3, 3), np.float32) / 5, f"w{key}")
            )
            nodes.append(helper.make_node("Conv", [name, f"w{key}"], [f"c{key}"], pads=[1, 1, 1, 1]))
            nodes.append(helper.make_node("Relu", [f"c{key}"], [f"r{key}"]))
            name, before = f"r{key}", channels
        nodes.append(helper.make_node("MaxPool", [name], [f"p{block}"], kernel_shape=[2, 2], strides=[2, 2]))
        name = f"p{block}"
    weights.append(numpy_helper.from_array(rng.standard_normal((32 * 8 * 8, 10), np.float32) / 50, "w"))
    nodes += [helper.make_node("Flatten", [name], ["flat"]), helper.make_node("MatMul", ["flat", "w"], ["y"])]
    ends = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, (1, 3, 32, 32)),
        helper.make_tensor_value_info("y", TensorProto.FLOAT, (1, 10)),
    ]
    graph = helper.make_graph(nodes, "vgg-like", ends[:1], ends[1:], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def cuts(model: Model) -> list[Cut]:
    """The first block along height in one chain with its maximum, the second one's convolutions along channels."""
    ops = {op.id: model.graph.tensor[op.id].shape for op in merge(model.graph)}
    rows = [Cut(op=op, axes=(ROWS,), at=((ops[op][ROWS] // 2,),), chained=op != "r00") for op in ("r00", "r01", "p0")]
    return [*rows, *(Cut(op=op, axes=(CHANNELS,), at=((16,),)) for op in ("r10", "r11"))]


def obtain_split(_: Services, model: Model, **_wanted: object) -> Obtained:
    """A plan with these cuts, as if a planner had made it."""
    reply = PlanReply(
        plan_id="split", version=1, provisional=False, created_at=datetime.now(UTC), solve_us=1.0,
        plan=split(model, cuts(model)),
    )  # fmt: skip
    return Obtained(ServedPlan(reply=reply), "planner", cached=False, key="split")


@SEVERAL
def test_a_split_network_is_right_and_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """``hope-agent run`` verifies a plan with cuts, and its trace has each part on its own processor."""
    monkeypatch.setenv("HOPE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(Services, "obtain", obtain_split)
    file, trace = tmp_path / "vgg.onnx", tmp_path / "trace.json"
    file.write_bytes(vgg_like().SerializeToString())
    lanes = ["--processors", "ort@0,ort@1", "--quiet"]
    assert cli.main(["run", "--model", str(file), *lanes, "--runs", "2", "--json", "--trace", str(trace)]) == cli.OK
    assert json.loads(capsys.readouterr().out)["correct"] is True
    assert cli.main(["explain", str(file), *lanes, "--json"]) == cli.OK
    rows = {row["op"]: row for row in json.loads(capsys.readouterr().out)["ops"]}
    where = {op: row["processor"] for op, row in rows.items() if row["segment"] is not None}
    assert (where["p0[2:0:8]"], where["p0[2:8:16]"]) == ("ort@0", "ort@1")
    assert (where["r11[1:0:16]"], where["r11[1:16:32]"]) == ("ort@0", "ort@1")
    assert "r11" not in where
    assert rows["r11"]["cause"] == "in_place"
    assert rows["r11"]["why"] == "stands in one piece of memory anyway: nothing is copied"
    shown = " ".join(event["name"] for event in json.loads(trace.read_text())["traceEvents"])
    assert all(part in shown for part in ("r01[2:0:16]", "r01[2:16:32]", "r11[1:0:16]", "r11[1:16:32]"))
