"""D3's tiles over hosts: stretches of a stack end where the method's own count is least, and plans are legal."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hope_schema import Cut
from hope_schema.cutting import CutError, Region, Span, regions
from hope_schema.plan import MAX_PARTS
from planner_api.planning import Budget, Machine, PlanningError, Problem, check, optimise, simulate
from planner_api.planning.bound import quick_bound
from planner_api.planning.construct import vsm
from planner_api.planning.construct.tiling import COLUMNS, ROWS, Tiler
from planner_api.planning.construct.vsm import blocks_of, tiled
from planner_api.planning.methods import solve
from planner_api.planning.problem import FloatArray
from tests import CAMPAIGN
from tests.planning.cuttable import cuttable

Spans = tuple[tuple[int, int, bool], ...]


def hosts(count: int) -> Machine:
    """A device and so many hosts with one processor each, over one radio."""
    places = 1 + count
    busy = np.where(np.eye(places, dtype=bool), -1, 0)
    return Machine(
        processors=tuple(f"p{k}" for k in range(places)),
        uses=np.eye(places, dtype=np.bool_),
        places=("host", *(f"edge{k}" for k in range(count))),
        place=np.arange(places),
        busy=busy,
        queues=("radio",),
        launch_us=np.zeros(places),
        end_us=np.zeros(places),
        slowdown=np.ones(places),
        memory=np.arange(places),
        owner=np.arange(places),
    )


def chain(us: list[float], count: int, rows: int = 12) -> Problem:
    """A chain on a slow device and ``count`` hosts that take ``us`` each."""
    latency = [[50.0 * one, *(one for _ in range(count))] for one in us]
    before = [[k - 1] if k else [] for k in range(len(us))]
    return cuttable(latency, before, rows, columns=rows, machine=hosts(count))


def ways(n: int) -> Iterator[Spans]:
    """All ways to divide n ops into stretches in tiles and ops on one host."""
    if not n:
        yield ()
        return
    for size, divided in itertools.product(range(1, n + 1), (False, True)):
        if divided or size == 1:
            for rest in ways(n - size):
                yield (*rest, (n - size, n, divided))


def tiler_of(problem: Problem, team: Sequence[int], rows: int, home: Sequence[int]) -> Tiler:
    """Tiles within the plan that has ops at home, in their order."""
    whole = simulate(problem, home, problem.lists.order)
    return Tiler(problem, team, rows, whole, blocks_of(problem, whole))


def counted_us(tiler: Tiler, spans: Spans) -> float:
    """What a way takes by the method's count, written out: a tile waits for the boxes that its own place lacks, which
    come after those of the tiles before it.
    """
    problem, count = tiler.problem, len(tiler.team)
    lines = [
        [Span(axis, round(extent * k / parts), round(extent * (k + 1) / parts)) for k in range(parts)]
        for axis, parts in tiler.counts.items()
        for extent in [tiler.cutter.shapes["x"][axis]]
    ]
    equal = [Region(spans) for spans in itertools.product(*lines)]
    at = tuple(tuple(span.start for span in line[1:]) for line in lines)
    places = [int(problem.machine.place[home]) for home in tiler.home]
    total, was_tiled = 0.0, False

    for first, stop, divided in spans:
        tensor = problem.reads[first][0]
        if divided:
            last = [Cut(op=f"t{k}", axes=tiler.axes, at=at, chained=k > first) for k in range(first, stop)]
            computed = regions(tiler.cutter.nodes[first:stop], last, tiler.cutter.shapes)
            arrived, ends = total, [total] * problem.host
            for tile, part in enumerate(computed[f"t{first}"]):
                need = tiler.cutter.nodes[first].needs(part)[problem.tensors[tensor]]
                assert need is not None
                boxes = []
                for other, own in enumerate(equal) if was_tiled else ():
                    both = [range(max(a[1], b[1]), min(a[2], b[2])) for a, b in zip(own.spans, need.spans, strict=True)]
                    if other != tile and all(both):
                        spans_of = zip(own.spans, both, strict=True)
                        box = Region(tuple(Span(a.axis, r.start, r.stop) for a, r in spans_of))
                        boxes.append((box, tiler.places[other]))
                if not was_tiled:
                    boxes.append((need, places[first - 1] if first else problem.machine.host))
                arrived += sum(tiler.move_us(tensor, box, place, tiler.places[tile]) for box, place in boxes)
                here = tiler.team[tile]
                own_us = [float(tiler.cutter.part_us(k, computed[f"t{k}"][tile])[here]) for k in range(first, stop)]
                ends[here] = max(arrived, ends[here]) + sum(own_us)
            assert count == len(equal)
            total = max(ends)
        else:
            total += sum(float(problem.latency_us[k, tiler.home[k]]) for k in range(first, stop))
            if was_tiled:
                total += gathered(tiler, equal, tensor, places[first])
            else:
                total += tiler.move_us(
                    tensor, None, places[first - 1] if first else problem.machine.host, places[first]
                )
        was_tiled = divided
    last = len(problem.tensors) - 1
    if was_tiled:
        return total + gathered(tiler, equal, last, problem.machine.host)
    return total + tiler.move_us(last, None, places[-1], problem.machine.host)


def gathered(tiler: Tiler, equal: list[Region], tensor: int, target: int) -> float:
    """What bringing all tiles of a tensor to a place takes."""
    return sum(tiler.move_us(tensor, own, place, target) for own, place in zip(equal, tiler.places, strict=True))


@given(
    us=st.lists(st.floats(1, 60), min_size=1, max_size=5),
    grid=st.sampled_from([(2, 1), (1, 2), (3, 1), (2, 2)]),
    home=st.lists(st.integers(0, 2), min_size=5, max_size=5),
    in_turns=st.booleans(),
)
@settings(max_examples=100 if CAMPAIGN else 15, deadline=None)
def test_no_other_division_of_a_stack_is_counted_less(
    us: list[float], grid: tuple[int, int], home: list[int], in_turns: bool
) -> None:
    """The dynamic program against trying every division into stretches, whose halos the algebra of cuts works out.

    What is not in tiles is on the device or on hosts, as any plan has it. One host may take all tiles in turns.
    """
    count = grid[0] * grid[1]
    team = [1] * count if in_turns else range(1, count + 1)
    tiler = tiler_of(chain(us, count), team, grid[0], home[: len(us)])
    found, at = [], 0
    for stretch in tiler.best([(k,) for k in range(len(us))])[1]:
        found += [(k, k + 1, False) for k in range(at, stretch.first)]
        at = stretch.first + len(stretch.tiles)
        found.append((stretch.first, at, True))
    found += [(k, k + 1, False) for k in range(at, len(us))]
    assert counted_us(tiler, tuple(found)) == pytest.approx(min(counted_us(tiler, way) for way in ways(len(us))))


@given(us=st.lists(st.floats(100, 400), min_size=2, max_size=6), count=st.integers(2, 4))
@settings(max_examples=60 if CAMPAIGN else 10, deadline=None)
def test_plans_in_tiles_are_legal_and_only_taken_where_they_gain(us: list[float], count: int) -> None:
    """The checker has them, and with tiles to begin from ours is never above them or the best host alone."""
    problem = chain(us, count)
    assert problem.cuttable
    best = min(simulate(problem, [p] * len(us), problem.lists.order).makespan_us for p in range(count + 1))
    found = solve(problem, "vsm", Budget(rounds=0))
    check(found.cut or problem, found.schedule)
    assert found.schedule.makespan_us <= solve(problem, "hpa", Budget(rounds=0)).schedule.makespan_us
    ours = optimise(problem, "auto", Budget(rounds=2)).solution.schedule.makespan_us
    assert ours <= min(best, 1.01 * found.schedule.makespan_us) + 1e-6


def test_heavy_stacks_are_shared_by_all_hosts() -> None:
    """Four hosts compute a heavy stack in less than 0.45 of one's time, the halo computed twice included."""
    problem = chain([4000.0] * 8, 4, rows=56)
    alone = simulate(problem, [1] * 8, problem.lists.order).makespan_us
    assert optimise(problem, "auto", Budget(rounds=3)).solution.schedule.makespan_us <= 0.45 * alone


