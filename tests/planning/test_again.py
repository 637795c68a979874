"""An earlier plan as a start: read back as it was, and re-planned where figures have changed."""

from __future__ import annotations

import numpy as np
import pytest

from hope_schema import ModelGraph, Plan, Profile
from planner_api.planning import Budget, PlanningError, build_problem, check, optimise, plan
from planner_api.planning.again import METHOD, changed, schedule_of
from planner_api.planning.assemble import assemble
from planner_api.planning.compose import compose
from tests import CAMPAIGN
from tests.planning.models import CPU, profile
from tests.planning.test_hosts import GRAPH, alone, linked, networks


def hosts(seed: int, link_us: float) -> tuple[ModelGraph, Profile]:
    """A random network of 40 ops on a device, and on an edge three times as fast behind a link."""
    random, graph = np.random.default_rng(seed), networks(seed, ops=40)
    us = {op.outputs[0]: float(us) for op, us in zip(graph.ops, random.uniform(50, 500, len(graph.ops)), strict=True)}
    slow, fast = (
        profile(graph, {"cpu": {op: time / speed for op, time in us.items()}}, processors=(CPU,), channels=ways)
        for speed, ways in ((1.0, alone(GRAPH, 1.0).channels), (3.0, alone(GRAPH, 1.0).channels))
    )
    return graph, compose(slow, {"edge": fast}, linked(link_us, busy="radio"))


def made_of(graph: ModelGraph, known: Profile, rounds: int, after: Plan | None = None) -> Plan:
    """A plan of whole ops."""
    problem = build_problem(graph, known)
    return assemble((graph,), known, problem, optimise(problem, "auto", Budget(rounds=rounds), after))


def test_a_plan_is_read_back_as_it_was() -> None:
    """Placement and order of a plan over two hosts take no longer than it says, and nothing has left its band."""
    graph, known = hosts(1, 100.0)
    made = made_of(graph, known, 10)
    problem = build_problem(graph, known)
    schedule = schedule_of(made, problem)
    check(problem, schedule)
    assert schedule.makespan_us <= made.makespan_us * (1 + 1e-9)
    assert not changed(made, problem)
    assert made_of(graph, known, 10, made).makespan_us <= made.makespan_us * (1 + 1e-9)


def test_a_step_of_the_link_is_replanned_around_its_moves() -> None:
    """Slower or faster links: what moves over them has changed; the local plan is no longer, and near one made anew."""
    ratios = []
    for seed in range(20 if CAMPAIGN else 1):
        graph, before = hosts(seed, 100.0)
        made = made_of(graph, before, 15)
        for us in (25.0, 400.0):
            _, after = hosts(seed, us)
            problem = build_problem(graph, after)
            start = schedule_of(made, problem)
            near = changed(made, problem)
            moved = {move.tensor for move in made.transfers if move.over == "radio"}
            touched = {tensor for op in near for tensor in (*problem.reads[op], *problem.lists.writes[op])}
            assert moved <= {problem.tensors[tensor] for tensor in touched}
            local = made_of(graph, after, 10, made)
            assert local.makespan_us <= start.makespan_us * (1 + 1e-9)
            anew = made_of(graph, after, 60)
            ratios.append(local.makespan_us / anew.makespan_us)
    print(f"local / anew: mean {np.mean(ratios):.3f}, worst {max(ratios):.3f}")
    assert np.mean(ratios) <= 1.03


def test_a_plan_of_another_network_is_no_start() -> None:
    """It is said, and asked for with such a plan the method plans as if there were none."""
    small = alone(GRAPH, 1.0)
    made = plan(GRAPH, small, method="finish")
    with pytest.raises(PlanningError, match="other network"):
        schedule_of(made, build_problem(*hosts(1, 100.0)))
    assert plan(*hosts(1, 100.0), method="finish", after=made).method != METHOD
    assert plan(GRAPH, small, method="finish", after=made).method == METHOD
