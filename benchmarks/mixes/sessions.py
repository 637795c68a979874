"""What needs no mix: what a session alone pays, and two networks by one plan against one after the other."""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

from agent_sdk.agent import Agent
from agent_sdk.machine.timing import timed
from benchmarks.results import Found, Measure, verdict

ROUNDS: Final = 40
ALONE: Final = "squeezenet"
TWO: Final = ("squeezenet", "inception_v1")
MANY: Final = 16
"""Cores from which on a joint plan is judged."""


def alone_pays(folder: Path) -> Found:
    """A run of a session whose agent has a queue and a policy, against its plan's executor by itself."""
    with Agent(processors="ort", cache=folder) as agent, agent.load(ALONE, background=False) as session:
        feed = session.draw()
        last = session.plans.last
        assert last is not None
        share = _ratio(partial(session.run, feed), partial(last.executor.run, feed))
    return [verdict("a session alone pays for all this: its run ÷ its executor's", share, 1.01)], []


def joint(folder: Path) -> Found:
    """One plan of two networks, against one run of each after the other by its own plan."""
    what = f"joint plan ÷ one after the other, {' + '.join(TWO)}"
    with Agent(processors="ort", cache=folder) as agent:
        sessions = [agent.load(name, background=False) for name in TWO]
        feeds = [session.draw() for session in sessions]
        with agent.together(*sessions) as together:

            def apart() -> None:
                for session, feed in zip(sessions, feeds, strict=True):
                    session.run(feed)

            share = _ratio(partial(together.run, *feeds), apart)
        for session in sessions:
            session.close()
    if len(os.sched_getaffinity(0)) >= MANY:
        return [verdict(what, share, 0.85)], []
    return [Measure(f"{what} (for {MANY} cores)", share, 0.85, None)], []


def _ratio(one: Callable[[], object], other: Callable[[], object]) -> float:
    """What one takes ÷ what the other does, in turns; of each turn the first run only wakes what it needs."""
    took: tuple[list[float], list[float]] = ([], [])
    for _ in range(ROUNDS):
        for own, run in zip(took, (one, other), strict=True):
            run()
            own.append(timed(run)[0])
    return statistics.median(took[0]) / statistics.median(took[1])
