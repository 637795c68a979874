"""The kernels in C see the arrays that Python hands them, and nothing beyond."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from agent_sdk.native import building
from planner_api.planning import Budget, native
from planner_api.planning.exact.labels import Labels, Piece
from planner_api.planning.judge.arrays import Arrays, State, arrays, state
from planner_api.planning.judge.ways import Needs, Ways
from planner_api.planning.methods import solve
from planner_api.planning.search.annealing import Window
from tests.planning.cuttable import cuttable

FOLDER = Path(native.__file__).parent
SIZES = {"Arrays": 4, "Window": 1, "Piece": 5, "Labels": 1}
"""Words before the fields of a tuple."""


@pytest.mark.parametrize("kind", [Needs, Ways, Arrays, State, Window, Piece, Labels], ids=lambda kind: kind.__name__)
def test_structs_have_the_fields_of_their_tuples(kind: type[NamedTuple]) -> None:
    """In C and in Python one reads the same names in the same order, of the same types."""
    texts = "".join(file.read_text() for file in FOLDER.glob("*.[ch]"))
    body = next(text for text in texts.split("typedef struct {")[1:] if f"}} {kind.__name__};" in text)
    lines = body.partition("}")[0].split(";")[:-1]
    fields = [re.match(r"\s*(?:const )?(\w+) (\*?)(\w+)$", line) for line in lines]
    names = [field[3] for field in fields if field]
    assert names[SIZES.get(kind.__name__, 0) :] == list(kind._fields)
    problem = cuttable([[100.0, 120.0]] * 4, [[], [0], [1], [2, 1]])
    flat = arrays(problem)
    samples = {Needs: flat.ways.needs, Ways: flat.ways, Arrays: flat, State: state(problem, [0] * 4, range(4))}
    for field, value in zip(fields[SIZES.get(kind.__name__, 0) :], samples.get(kind, ()), strict=False):
        assert field
        if isinstance(value, np.ndarray):
            assert (field[2], value.dtype) == ("*", np.dtype(native.TYPES[field[1]])), field[3]
        elif not isinstance(value, tuple):
            assert (field[1], field[2]) == ("double" if isinstance(value, float) else "word", ""), field[3]


def test_a_kernel_is_given_no_array_that_it_would_misread() -> None:
    """Another type, or rows that do not lie one behind the other."""
    for array in (np.zeros(3, dtype=np.float32), np.zeros((4, 4)).T[1:, 1:]):
        with pytest.raises(TypeError, match="kernels read no array"):
            native.packed((), (array,))


WATCHED = """
import sys
from pathlib import Path
from planner_api.planning import Budget, native

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
for seed in range(4):
    Search(problem, begun, seed).round(moves=250)
for seed in range(8):
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
        found = solve(cuttable([[100.0, 120.0]] * 4, [[], [0], [1], [2, 1]]), "auto", Budget(rounds=1))
    finally:
        native.library.cache_clear()
    (note,) = found.notes
    assert "install a C compiler" in note
    assert found.bound is not None
