"""Random small networks through an agent on the cores: no signal, no wrong answer, no refusal of what runs plainly."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests import CAMPAIGN

BATCHES, COUNT = (12, 25) if CAMPAIGN else (1, 3)
"""Processes, one after the other, and networks in each."""


@pytest.mark.parametrize("batch", range(BATCHES))
def test_random_networks_are_answered_as_the_file_says(
    batch: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All types, inputs that are sizes, indices and divisors, ordinary and hard values, judged by ONNX Runtime."""
    monkeypatch.setenv("HOPE_SOLVE_BUDGET_S", "0.3")
    command = [sys.executable, "-m", "tests.agent.random_networks", str(batch * COUNT), str(COUNT), str(tmp_path)]
    command += [] if CAMPAIGN else ["ort@0,ov@0"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 0, (rows[-1:], done.stderr[-2000:])
    told = [row for row in rows if "faults" in row]
    assert len(told) == COUNT
    assert [row for row in told if row["faults"]] == []
    assert sum(row["planned"] for row in told) >= 0.9 * COUNT
