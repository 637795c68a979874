"""The literature's methods, held to the figures that are known of them."""

from __future__ import annotations

import itertools
import json
import math
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.figures import COLUMNS, TITLES
from benchmarks.mulayer import mulayer_us
from benchmarks.phones import main, replay
from benchmarks.phones import plan as benchmarked
from benchmarks.profiles import phone_problem
from benchmarks.rounds import in_rounds
from planner_api.planning import Budget, Machine, PlanningError, Problem, check, optimise
from planner_api.planning.bound import lower_bound
from planner_api.planning.construct.greedy import super_ops, top_k
from planner_api.planning.construct.mosaic import branches, levels
from planner_api.planning.construct.single import singles
from planner_api.planning.methods import solve
from tests import CAMPAIGN
from tests.planning.drawn import draw
from tests.planning.phones import FOLDER, phone

REPLAYED = [
    ("redmi--inception-v3", "cpu_big_1", 1516.5, 833.5, 825.6, 638.5, 632.1),
    ("redmi--inception-v3", "cpu_big_2", 811.5, 833.5, 742.0, 535.8, 500.1),
    ("redmi--inception-v3", "cpu_big_4", 479.5, 833.5, 479.5, 354.9, 354.7),
    ("redmi--inception-v4", "cpu_big_4", 1179.5, 1965.1, 1179.5, 1000.6, 958.8),
    ("redmi--nasnet-large", "cpu_big_4", 3167.4, 4858.1, 2956.6, 2048.9, 1998.2),
    ("redmi--pnasnet-large", "cpu_big_4", 3337.3, 5468.5, 3280.0, 2252.7, 2079.2),
    ("redmi--pnasnet-mobile", "cpu_big_4", 142.0, 588.5, 142.5, 127.4, 132.8),
    ("huawei_p40--inception-v3", "cpu_big_2", 173.1, 169.8, None, 110.0, 105.2),
    ("huawei_p40--inception-v4", "cpu_big_2", 435.2, 327.1, None, 259.0, 236.5),
    ("huawei_p40--nasnet-large", "cpu_big_2", 1037.3, 1010.3, None, 611.0, 537.9),
]
"""Published replays in ms: all CPU, all GPU, MOSAIC, HOPE greedy, HOPE:LP."""


@pytest.mark.parametrize("row", REPLAYED, ids=lambda row: f"{row[0]}-{row[1]}")
def test_the_authors_placements_replay_to_the_published_times(row: tuple[str, str, float, float, float, float, float]):
    """Every number of the replay table within 0.1 % (or the table's last digit)."""
    stem, cpu, *milliseconds = row
    profile = phone(stem)
    problem = phone_problem(profile, cpu)
    n = len(problem.ops)
    placements = ["C" * n, "G" * n]
    placements += [profile.plans.get(f"{name}/{cpu}", "") for name in ("mosaic", "hope_greedy", "hope_lp")]
    for letters, expected in zip(placements, milliseconds, strict=True):
        if expected is not None:
            assert replay(problem, letters) / 1e3 == pytest.approx(expected, rel=1e-3, abs=0.05)


CASES = [
    ("redmi--inception-v3", "cpu_big_4"),
    ("huawei_p40--inception-v4", "cpu_big_2"),
    ("redmi--pnasnet-mobile", "cpu_big_4"),
    ("redmi--nasnet-large", "cpu_big_4"),
    ("huawei_p40--nasnet-large", "cpu_big_2"),
]
KNOWN = {
    "heft": (361.4, 247.7, 128.8, 2007.1, 550.9),
    "dmdar": (375.4, 242.3, 141.9, 2105.3, 590.7),
    "greedy": (377.3, 262.8, 133.7, 2054.9, 564.4),
    "ilp": (354.5, 236.1, 129.3, 2025.5, 558.0),
}


@pytest.mark.parametrize("method", KNOWN)
def test_rebuilt_methods_are_as_strong_as_known(method: str):
    """None is more than 1 % worse than its known makespan; HOPE:LP on the large nets in the campaign only."""
    for (stem, cpu), known in zip(CASES, KNOWN[method], strict=True):
        if method == "ilp" and not CAMPAIGN and stem != "redmi--inception-v3":
            continue
        problem = phone_problem(phone(stem), cpu)
        solution = solve(problem, method, Budget(120.0))
        check(problem, solution.schedule)
        assert solution.schedule.makespan_us / 1e3 <= 1.01 * known, (stem, cpu)


