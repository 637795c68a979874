"""An earlier plan as a start: read back as it was, and re-planned where figures have changed."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from hope_schema import ModelGraph, Plan, Profile
from planner_api.planning import Budget, PlanningError, build_problem, check, optimise, plan
from planner_api.planning.again import begun_with, changed, schedule_of, solve
from planner_api.planning.assemble import assemble
from planner_api.planning.auto import NOISE
from planner_api.planning.compose import compose
from tests import CAMPAIGN
from tests.planning.models import BOTH_WAYS, CPU, DIAMOND, FIGURES, SHAPE, network, profile
from tests.planning.test_cut_networks import GRAPH as CONVOLUTIONS
from tests.planning.test_cut_networks import behind_a_radio
from tests.planning.test_hosts import GRAPH, alone, linked, networks

OPS = 40 if CAMPAIGN else 24
"""Of a network."""


def hosts(seed: int, link_us: float) -> tuple[ModelGraph, Profile]:
    """A random network on a device, and on an edge three times as fast behind a link."""
    random, graph = np.random.default_rng(seed), networks(seed, ops=OPS)
    us = {op.outputs[0]: float(us) for op, us in zip(graph.ops, random.uniform(50, 500, len(graph.ops)), strict=True)}
    slow, fast = (
        profile(graph, {"cpu": {op: time / speed for op, time in us.items()}}, processors=(CPU,), channels=ways)
        for speed, ways in ((1.0, alone(GRAPH, 1.0).channels), (3.0, alone(GRAPH, 1.0).channels))
    )
    return graph, compose(slow, {"edge": fast}, linked(link_us, busy="radio"))


def made_of(graphs: Sequence[ModelGraph], known: Profile, rounds: int) -> Plan:
    """A plan of whole ops."""
    problem = build_problem(graphs, known)
    return assemble(graphs, known, problem, optimise(problem, "auto", Budget(rounds=rounds)))


def test_a_plan_is_read_back_as_it_was() -> None:
    """Placement and order of a plan over two hosts take no longer than it says, and nothing has left its band."""
    graph, known = hosts(1, 100.0)
    made = made_of([graph], known, 10)
    problem = build_problem(graph, known)
    schedule = schedule_of(made, problem)
    check(problem, schedule)
    assert schedule.makespan_us <= made.makespan_us * (1 + 1e-9)
    assert not changed(made, problem)
    again = solve(begun_with(made, problem), Budget(rounds=1)).schedule
    assert again.makespan_us <= made.makespan_us * (1 + 1e-9)
    assert " ms by plan update, at most " in str(plan(graph, known, after=made, rounds=0))
    assert made.gap == pytest.approx(made.makespan_us / made.lower_bound_us - 1)


def test_a_step_of_the_link_is_replanned_around_its_moves() -> None:
    """Slower or faster links: what moves over them has changed; the local plan is no longer, and near one made anew."""
    ratios = []
    for seed in range(20 if CAMPAIGN else 1):
        graph, before = hosts(seed, 100.0)
        made = made_of([graph], before, 15)
        for us in (25.0, 400.0):
            _, after = hosts(seed, us)
            problem = build_problem(graph, after)
            start = schedule_of(made, problem)
            near = changed(made, problem)
            moved = {move.tensor for move in made.transfers if move.over == "radio"}
            touched = {tensor for op in near for tensor in (*problem.reads[op], *problem.lists.writes[op])}
            assert moved <= {problem.tensors[tensor] for tensor in touched}
            local = solve(begun_with(made, problem), Budget(rounds=10)).schedule
            check(problem, local)
            assert local.makespan_us <= start.makespan_us * (1 + 1e-9)
            anew = made_of([graph], after, 60)
            ratios.append(local.makespan_us / anew.makespan_us)
    print(f"local / anew: mean {np.mean(ratios):.3f}, worst {max(ratios):.3f}")
    assert np.mean(ratios) <= 1.03


def test_a_plan_of_another_network_is_no_start() -> None:
    """It is said, and with such a plan the method plans as if there were none."""
    small = alone(GRAPH, 1.0)
    made = plan(GRAPH, small, method="grain")
    with pytest.raises(PlanningError, match="other network"):
        schedule_of(made, build_problem(*hosts(1, 100.0)))
    assert plan(*hosts(1, 100.0), rounds=0, after=made) == plan(*hosts(1, 100.0), rounds=0)
    longer = network({**DIAMOND, "e": ["a"]})  # it has all of the ops, and moves what the other does not know
    figures = {"cpu": dict.fromkeys("abcd", 9.0) | {"e": None}, "gpu": {"a": None} | dict.fromkeys("bcde", 9.0)}
    of_more = plan(longer, profile(longer, figures, BOTH_WAYS), method="grain")
    whole, known = network(DIAMOND), profile(network(DIAMOND), FIGURES, BOTH_WAYS)
    assert plan(whole, known, rounds=0, after=of_more) == plan(whole, known, rounds=0)


def test_a_better_plan_is_never_worse_than_the_one_before() -> None:
    """A plan that only a search finds is where one without begins, of two networks as of one."""
    graph, random = networks(3, ops=24), np.random.default_rng(3)
    names = [op.outputs[0] for op in graph.ops]
    known = profile(
        graph,
        {kind: dict(zip(names, random.uniform(50, 500, len(names)).tolist(), strict=True)) for kind in ("cpu", "gpu")},
        [("cpu", "gpu", SHAPE, 40.0), ("gpu", "cpu", SHAPE, 30.0)],
    )
    for graphs in ([graph], [graph, graph]):
        made = made_of(graphs, known, 20)
        problem = build_problem(graphs, known)
        plain, again = (optimise(one, "auto", Budget(0.0)).solution for one in (problem, begun_with(made, problem)))
        assert again.schedule.makespan_us <= made.makespan_us * (1 + 1e-9) < plain.schedule.makespan_us


@pytest.mark.parametrize("count", [1, 2])
def test_a_plan_with_cuts_is_a_start_for_one_over_another_link(count: int) -> None:
    """Its cuts are made again: as it was while the link is, over a slower one at once no longer than whole ops are.

    Later ones are no longer, but for what cuts have to gain. Where ops stay whole it is no start.
    """
    graphs, able = [CONVOLUTIONS] * count, ("ort@0", "edge:ort@0", "edge:ort@1")
    made = plan(graphs, behind_a_radio(), processors=able, rounds=5)
    assert all(job.cuts for job in made.jobs)
    for us_per_byte in (0.1, 0.12):
        known = behind_a_radio(us_per_byte)
        problem = begun_with(made, build_problem(graphs, known, able, cut=True))
        begun = solve(problem, Budget(0.0))
        assert begun.cut is not None
        assert begun.cuts
        check(begun.cut, begun.schedule)
        assert problem.earlier is not None
        at_once, later, whole = (
            plan(graphs, known, processors=able, rounds=rounds, after=after).makespan_us
            for rounds, after in ((0, made), (1, made), (0, None))
        )
        assert at_once <= begun.schedule.makespan_us * (1 + 1e-9) < whole
        assert later <= begun.schedule.makespan_us * (1 + NOISE)
        if us_per_byte == 0.1:
            assert not problem.earlier.changed
            assert at_once <= made.makespan_us * (1 + 1e-9)
        else:
            lists, busy = begun.cut.lists, begun.cut.machine.busy
            crossing = {move.tensor for move in begun.schedule.transfers if busy[move.source, move.target] >= 0}
            assert crossing
            near = [{*lists.readers[tensor], lists.producer[tensor]} for tensor in crossing]
            assert all(problem.earlier.changed & ops for ops in near)
    assert begun_with(made, build_problem(graphs, known, able)).earlier is None
