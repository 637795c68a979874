"""Plans over several hosts: moves over several channels, links as queues."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hope_schema import Channel, LatencyColumns, Link, ModelGraph, Plan, Profile
from hope_schema.profile import PartColumns
from planner_api.planning import Budget, build_problem, check, optimise, plan, simulate
from planner_api.planning.compose import compose
from planner_api.planning.problem.machine import routes
from tests import CAMPAIGN
from tests.planning.models import CPU, DIAMOND, network, profile

GRAPH = network(DIAMOND)


def linked(us: float, names: tuple[str, ...] = ("host", "edge"), busy: str | None = None) -> tuple[Link, ...]:
    """Links between neighbours, both ways, on which a tensor of the network takes so long."""
    return tuple(
        Link(source=one, target=other, fixed_us=us, us_per_byte=0.0, busy=busy or f"{one}-{other}")
        for pair in itertools.pairwise(names)
        for one, other in (pair, pair[::-1])
    )


def alone(graph: ModelGraph, us: float, move_us: float = 2.0) -> Profile:
    """A host with one CPU, whose layout takes ``move_us`` to and from the plain memory."""
    channels = tuple(
        Channel(source=source, target=target, fixed_us=move_us, us_per_byte=0.0)
        for source, target in (("host", "host/cpu"), ("host/cpu", "host"))
    )
    return profile(graph, {"cpu": dict.fromkeys(DIAMOND, us)}, processors=(CPU,), channels=channels)


def test_moves_between_hosts_are_not_free() -> None:
    """A far host that is a little faster is not worth its link; one that is much faster is, over all three channels."""
    device = alone(GRAPH, 100.0)
    near = plan(GRAPH, compose(device, {"edge": alone(GRAPH, 90.0)}, linked(1000.0)), rounds=2)
    assert {step.processor for step in near.steps} == {"cpu"}
    far = plan(GRAPH, compose(device, {"edge": alone(GRAPH, 1.0)}, linked(10.0)), rounds=2)
    assert {step.processor for step in far.steps} == {"edge:cpu"}
    assert [(move.source, move.target, move.over) for move in far.transfers] == [
        ("host", "edge:host", "host-edge"),
        ("edge:host", "edge:host/cpu", None),
        ("edge:host/cpu", "edge:host", None),
        ("edge:host", "host", "edge-host"),
    ]
    # In: the link, then the reader's own 2 µs; out: 2 µs that are nobody's, then the link.
    assert far.makespan_us == pytest.approx(10 + 2 + 4 + 2 + 10)
    assert far.lower_bound_us >= 10 + 2 + 3 + 2 + 10  # nothing gets there and back, or is computed here, sooner


def test_float32_crosses_as_float16_where_that_is_allowed_and_pays() -> None:
    """Half of the bytes, and the change, on the links alone; the plan says so. Bound, simulator and checker agree."""
    device, far = alone(GRAPH, 9000.0), {"edge": alone(GRAPH, 1.0)}
    size = GRAPH.tensor["x"].type.bytes

    def over(float16_us_per_byte: float | None) -> Plan:
        links = [
            link.model_copy(update={"us_per_byte": 0.1, "float16_us_per_byte": float16_us_per_byte})
            for link in linked(10.0)
        ]
        return plan(GRAPH, compose(device, far, links), rounds=2)

    for change, each in ((None, 0.1 * size), (0.01, (0.1 / 2 + 0.01) * size), (0.06, 0.1 * size)):
        found = over(change)
        assert {step.processor for step in found.steps} == {"edge:cpu"}
        crossing = [move for move in found.transfers if move.over]
        assert {move.dtype for move in crossing} == {"float16" if change == 0.01 else None}
        assert [move.finish_us - move.start_us for move in crossing] == pytest.approx([10 + each] * 2)
        assert not any(move.dtype for move in found.transfers if not move.over)
        assert found.makespan_us == pytest.approx(2 * (10 + each) + 2 + 4 + 2)
        assert found.lower_bound_us <= found.makespan_us


def test_predictions_for_what_no_processor_is_do_no_harm_on_another_host_either() -> None:
    """What is predicted of a kind that a profile has no processor of counts for nobody, there or on the device."""
    plain = alone(GRAPH, 5.0)
    more = plain.model_copy(
        update={
            "predicted": LatencyColumns(signature=("op",), kind=("npu",), us=(1.0,), spread_us=(0.0,), count=(1,)),
            "parts": PartColumns(signature=("op",), kind=("npu",), axis=(2,), fixed=(0.5,)),
        }
    )
    known = plan(GRAPH, compose(plain, {"edge": plain}, linked(10.0)), rounds=2)
    assert plan(GRAPH, compose(more, {"edge": more}, linked(10.0)), rounds=2) == known


def test_links_to_several_hosts_share_one_radio() -> None:
    """What is sent to two edges at once goes one after the other, and the bound of a plan knows it."""
    far = {"edge1": alone(GRAPH, 5.0), "edge2": alone(GRAPH, 5.0)}
    links = [link for name in far for link in linked(10.0, ("host", name), busy="radio")]
    problem = build_problem(GRAPH, compose(alone(GRAPH, 100.0), far, links))
    assert problem.machine.queues == ("radio",)
    schedule = simulate(problem, [0, 1, 2, 0], problem.lists.order)
    check(problem, schedule)
    crossed = sorted(
        (move.start_us, move.finish_us) for move in schedule.transfers if move.finish_us - move.start_us == 10
    )
    assert len(crossed) == 4
    assert all(one[1] <= two[0] for one, two in itertools.pairwise(crossed))
    outcome = optimise(problem, "auto", Budget(rounds=2))
    assert outcome.bound.us <= outcome.solution.schedule.value_us


def test_what_one_hop_has_brought_stands_there_for_others() -> None:
    """The cloud's and the edge's readers share the way to the edge: the tensor passes the first link once."""
    device = alone(GRAPH, 100.0)
    both = compose(
        device, {"edge": alone(GRAPH, 5.0), "cloud": alone(GRAPH, 5.0)}, linked(10.0, ("host", "edge", "cloud"))
    )
    problem = build_problem(GRAPH, both)
    a, edge, cloud = 0, 1, 2
    schedule = simulate(problem, [a, edge, cloud, a], problem.lists.order)
    check(problem, schedule)
    places = problem.machine.places
    passed = [(places[move.source], places[move.target]) for move in schedule.transfers if move.tensor == 1]
    assert passed.count(("host", "edge:host")) == 1
    assert ("edge:host", "cloud:host") in passed


@given(seed=st.integers(0, 10**6))
@settings(max_examples=200 if CAMPAIGN else 30)
def test_routes_are_the_cheapest_ways_and_make_trees(seed: int) -> None:
    """Against every path: within a host the channel, between hosts the cheapest path whose parts are ways too."""
    random = np.random.default_rng(seed)
    n = int(random.integers(2, 6))
    direct = np.where(random.random((n, n)) < 0.7, 10 ** random.uniform(0, 2, (n, n)), np.inf)
    np.fill_diagonal(direct, 0.0)
    owner = random.integers(0, 2, n)
    fixed = np.isfinite(direct) & (owner[:, None] == owner)
    hop = routes(direct, fixed)

    def cost(path: tuple[int, ...]) -> float:
        return sum(float(direct[a, b]) for a, b in itertools.pairwise(path))

    paths = {
        (source, target): [
            (source, *middle, target)
            for k in range(n - 1)
            for middle in itertools.permutations(set(range(n)) - {source, target}, k)
        ]
        for source, target in itertools.permutations(range(n), 2)
    }
    kept = {pair for pair in paths if fixed[pair] or direct[pair] == min(map(cost, paths[pair]))}
    for (source, target), every in paths.items():
        allowed = (
            path
            for path in every
            if kept.issuperset(itertools.pairwise(path)) and not any(fixed[source, place] for place in path[2:])
        )
        found = [target]
        while found[0] != source:
            found.insert(0, int(hop[source, found[0]]))
        assert cost(tuple(found)) == pytest.approx(min(map(cost, allowed), default=np.inf))


def networks(seed: int, ops: int = 24) -> ModelGraph:
    """A random network that branches and joins."""
    random = np.random.default_rng(seed)
    edges: dict[str, list[str]] = {"n0": ["x"]}
    for k in range(1, ops):
        near = random.integers(max(0, k - 4), k, int(random.integers(1, 3)))
        edges[f"n{k}"] = sorted({f"n{other}" for other in near.tolist()})
    return network(edges)


def two_hosts(seed: int) -> tuple[ModelGraph, Profile]:
    """A random network on two hosts whose link is a queue: the device has one core, the edge is three times as fast."""
    random, graph = np.random.default_rng(seed), networks(seed)
    us = {op.outputs[0]: float(us) for op, us in zip(graph.ops, random.uniform(50, 500, len(graph.ops)), strict=True)}
    ways = alone(GRAPH, 1.0).channels
    slow, fast = (
        profile(graph, {"cpu": {op: time / speed for op, time in us.items()}}, processors=(CPU,), channels=ways)
        for speed in (1.0, 3.0)
    )
    return graph, compose(slow, {"edge": fast}, linked(float(random.choice([20.0, 100.0, 400.0])), busy="radio"))


def test_plans_over_a_link_are_near_their_bound() -> None:
    """Two hosts, a link as a queue, random networks: on average a plan is at most 1.15 times its bound."""
    ratios = []
    for seed in range(40 if CAMPAIGN else 6):
        problem = build_problem(*two_hosts(seed))
        outcome = optimise(problem, "auto", Budget(rounds=30))
        check(problem, outcome.solution.schedule)
        ratios.append(outcome.solution.schedule.value_us / outcome.bound.us)
    print(f"plan / bound over {len(ratios)} networks: mean {np.mean(ratios):.3f}, worst {max(ratios):.3f}")
    assert np.mean(ratios) <= 1.15