def table_1() -> Problem:
    """PartitionTuner's Fig. 1 with Table 1: v1 -> v2 -> {v3 v4 v5 | v6 v7} -> v8 on a CPU and an NPU, in ms."""
    nowhere = math.inf
    latency = [[1, 10], [2, nowhere], [10, 2], [10, 2], [1, nowhere], [1, 1.5], [1, nowhere], [5, nowhere]]
    return Problem(
        ops=tuple(f"v{index}" for index in range(1, 9)),
        machine=Machine.apart(("cpu", "npu")),
        latency_us=np.array(latency, dtype=float),
        producer=np.arange(8),
        reads=((), (0,), (1,), (2,), (3,), (1,), (5,), (4, 6)),
        is_output=np.arange(8) == 7,
        transfer_us=np.zeros((8, 3, 3)),
        tensors=tuple(f"t{index}" for index in range(1, 9)),
    )


GROUPS = {(3, 4): (10.5, 2.5), (5, 6): (1.5, 2.0)}
"""Table 1's profiles of v4+v5 and v6+v7."""


def fuse(
    problem: Problem, units: Sequence[tuple[int, ...]], groups: Mapping[tuple[int, ...], tuple[float, ...]]
) -> Problem:
    """The same problem with each unit, a single op or a group, as one op."""
    index = {op: unit for unit, members in enumerate(units) for op in members}
    reads = (
        [t for op in members for t in problem.reads[op] if problem.producer[t] not in members] for members in units
    )
    return replace(
        problem,
        ops=tuple("+".join(problem.ops[op] for op in members) for members in units),
        latency_us=np.array([groups.get(members, problem.lists.latency[members[0]]) for members in units], dtype=float),
        producer=np.array([index[int(op)] for op in problem.producer]),
        reads=tuple(map(tuple, reads)),
    )


def test_partitiontuner_takes_14_in_sequence_and_12_5_in_parallel():
    """Fusing both v4+v5 and v6+v7 is best: the NPU runs v3, v4+v5, beside v6+v7 on the CPU."""
    problem, found = table_1(), {}
    for chosen in itertools.product((False, True), repeat=2):
        groups = dict(itertools.compress(GROUPS.items(), chosen))
        starts = {op: members for members in groups for op in members}
        fused = fuse(problem, list(dict.fromkeys(starts.get(op, (op,)) for op in range(8))), groups)
        schedule = benchmarked(fused, "partitiontuner", Budget())[0].schedule
        check(fused, schedule)
        found[chosen] = schedule.makespan_us, schedule.assignment, fused
    assert min(found, key=found.__getitem__) == (True, True)
    parallel, assignment, fused = found[True, True]
    assert (parallel, assignment) == (pytest.approx(12.5), (0, 0, 1, 1, 0, 0))
    one_by_one = in_rounds(fused, assignment, [[unit] for unit in fused.lists.order])
    assert one_by_one.makespan_us == pytest.approx(14.0)


@pytest.mark.parametrize(
    ("units", "homes", "golden"),
    [
        ([(0,), (1,), (2,), (3, 4), (5, 6), (7,)], [1, 0, 1, 1, 1, 0], 23.5),
        ([(0,), (1,), (2,), (3,), (4,), (5, 6), (7,)], [0, 0, 1, 1, 0, 0, 0], 14.5),
    ],
    ids=["by type", "by op"],
)
def test_type_seq_takes_23_5_and_op_seq_14_5(units: list[tuple[int, ...]], homes: list[int], golden: float):
    """Fig. 1, convolutions on the NPU or each op where it is fastest: what is in a row there takes its group's time."""
    fused = fuse(table_1(), units, GROUPS)
    taken = in_rounds(fused, homes, [[unit] for unit in fused.lists.order])
    assert taken.makespan_us == pytest.approx(golden)


def test_branches_are_maximal_chains_and_parallel_ones_share_a_level():
    """PartitionTuner's definitions 1 and 2 on its own figure."""
    assert branches(table_1()) == [[0, 1], [2, 3, 4], [5, 6], [7]]
    assert levels(table_1()) == [[0, 1], [2, 3, 4, 5, 6], [7]]


