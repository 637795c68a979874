"""Kernels are loaded, or compiled once on a machine, before a budget begins: nobody's plan pays for it."""

from __future__ import annotations

import functools
import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import Final

import numpy as np

from planner_api.planning.budget import Budget
from planner_api.planning.construct.single import singles
from planner_api.planning.problem import Machine, Problem

QUIET_S = 2.0
"""Loading what is compiled takes less; compiling is said."""

_log = logging.getLogger(__name__)


def warm() -> None:
    """Load or compile every kernel that a plan may need."""
    for stage in STAGES:
        load(stage)


def loading_s(stage: str) -> float:
    """Load a stage's kernels, or compile them, and say how long that took: the first use in a process is no search."""
    began = time.monotonic()
    said = threading.Timer(QUIET_S, _log.warning, ("compiling the planner's search, once on this machine",))
    said.daemon = True
    said.start()
    try:
        load(stage)
    finally:
        said.cancel()
    return time.monotonic() - began


@functools.cache
def load(stage: str) -> None:
    """Put a problem of three ops through a stage, so that whatever it compiles is there."""
    STAGES[stage](tiny())


def tiny() -> Problem:
    """A problem of three ops whose first plan no cheap bound proves."""
    return Problem(
        machine=Machine.apart(("p", "q")),
        ops=("a", "b", "c"),
        latency_us=np.array([[3.0, 1.0], [1.0, 2.0], [2.0, 3.0]]),
        producer=np.array([-1, 0, 1, 2]),
        reads=((0,), (1,), (1, 2)),
        is_output=np.array([False, False, False, True]),
        transfer_us=np.ones((4, 3, 3)) - np.eye(3),
        tensors=("x", "a", "b", "c"),
    )


def _pieces(tiny: Problem) -> None:
    from planner_api.planning.exact.articulation import solve_pieces

    solve_pieces(tiny, Budget(rounds=1))


def _search(tiny: Problem) -> None:
    from planner_api.planning.search.search import Search

    Search(tiny, singles(tiny)[0], seed=0).round(moves=1)


STAGES: Final[Mapping[str, Callable[[Problem], None]]] = {"pieces": _pieces, "search": _search}
"""What comes with kernels of its own, and what uses them; each is imported where it is wanted."""