def test_squares_are_chosen_where_their_halos_are_less() -> None:
    """Four square tiles of a large image need less of each other than four stripes, over hosts as over cores."""
    for machine in (None, Machine.apart([f"core{k}" for k in range(4)])):
        us = [4000.0] * 6
        before = [[k - 1] if k else [] for k in range(len(us))]
        problem = (
            chain(us, 4, rows=224) if machine is None else cuttable([[one] * 4 for one in us], before, 224, columns=224)
        )
        found = solve(problem, "vsm", Budget(rounds=0))
        assert {cut.axes for cut in found.cuts} == {(ROWS, COLUMNS)}
        assert found.cut is not None
        check(found.cut, found.schedule)
        stripes = tiler_of(problem, range(problem.host - 4, problem.host), 4, [problem.host - 4] * 6).solution()
        assert stripes is not None
        assert found.schedule.makespan_us < stripes.schedule.makespan_us


def test_what_is_as_fast_makes_a_team_however_fast_another_host_is() -> None:
    """Equal hosts share a stack although another, behind a slow link, computes all of it in less."""
    us = [4000.0] * 8
    problem = chain(us, 5, rows=56)
    latency = problem.latency_us.copy()
    latency[:, 5] /= 50
    far = problem.transfer_us.copy()
    far[:, 5, :5], far[:, :5, 5] = 1e6, 1e6
    found = solve(replace(problem, latency_us=latency, transfer_us=far), "vsm", Budget(rounds=0))
    assert {1, 2} < set(found.schedule.assignment) - {0} <= {1, 2, 3, 4}  # the device cuts what it sends


