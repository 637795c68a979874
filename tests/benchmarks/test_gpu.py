"""What the GPU's benchmark says beside its times: a format's own error, and what ran beside what."""

from __future__ import annotations

from itertools import pairwise

import torch
from hypothesis import given
from hypothesis import strategies as st

from agent_sdk.model import read_model
from benchmarks.gpu import rounding_error
from benchmarks.streams import lines_of
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
