"""The kernels in C see the arrays that Python hands them, and nothing beyond."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from agent_sdk.native import building
from planner_api.planning import Budget, native, optimise
from tests.planning.cuttable import cuttable


def test_a_struct_has_the_fields_that_the_kernels_read_and_no_array_that_they_would_misread() -> None:
    """A field too few or too many, another type, and rows that do not lie one behind the other are refused."""
    needs = dict.fromkeys(("axis", "span", "at", "low", "high"), np.zeros(4, dtype=np.int64))
    assert native.Struct("Needs", **needs).words.tolist() == [needs["axis"].ctypes.data] * 5
    for wrong in ({"more": needs["at"]}, {"at": np.zeros(4)}, {"at": np.zeros((4, 4), dtype=np.int64).T[1:, 1:]}):
        with pytest.raises(TypeError, match=r"other fields|is no array of word"):
            native.Struct("Needs", **{**needs, **wrong})
    needs.pop("low")
    with pytest.raises(TypeError, match="other fields"):
        native.Struct("Needs", **needs)


WATCHED = """
import sys
from pathlib import Path
from planner_api.planning import Budget, native
from tests import CAMPAIGN

native.LIBRARY = Path(sys.argv[1])
from planner_api.planning.exact.articulation import decompose
from planner_api.planning.methods import solve
from planner_api.planning.judge.simulator import simulate
from planner_api.planning.search.search import Search
from tests.planning.cuttable import cuttable
from tests.planning.drawn import draw, shuffled

# A convolution with a short cut round it: who reads both ties two makers together, one of which reads the other.
problem = cuttable([[100.0, 120.0]] * 4, [[], [0], [1], [2, 1]], rows=2)
begun = solve(problem, "heft", Budget(0.0)).schedule
for seed in range(4 if CAMPAIGN else 2):
    Search(problem, begun, seed).round(moves=250)
for seed in range(8 if CAMPAIGN else 4):
    drawn = draw(seed, 30, rich=seed % 4 > 0, hosts=seed % 4 > 1)
    Search(drawn, simulate(drawn, *shuffled(drawn, seed)), seed).round(moves=200)
    decompose(draw(seed, 12, hope=True), Budget(60.0))
"""


def test_the_kernels_look_at_nothing_beyond_their_arrays(tmp_path: Path) -> None:
    """Built so that any look beside an array ends the process, on all kinds of problems."""
    compiler = shutil.which("gcc")
    if compiler is None:
        pytest.skip("no gcc, whose library watches memory")
    library = tmp_path / "kernels.so"
    why = building.build(library, building.KERNELS, [[compiler, "-fsanitize=address", "-g"]])
    assert not why
    watching = subprocess.run(
        [compiler, "-print-file-name=libasan.so"], capture_output=True, text=True, check=True
    ).stdout.strip()
    if not Path(watching).is_absolute():
        pytest.skip("gcc came without the library that watches memory")
    ended = subprocess.run(
        [sys.executable, "-c", WATCHED, library],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        env={**os.environ, "LD_PRELOAD": watching, "ASAN_OPTIONS": "detect_leaks=0", "PYTHONMALLOC": "malloc"},
    )
    assert ended.returncode == 0, ended.stderr[-3000:]


def test_without_its_kernels_the_planner_answers_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The best of the constructive plans, with a note that names the cure."""
    monkeypatch.setattr(native, "LIBRARY", tmp_path / "kernels.so")
    native.library.cache_clear()
    try:
        found = optimise(cuttable([[100.0, 120.0]] * 4, [[], [0], [1], [2, 1]]), "auto", Budget(rounds=1))
    finally:
        native.library.cache_clear()
    (note,) = found.solution.notes
    assert "install a C compiler" in note
    assert found.bound.us > 0