def test_what_is_not_in_tiles_stays_where_a_plan_has_it() -> None:
    """An op that reads everything behind a heavy stack is computed on the host that it is given."""
    problem = chain([4000.0] * 5, 4, rows=56)
    assert problem.cutter is not None
    object.__setattr__(problem.cutter.nodes[4], "needs", lambda part: {"t3": None})
    found = tiled(problem, simulate(problem, [1, 1, 1, 1, 3], problem.lists.order))
    assert found.cut is not None
    assert [cut.op for cut in found.cuts] == [node.id for node in problem.cutter.nodes[:4]]
    where = dict(zip(found.cut.ops, found.schedule.assignment, strict=True))
    assert where[problem.ops[4]] == 3
    check(found.cut, found.schedule)


def test_what_is_not_worth_tiles_stays_whole() -> None:
    """Without a second host, or knowledge of parts, there are none, and by name the plan of whole ops answers."""
    problem = chain([10.0] * 3, 1)
    whole = solve(problem, "hpa", Budget(rounds=0))
    for asked in (problem, problem.whole):
        assert tiled(asked, whole.schedule) is None
        assert solve(asked, "vsm", Budget(rounds=0)).schedule == whole.schedule


def test_tiles_lie_within_another_plan_where_hpa_has_none() -> None:
    """Where HPA would leave an op where it cannot run, tiles lie within a plan that another method has."""
    never, us = math.inf, 4000.0
    latency = [[50 * us, us, us, us, us] for _ in range(8)]
    latency[0] = [never, never, never, never, us]
    latency[1] = [never, us, never, never, never]  # of a tier before that of what it reads
    asked = cuttable(latency, [[], *([k] for k in range(7))], 56, columns=56, machine=hosts(4))
    with pytest.raises(PlanningError):
        solve(asked, "hpa", Budget(rounds=0))
    found = solve(asked, "vsm", Budget(rounds=0))
    assert found.cut is not None
    check(found.cut, found.schedule)


@st.composite
def networks(draw: st.DrawFn) -> list[list[int]]:
    """What each op reads, of one to four ops before it or the input."""
    n = draw(st.integers(2, 8))
    return [sorted(draw(st.sets(st.integers(max(0, k - 3), k - 1), max_size=2))) if k else [] for k in range(n)]


@given(before=networks(), team=st.sampled_from([(1, 2), (1, 1), (1, 2, 1, 2), (2, 2, 2)]), us=st.floats(500, 5000))
@settings(max_examples=200 if CAMPAIGN else 20, deadline=None)
def test_what_is_counted_of_branches_is_what_cuts_make(
    before: list[list[int]], team: tuple[int, ...], us: float
) -> None:
    """Tiles of networks that branch are those that the algebra of cuts makes of the plan's cuts, and it is legal."""
    problem = cuttable([[50 * us, us, us]] * len(before), before, 24, columns=24, machine=hosts(2))
    tiler = tiler_of(problem, team, len(team), [1] * len(before))
    found = tiler.solution()
    if found is None:
        return
    assert found.cut is not None
    check(found.cut, found.schedule)
    made = regions(tiler.cutter.nodes, found.cuts, tiler.cutter.shapes)
    stretches = [stretch for _, stretches in tiler.found for stretch in stretches]
    counted = {problem.ops[op]: list(tiles) for stretch in stretches for op, tiles in stretch.tiles.items()}
    assert {op: made[op] for op in counted} == counted


