"""What the GPU's benchmark says beside its times: a format's own error, and what ran beside what."""

from __future__ import annotations

import random
from itertools import pairwise, product
from pathlib import Path

import networkx as nx
import onnx
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import hope_zoo as zoo
from agent_sdk.journey.verify import relative_error
from agent_sdk.model import read_model
from agent_sdk.model.feeds import draw
from agent_sdk.runtimes.ort.whole import WholeOrt
from benchmarks.baselines import folded, longest_path_us
from benchmarks.gpu import rounding_error
from benchmarks.gpu_table import network_table
from benchmarks.streams import lines_of, slice_of
from hope_schema import merge
from tests.agent.models import BRANCHING, expected


def test_a_format_errs_by_its_digits() -> None:
    """Nothing is rounded in fp32; ten bits of mantissa cost about a thousandth, in tf32 and in fp16 alike."""
    model = read_model(BRANCHING)
    feeds, right = expected(BRANCHING, seed=0)
    found = {name: rounding_error(model, name, feeds, right, torch.device("cpu")) for name in ("fp32", "tf32", "fp16")}
    assert found["fp32"] < 1e-5
    assert 1e-5 < found["tf32"] < 1e-2
    assert 1e-5 < found["fp16"] < 1e-2


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(1, 9)), max_size=30))
def test_lines_are_as_many_as_run_at_once(drawn: list[tuple[int, int]]) -> None:
    """Nothing overlaps on a line, and there are no more lines than intervals at any one moment."""
    intervals = [(float(start), float(start + length)) for start, length in sorted(drawn)]
    lines = lines_of(intervals)
    for line in set(lines):
        own = [interval for interval, at in zip(intervals, lines, strict=True) if at == line]
        assert all(before[1] <= behind[0] for before, behind in pairwise(own))
    most = max((sum(start <= now < end for start, end in intervals) for now in range(60)), default=0)
    assert max(lines, default=-1) + 1 == most


def test_a_slice_says_how_much_of_the_gpu_a_kernel_may_hold() -> None:
    """Its blocks over the multiprocessors, at most all of them; a copy has none."""
    event = {"name": "void conv<8>(float)", "cat": "kernel", "ts": 7.0, "dur": 2.0}
    small, large = ({**event, "args": {"grid": [11, blocks, 1], "block": [32, 4, 1]}} for blocks in (3, 70))
    shown = [slice_of(one, 0, 5.0, multiprocessors=132) for one in (small, large, {**event, "args": {"bytes": 8}})]
    assert [one.get("args", {}).get("share of multiprocessors") for one in shown] == [0.25, 1.0, None]
    assert shown[0]["args"]["threads"] == 128
    assert (shown[0]["name"], shown[0]["ts"]) == ("conv", 2.0)


def test_plan_bound_and_measured_figure_are_of_one_clock() -> None:
    """From arrays to arrays, as the planner was told to plan; what the device's clock says stands before them."""
    facts = {"model": "a", "precision": "fp16", "best": "graph", "ratio_to_best": 0.5}
    arrays = {"bound_us": 300.0, "predicted_us": 310.0, "wall_us": 320.0}
    rows = [{**facts, "config": one, "median_us": 100.0} for one in ("eager", "graph", "one stream")]
    table = network_table([*rows, {**facts, **arrays, "config": "auto", "median_us": 50.0}])
    [row] = table.rows
    told = dict(zip(table.columns, row, strict=True))
    assert (told["auto"], told["graph"]) == (0.05, 0.1)
    assert [told[one] for one in table.columns[-5:-1]] == [300.0, 300.0 / 310.0, 310.0, 320.0]
    assert table.columns[-5].startswith("arrays to arrays")
    assert told["longest path / ours"] is None


def test_baselines_are_of_folded_networks() -> None:
    """The same answer by fewer ops, all of the standard: no batch norm stands behind a convolution any more."""
    path = zoo.path("nasnet_mobile")
    model, found = read_model(path), onnx.load_from_string(folded(path))
    made = {output: node.op_type for node in found.graph.node for output in node.output}
    assert len(found.graph.node) < len(model.graph.ops)
    assert {node.domain for node in found.graph.node} <= {"", "ai.onnx"}
    assert not [n for n in found.graph.node if n.op_type == "BatchNormalization" and made.get(n.input[0]) == "Conv"]
    feed = draw(model, 0)
    ours = WholeOrt(found.SerializeToString(), 1).run(feed)
    right = WholeOrt(Path(path).read_bytes(), 1).run(feed)
    assert relative_error(ours, right) < 1e-4


def test_the_longest_path_is_that_of_the_graph_of_super_ops() -> None:
    """As networkx finds it, whatever each takes."""
    model = read_model(BRANCHING)
    super_ops = merge(model.graph)
    for seed in range(20):
        us = {one.id: random.Random(f"{seed} {one.id}").uniform(1, 9) for one in super_ops}
        graph = nx.DiGraph()
        graph.add_nodes_from(us)
        for one, other in product(super_ops, repeat=2):
            if set(one.outputs) & set(other.inputs):
                graph.add_edge(one.id, other.id)
        longest = max(
            sum(us[name] for name in path)
            for source, sink in product(super_ops, repeat=2)
            for path in ([[source.id]] if source is sink else nx.all_simple_paths(graph, source.id, sink.id))
        )
        assert longest_path_us(model, us) == pytest.approx(longest)
