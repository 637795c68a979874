"""Kernels compile wherever they are installed, and nobody's budget pays for it."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from planner_api.planning import Budget, kernel


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


def test_a_kernel_is_compiled_again_where_one_that_it_calls_has_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What numba keeps of a kernel holds the kernels that it calls as they were, whose files it does not look at."""
    monkeypatch.setattr(kernel, "_newest", 0.0)
    monkeypatch.syspath_prepend(str(tmp_path))
    head = "from planner_api.planning.kernel import kernel\n"
    (tmp_path / "outer_kernel.py").write_text(
        f"{head}from called_kernel import factor\n\n\n@kernel\ndef times(x):\n    return factor() * x\n"
    )
    called = tmp_path / "called_kernel.py"
    for age, factor in ((60, 2), (-60, 3)):
        called.write_text(f"{head}\n\n@kernel\ndef factor():\n    return {factor}\n")
        os.utime(called, (time.time() - age,) * 2)
        assert importlib.import_module("outer_kernel").times(21) == factor * 21
        for name in ("outer_kernel", "called_kernel"):
            monkeypatch.delitem(sys.modules, name)
        importlib.invalidate_caches()


def test_a_postponed_budget_only_moves_its_deadline():
    """What a first use costs is added to the deadline; seconds, rounds and seed stay, and counted work has no clock."""
    budget = Budget(5.0, None, 3)
    later = budget.postponed(2.0)
    assert later.deadline == pytest.approx(budget.deadline + 2.0)
    assert (later.seconds, later.rounds, later.seed) == (5.0, None, 3)
    assert Budget(5.0, 7).postponed(2.0).deadline == float("inf")