@given(seed=st.integers(0, 10**6))
@settings(max_examples=1000 if CAMPAIGN else 30)
def test_levels_are_equal_exactly_for_the_same_ends_and_run_in_topological_order(seed: int):
    """On random graphs: chains partition the ops, equal levels share their input and output nodes, edges go forward."""
    problem = draw(seed, 30)
    lists, found = problem.lists, branches(problem)
    assert sorted(itertools.chain(*found)) == list(range(len(problem.ops)))
    level = {op: number for number, ops in enumerate(levels(problem)) for op in ops}
    ends = {}
    for branch in found:
        for one, two in itertools.pairwise(branch):
            assert lists.before[two] == [one]
            assert lists.after[one] == [two]
        inputs = frozenset(tensor for tensor in lists.reads[branch[0]] if lists.producer[tensor] < 0)
        ends |= dict.fromkeys(branch, (tuple(lists.before[branch[0]]), inputs, tuple(lists.after[branch[-1]])))
    for one, two in itertools.combinations(level, 2):
        assert (level[one] == level[two]) == (ends[one] == ends[two])
    head = {op: branch[0] for branch in found for op in branch}
    for op, before in enumerate(lists.before):
        for earlier in before:
            assert head[earlier] == head[op] or level[earlier] < level[op]


def test_mosaic_runs_one_slice_after_the_other():
    """Inception-v3 on two cores of the redmi takes 762.4 ms; the same placement overlapped, 711.4."""
    problem = phone_problem(phone("redmi--inception-v3"), "cpu_big_2")
    serial, _ = benchmarked(problem, "mosaic", Budget(0.0))
    assert serial.schedule.makespan_us / 1e3 == pytest.approx(762.4, abs=0.05)
    for one, two in itertools.pairwise(problem.lists.order):
        assert serial.schedule.start_us[two] == serial.schedule.finish_us[one]
    parallel = solve(problem, "mosaic", Budget(0.0))
    assert parallel.schedule.assignment == serial.schedule.assignment
    assert parallel.schedule.makespan_us / 1e3 == pytest.approx(711.4, abs=0.05)


@pytest.mark.parametrize("method", ["mosaic", "partitiontuner"])
@given(seed=st.integers(0, 10**6))
@settings(max_examples=300 if CAMPAIGN else 10)
def test_rounds_are_legal_and_never_faster_than_the_same_placement_without_them(method: str, seed: int):
    """On random problems the checker passes both; what runs in rounds loses, or is the same.

    In MOSAIC's line every op waits for all that the one before took: its work, its moves, the way of its outputs.
    """
    problem = draw(seed, 14, plain=True)
    found, _ = benchmarked(problem, method, Budget(0.0))
    check(problem, found.schedule)
    freed = solve(problem, method, Budget(0.0))
    check(problem, freed.schedule)
    assert freed.schedule.makespan_us <= found.schedule.makespan_us * (1 + 1e-9)
    if method == "mosaic":
        moves = sum(move.finish_us - move.start_us for move in found.schedule.transfers if move.reader >= 0)
        work = sum(problem.latency_us[op, processor] for op, processor in enumerate(found.schedule.assignment))
        ways = sum(np.subtract(found.schedule.done_us, found.schedule.finish_us))
        assert found.schedule.makespan_us == pytest.approx(moves + work + ways)


def test_mulayer_splits_where_it_pays_and_never_what_cannot_be_split():
    """Halves of a balanced op, a quarter of a lopsided one, a whole one where the synchronisation eats the gain."""
    latency = np.array([[8.0, 8.0], [12.0, 4.0], [2.0, 2.0], [8.0, 8.0], [6.0, math.inf]])
    splittable = [True, True, True, False, True]
    assert mulayer_us(latency, splittable, 1.0) == pytest.approx(5.0 + 4.0 + 2.0 + 8.0 + 6.0)
    assert mulayer_us(latency, splittable, 0.0) == pytest.approx(4.0 + 3.0 + 1.0 + 8.0 + 6.0)
    with pytest.raises(PlanningError, match="two processors"):
        mulayer_us(np.ones((3, 3)), [True] * 3, 0.0)


def test_a_plan_says_what_it_owes_to_another_method():
    """ILP plans that HOPE:GS or one processor replaces, and orders that are not the program's, are named as such."""
    problem = phone_problem(phone("huawei_p40--pnasnet-mobile"), "cpu_big_4")
    replaced = optimise(problem, "ilp", Budget(0.0)).solution
    assert replaced.method in ("ilp→greedy", "ilp→single")
    assert "parts stopped" in replaced.notes[0]
    lone = optimise(problem, "heft", Budget(0.0)).solution
    assert lone.method == "heft→single"
    reordered = optimise(phone_problem(phone("redmi--inception-v3"), "cpu_big_2"), "ilp", Budget(rounds=1)).solution
    assert reordered.method == "ilp"
    assert reordered.notes == ("list scheduling changed the order of the program",)