def over_radio(cores: int = 1, rows: int = 64) -> Problem:
    """A chain on a slow device and a host behind a radio that takes 16 ms for the input, of any part its share."""
    machine = many_cores(cores)
    problem = cuttable([[200_000.0, *[4000.0] * cores]] * 3, [[], [0], [1]], rows, columns=rows, machine=machine)
    cutter, transfer = problem.cutter, problem.transfer_us.copy()
    transfer[0, 0, 1] = 16_000.0
    assert cutter is not None
    costs = cutter.move_us

    def move_us(tensor: str, shape: tuple[int, ...]) -> FloatArray:
        found = costs(tensor, shape).copy()
        if tensor == "x":
            found[0, 1] = 16_000.0 * shape[2] / rows
        return found

    return replace(problem, cutter=replace(cutter, move_us=move_us), transfer_us=transfer)


def many_cores(count: int) -> Machine:
    """A device, and one host with so many processors."""
    return replace(
        hosts(count),
        places=("host", "edge0"),
        place=np.array([0, *[1] * count]),
        busy=np.where(np.eye(2, dtype=bool), -1, 0),
        memory=np.array([0, *[1] * count]),
        owner=np.arange(2),
    )


def test_what_is_sent_is_computed_while_more_is_sent() -> None:
    """One host behind a slow radio takes a picture in stripes, each of which crosses once, and is done sooner."""
    problem = over_radio()
    alone = simulate(problem, [1] * 3, problem.lists.order)
    found = tiled(problem, alone)
    assert found.cut is not None
    check(found.cut, found.schedule)
    sent = [move for move in found.schedule.transfers if move.source == 0]
    assert len(sent) > 1
    assert sum(move.finish_us - move.start_us for move in sent) == pytest.approx(16_000.0)
    assert found.schedule.makespan_us < 0.8 * alone.makespan_us


def test_an_overdrawn_budget_ends_what_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a search that is late the first division answers; without a budget all are tried, and no worse is found."""
    problem, tried = over_radio(), list[tuple[int, ...]]()
    monkeypatch.setattr(vsm, "Tiler", lambda *asked: tried.append(asked[1]) or Tiler(*asked))
    alone = simulate(problem, [1] * 3, problem.lists.order)
    late = tiled(problem, alone, Budget(0.0))
    assert len(tried) == 1
    assert tiled(problem, alone).schedule.makespan_us <= late.schedule.makespan_us
    assert len(tried) == 1 + 3 + len(vsm.LEANS)


@pytest.mark.parametrize("rows", [1, 2, 4])
def test_cores_of_a_host_share_what_is_sent_to_them(rows: int) -> None:
    """Tiles of any division over one host's processors are made of an input that is no square, and are legal."""
    problem = cuttable([[200_000.0, *[4000.0] * 4]] * 2, [[], [0]], 24, columns=40, machine=many_cores(4))
    found = tiler_of(problem, range(1, 5), rows, [1, 1]).solution()
    assert found is not None
    assert found.cut is not None
    check(found.cut, found.schedule)


def test_no_team_has_more_tiles_than_an_op_may_have_parts() -> None:
    """Twelve cores that take turns at what a slow radio brings would make 96 tiles, which no plan can say."""
    problem = over_radio(12, 256)
    found = tiled(problem, simulate(problem, [1] * 3, problem.lists.order))
    assert found.cut is not None
    check(found.cut, found.schedule)
    assert max(len(at) for cut in found.cuts for at in cut.at) < MAX_PARTS


