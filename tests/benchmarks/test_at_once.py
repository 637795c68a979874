"""How plans of a network are held against figures that came later."""

from __future__ import annotations

import pytest

from benchmarks.at_once import replayed_us
from planner_api.planning import plan
from tests.planning.test_cut_networks import GRAPH, WHOLE, profile


@pytest.mark.parametrize("method", ["auto", "heft"])
def test_a_plan_takes_what_it_says_by_the_figures_it_was_made_of(method: str) -> None:
    """With cuts and without, and twice as long where every op, and so every part, takes twice as long."""
    found = plan(GRAPH, profile(WHOLE), method=method, rounds=30)
    assert bool(found.jobs[0].cuts) is (method == "auto")
    assert replayed_us(found, GRAPH, profile(WHOLE)) == pytest.approx(found.makespan_us)
    moved = sum(move.finish_us - move.start_us for move in found.transfers)
    twice = replayed_us(found, GRAPH, profile({key: 2 * us for key, us in WHOLE.items()}))
    assert 2 * found.makespan_us - moved <= twice <= 2 * found.makespan_us