def test_greedy_merges_short_ops_and_searches_as_wide_as_hope():
    """K is 4 for two processors and 3 for three; an op cheaper than any move of its input joins the op before it."""
    assert [top_k(processors) for processors in (1, 2, 3, 4, 28)] == [4, 4, 3, 2, 1]
    problem = phone_problem(phone("redmi--inception-v3"), "cpu_big_4")
    groups = super_ops(problem)
    assert sorted(op for group in groups for op in group) == list(range(len(problem.ops)))
    assert len(groups) < len(problem.ops)
    before, reads = problem.lists.before, problem.lists.reads
    cheapest = np.minimum(problem.transfer_us[:, 0, 1], problem.transfer_us[:, 1, 0])
    short = [all(row.mean() < cheapest[reads[op]]) for op, row in enumerate(problem.latency_us)]
    for group in groups:
        assert all(short[op] and before[op] == [earlier] for earlier, op in itertools.pairwise(group))
    # Who could join the op before it, and did not, came after another that did.
    inner = {op for group in groups for op in group[:-1]}
    assert all(before[group[0]][0] in inner for group in groups if short[group[0]] and len(before[group[0]]) == 1)


def test_the_benchmark_writes_rows_that_hold(tmp_path: Path):
    """`python -m benchmarks.phones` on one profile: rows as documented, each a legal schedule with its makespan."""
    phone("redmi--inception-v3")
    out, schedules = tmp_path / "found.json", tmp_path / "schedules.json"
    names = "greedy,heft,mosaic,mosaic+overlap"
    command = [str(FOLDER), "--models", "inception-v3", "--cpu", "cpu_big_4", "--methods", names]
    main([*command, "--budget", "1", "--json", str(out), "--schedules", str(schedules)])
    found = json.loads(out.read_text())
    assert {"machine", "date", "commit", "rows", "tables"} == set(found)
    assert all({"measure", "value", "must", "ok"} == set(row) for row in found["rows"])
    (plans,) = found["tables"]
    assert plans["columns"][3:7] == names.split(",")
    rows = json.loads(schedules.read_text())
    assert [row["method"] for row in rows] == [row["found_by"] for row in rows]
    profiles = ("redmi--inception-v3", "huawei_p40--inception-v3")
    assert {(row["profile"], row["method"]) for row in rows} == set(itertools.product(profiles, names.split(",")))
    for row in rows:
        profile = phone(row["profile"])
        problem = phone_problem(profile, row["cpu"])
        assert row["lower_bound_us"] <= row["makespan_us"]
        assert sorted(op for op, *_ in row["schedule"]) == list(range(len(problem.ops)))
        assert max(finish for *_, finish in row["schedule"]) == pytest.approx(row["makespan_us"])
        for op, place, start, finish in row["schedule"]:
            assert finish - start >= problem.latency_us[op, ("cpu", "gpu").index(place)] - 1e-6


def test_the_benchmark_leaves_a_baseline_as_it_is_and_the_planner_answers_with_what_is_better():
    """Where one processor beats HEFT its row says so; the planner's own greedy method answers with that processor."""
    problem = phone_problem(phone("huawei_p40--pnasnet-mobile"), "cpu_big_2")
    alone = min(schedule.makespan_us for _, schedule in singles(problem))
    baseline, _ = benchmarked(problem, "heft", Budget(0.0))
    assert baseline.schedule == solve(problem, "heft", Budget(0.0)).schedule
    assert baseline.schedule.makespan_us > alone
    assert optimise(problem, "greedy", Budget(0.0)).solution.schedule.makespan_us <= alone


