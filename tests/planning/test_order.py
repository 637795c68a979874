"""Orders, layers and cuts of graphs, against networkx."""

from __future__ import annotations

from graphlib import CycleError

import networkx as nx
import numpy as np
import pytest

from planner_api.planning.construct.listing import layers
from planner_api.planning.exact.articulation import cut_ops
from planner_api.planning.problem import Problem
from planner_api.planning.problem.order import ordered
from tests.planning.drawn import draw


def drawn_graph(seed: int, *, cycles: bool = False) -> tuple[nx.DiGraph, dict[int, list[int]]]:
    """A graph of up to 20 ops that reads mostly forwards in a drawn order, and what each op comes after."""
    random = np.random.default_rng(seed)
    ops = random.permutation(int(random.integers(1, 21))).tolist()
    before = {op: [earlier for earlier in ops[:turn] if random.random() < 0.2] for turn, op in enumerate(ops)}
    if cycles:
        before[ops[0]] = [ops[-1]]
        before[ops[-1]].append(ops[0])
    graph = nx.DiGraph((earlier, op) for op, some in before.items() for earlier in some)
    graph.add_nodes_from(ops)
    return graph, before


def test_ops_whose_turn_it_may_be_come_by_their_key() -> None:
    """The order is that of networkx's lexicographical sort, whatever the key."""
    for seed in range(200):
        graph, before = drawn_graph(seed)
        key = np.random.default_rng(seed + 1000).permutation(len(graph)).tolist().__getitem__
        assert ordered(before, key) == list(nx.lexicographical_topological_sort(graph, key))


def test_a_graph_with_a_cycle_has_no_order() -> None:
    """The error holds a cycle of the graph."""
    for seed in range(50):
        graph, before = drawn_graph(seed, cycles=True)
        with pytest.raises(CycleError) as error:
            ordered(before, lambda op: op)
        _, cycle = error.value.args
        assert nx.is_path(graph, cycle)
        assert cycle[0] == cycle[-1]


def test_layers_are_the_generations_of_the_graph() -> None:
    """An op's layer is its longest distance from those that read none of the others, also where only some count."""
    for seed in range(100):
        graph, before = drawn_graph(seed)
        some = [op for op in before if op % 3]
        expected = [sorted(layer) for layer in nx.topological_generations(graph.subgraph(some))]
        assert layers(some, before) == expected


def test_cuts_are_what_dominates_the_end() -> None:
    """Every way from the start of a graph to its end, along edges and inputs that move, passes every cut op."""
    found = [cut_ops(problem) for problem in map(problem_of, range(300))]
    assert found == [dominators(problem) for problem in map(problem_of, range(300))]
    assert sum(map(len, found)) > 300


def problem_of(seed: int) -> Problem:
    """A small problem of one job."""
    return draw(seed, 3 + seed % 12, hope=True)


def dominators(problem: Problem) -> list[int]:
    """What dominates the end of the graph, by positions in the problem's order."""
    lists = problem.lists
    place = {op: position for position, op in enumerate(lists.order)}
    graph = nx.DiGraph((place[earlier], place[op]) for op, before in enumerate(lists.before) for earlier in before)
    graph.add_edges_from((-1, place[op]) for op, before in enumerate(lists.before) if not before)
    graph.add_edges_from((place[op], "end") for op, after in enumerate(lists.after) if not after)
    for tensor, producer in enumerate(lists.producer):
        readers = sorted(place[reader] for reader in lists.readers[tensor])
        if producer < 0 and readers and problem.crossing_us(tensor)[problem.host].any():
            graph.add_edge(readers[0] - 1, readers[-1])
    above = nx.immediate_dominators(graph, -1)
    cuts = [above["end"]]
    while cuts[-1] >= 0:
        cuts.append(above[cuts[-1]])
    return cuts[-2::-1]
