"""Kernels compile wherever they are installed, and nobody's budget pays for it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from planner_api.planning import Budget


def test_a_kernel_runs_where_nothing_can_be_written(tmp_path: Path):
    """Neither beside its module nor in the user's cache: it compiles for the process instead of failing."""
    (tmp_path / "where.py").write_text(
        "from planner_api.planning.kernel import kernel\n\n\n@kernel\ndef twice(x):\n    return 2 * x\n"
    )
    blocked = tmp_path / "file"
    blocked.write_text("")
    script = (
        "import numba.core.caching as c\n"
        "def refuse(self): raise OSError('read-only')\n"
        "c._CacheLocator.ensure_cache_path = refuse\n"
        "import where; print(where.twice(21))"
    )
    environment = {
        **os.environ,
        "PYTHONPATH": f"{tmp_path}{os.pathsep}{Path(__file__).resolve().parents[2]}",
        "HOME": str(blocked),
    }
    run = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, env=environment, timeout=120, check=False
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.strip() == "42"


def test_a_postponed_budget_only_moves_its_deadline():
    """What a first use costs is added to the deadline; seconds, rounds and seed stay, and counted work has no clock."""
    budget = Budget(5.0, None, 3)
    later = budget.postponed(2.0)
    assert later.deadline == pytest.approx(budget.deadline + 2.0)
    assert (later.seconds, later.rounds, later.seed) == (5.0, None, 3)
    assert Budget(5.0, 7).postponed(2.0).deadline == float("inf")