def test_hopes_figures_are_drawn_from_their_own_methods(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """``--figures`` on one network: every column over the GPU, the paper's percentages beside what was found."""
    phone("redmi--inception-v3")
    out = tmp_path / "found.json"
    command = [str(FOLDER), "--models", "redmi--inception-v3", "--cpu", "cpu_big_4", "--methods", "single"]
    main([*command, "--budget", "0.2", "--figures", "--json", str(out)])
    _, over_gpu, four, six, five, seven = json.loads(out.read_text())["tables"]
    (ratios,) = [dict(zip(over_gpu["columns"], row, strict=True)) for row in over_gpu["rows"]]
    assert list(ratios)[3:] == [TITLES.get(name, "ours") for name in ("cpu", *COLUMNS)]
    assert ratios["CPU"] == pytest.approx(479.5 / 833.5, rel=1e-3)
    assert ratios["MOSAIC"] == pytest.approx(477.9 / 833.5, rel=1e-3)
    papers = {row[0]: dict(zip(four["columns"], row, strict=True)) for row in four["rows"]}
    assert papers["LP below MOSAIC"]["inception-v3"].endswith("(23.4)")
    assert next(row[3] for row in five["rows"] if row[:2] == ["medium", "LP below DMDAR"]).endswith("(20.4)")
    assert next(row[2] for row in six["rows"] if row[:2] == ["redmi", "LP below μLayer"]).endswith("(8.0)")
    assert next(row[2] for row in seven["rows"] if row[1] == "LP below DMDAR").endswith("(15.7)")
    assert "Figure 7" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("content", "options", "words"),
    [
        (None, [], "no <phone>--<model>.json here"),
        ("{", [], "Expecting property name"),
        ("{}", [], "'ops' is missing"),
        ('{"ops": [], "tensors": {}, "transfer_us": []}', [], "no op that was measured on a CPU"),
        ("GOOD", ["--models", "vgg"], "no profile of 'vgg'"),
        ("GOOD", ["--cpu", "cpu_big_9"], "not measured on 'cpu_big_9', only on cpu_big_1"),
        ("GOOD", ["--methods", "magic"], "no method 'magic'"),
        ("GOOD", ["--methods", ""], "no method was named"),
        ("GOOD", ["--budget", "nan"], "cannot be spent"),
        ("GOOD", ["--json", "/nowhere/at/all.json"], "no folder to write this into"),
    ],
)
def test_the_benchmark_answers_bad_input_with_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str | None, options: list[str], words: str
):
    """Missing or broken files and unknown names: exit code 2 and a line that says what is wrong."""
    good = {
        "ops": [{"name": "a", "inputs": ["x"], "outputs": ["y"], "latency_us": {"cpu_big_1": 1.0, "gpu": 2.0}}],
        "tensors": {"x": [1], "y": [1]},
        "transfer_us": [{"shape": [1], "cpu_to_gpu": 1.0, "gpu_to_cpu": 1.0}],
    }
    if content is not None:
        (tmp_path / "p--m.json").write_text(json.dumps(good) if content == "GOOD" else content)
    with pytest.raises(SystemExit, match="2"):
        main([str(tmp_path), "--methods", "greedy", *options])
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1


def test_the_benchmark_runs_as_a_module(tmp_path: Path):
    """Without a folder the command fails with usage, not with a traceback."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.phones", str(tmp_path / "nowhere")],
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
        cwd=Path(__file__).resolve().parents[2],
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert "there is no such folder" in done.stderr


def test_mosaic_gives_up_on_graphs_that_keep_too_much_alive(monkeypatch: pytest.MonkeyPatch):
    """A graph too wide for linear slicing is a typed error alone, and the best plan in hand through optimise."""
    monkeypatch.setattr("planner_api.planning.construct.mosaic.MOST_STEPS", 10)
    with pytest.raises(PlanningError, match=r"too long .* tensors are alive"):
        solve(table_1(), "mosaic", Budget(0.0))
    outcome = optimise(table_1(), "mosaic", Budget(0.0))
    assert "too long" in outcome.solution.notes[0]


@pytest.mark.skipif(not CAMPAIGN, reason="a minute per profile and CPU configuration: HOPE_CAMPAIGN=1 runs it")
@pytest.mark.parametrize("stem", sorted(path.stem for path in FOLDER.glob("*--*.json") if path.suffixes == [".json"]))
def test_no_bound_is_above_any_makespan_in_a_minute(stem: str) -> None:
    """On every phone, no method, not even ours with a minute, gets below the bound that is proven."""
    profile = phone(stem)
    for cpu in profile.cpus:
        problem = phone_problem(profile, cpu)
        ours = optimise(problem, "auto", Budget(60.0))
        others = [solve(problem, name, Budget(5.0)) for name in ("heft", "dmdar", "greedy", "mosaic", "ilp")]
        least = min(plan.schedule.makespan_us for plan in (ours.solution, *others))
        assert max(ours.bound.us, lower_bound(problem, Budget(60.0)).us) <= least * (1 + 1e-9)