def test_rows_that_no_tile_reads_are_not_sent() -> None:
    """Windows that step over the last row of an input leave it: a plan in bands has no op for it."""
    problem = over_radio()
    assert problem.cutter is not None
    first = problem.cutter.nodes[0].needs

    def needs(part: Region) -> dict[str, Region | None]:
        found = first(part)["x"]
        assert found is not None
        return {"x": Region(tuple(Span(axis, start, min(stop, 63)) for axis, start, stop in found.spans))}

    object.__setattr__(problem.cutter.nodes[0], "needs", needs)
    found = tiled(problem, simulate(problem, [1] * 3, problem.lists.order))
    assert found.cut is not None
    check(found.cut, found.schedule)
    assert any(cut.op == "x" for cut in found.cuts)
    assert "x[2:63:64]" not in found.cut.ops


def test_what_reads_everything_ends_a_stack() -> None:
    """An op whose parts read all of their input is not computed in tiles."""
    problem = chain([4000.0] * 4, 2)

    def runs() -> list[list[tuple[int, ...]]]:
        return list(tiler_of(problem, [1, 2], 2, [1] * 4).runs())

    assert runs() == [[(0,), (1,), (2,), (3,)]]
    node = problem.cutter.nodes[2] if problem.cutter else None
    assert node is not None
    object.__setattr__(node, "needs", lambda part: {"t1": None})
    assert runs() == [[(0,), (1,)], [(3,)]]

    def refused(part: Region) -> dict[str, Region | None]:
        raise CutError("no")

    object.__setattr__(node, "needs", refused)
    assert runs() == [[(0,), (1,)], [(3,)]]


@given(seed=st.integers(0, 10**6))
@example(seed=211)  # what an op saves by itself is less than bringing its parts together: `auto` cuts none
@settings(max_examples=300 if CAMPAIGN else 8, deadline=None)
def test_no_plan_in_tiles_is_below_the_bound(seed: int) -> None:
    """On cores of one host and on several hosts, whatever ops and moves take: the bound is below what is found."""
    random = np.random.default_rng(seed)
    n, count, rows = int(random.integers(1, 9)), int(random.integers(1, 7)), int(random.choice([10, 20, 40]))
    machine = hosts(count) if random.random() < 0.7 else Machine.apart([f"p{k}" for k in range(1 + count)])
    scale = random.choice([0.01, 1.0, 20.0, 1000.0], (n, 1)) * random.uniform(0.5, 2.0, (n, 1))
    latency = scale * np.append(random.choice([1.0, 5.0, 50.0]), random.uniform(0.9, 1.5, count))
    before = [sorted({*random.integers(max(0, k - 2), k, 2).tolist()}) if k else [] for k in range(n)]
    problem = cuttable(latency.tolist(), before, rows, columns=rows, machine=machine)
    if random.random() < 0.5:
        free = np.zeros_like(problem.transfer_us)
        cutter = replace(problem.cutter, move_us=lambda *_: free[0])
        problem = replace(problem, transfer_us=free, cutter=cutter)
    found = solve(problem, "vsm", Budget(0.0))
    assert quick_bound(problem).us <= found.schedule.value_us * (1 + 1e-9)


def test_many_tiles_are_smaller_than_any_stripe() -> None:
    """Sixteen cores compute a sixteenth of each op: less than the tenth that is the smallest stripe."""
    cores = Machine.apart([f"p{k}" for k in range(16)])
    outcome = optimise(cuttable([[1e5] * 16] * 2, [[], [0]], 64, columns=64, machine=cores), "vsm", Budget(0.0))
    assert outcome.solution.schedule.value_us < 0.13 * 2e5
    assert outcome.bound.us == pytest.approx(2e5 / 16)


def test_a_measured_part_may_take_less_than_smaller_ones_are_predicted_to() -> None:
    """The tenths of an op are measured, all smaller parts are predicted to take a third of it: the path heeds both."""
    problem = cuttable([[1e5] * 10] * 2, [[], [0]], 100)
    predicted = problem.cutter.part_us

    def part_us(op: int, part: Region) -> np.ndarray:
        return np.maximum(predicted(op, part), 0.3e5 if any(stop - start < 10 for _, start, stop in part.spans) else 0)

    problem = replace(problem, cutter=replace(problem.cutter, part_us=part_us))
    outcome = optimise(problem, "vsm", Budget(0.0))
    assert quick_bound(problem).us <= outcome.solution.schedule.value_us
