"""The simulator against an independent reading of the cost model, and the checker against broken schedules."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from planner_api.planning import (
    Budget,
    IllegalSchedule,
    Job,
    Machine,
    Move,
    Problem,
    Schedule,
    check,
    optimise,
    simulate,
)
from planner_api.planning.judge.simulator import Decoder, in_start_order
from tests import CAMPAIGN
from tests.planning.drawn import draw, shuffled
from tests.planning.machines import apart
from tests.planning.oracle import timing


def small(queued: bool = False, conflicts: np.ndarray | None = None, **changes: object) -> Problem:
    """A -> {b, c} -> d on two processors; tensor i is written by op i; moves cost 10 one way and 1 the other."""
    transfer = np.zeros((4, 3, 3))
    transfer[:, 0, 1], transfer[:, 1, 0] = 10.0, 1.0
    columns: dict[str, object] = {
        "ops": ("a", "b", "c", "d"),
        "machine": apart(("cpu", "gpu"), conflicts, queued=queued),
        "latency_us": np.array([[4.0, 5.0], [6.0, 3.0], [6.0, 3.0], [2.0, 9.0]]),
        "producer": np.arange(4),
        "reads": ((), (0,), (0,), (1, 2)),
        "is_output": np.array([False, False, False, True]),
        "transfer_us": transfer,
        "tensors": ("ta", "tb", "tc", "td"),
    }
    return Problem(**(columns | changes))


def test_the_first_consumer_pays_and_the_next_one_finds_the_tensor_there():
    """Blocking: b and c both read ta on the GPU; b pays 10, c pays nothing; d fetches both results for 1 each."""
    schedule = simulate(small(), [0, 1, 1, 0], [0, 1, 2, 3])
    assert schedule.start_us == (0.0, 4.0, 17.0, 20.0)
    assert schedule.finish_us == (4.0, 17.0, 20.0, 24.0)
    assert schedule.transfers[:3] == (
        Move(0, 0, 1, 4.0, 14.0, 1),
        Move(1, 1, 0, 20.0, 21.0, 3),
        Move(2, 1, 0, 21.0, 22.0, 3),
    )


def test_a_queue_moves_a_tensor_while_its_processors_work():
    """With queues: tb travels while c computes, so d starts when tc has arrived."""
    schedule = simulate(small(queued=True), [0, 1, 1, 0], [0, 1, 2, 3])
    assert schedule.start_us == (0.0, 14.0, 17.0, 21.0)
    assert schedule.makespan_us == 23.0


def test_a_queue_serves_first_in_first_out():
    """With queues: two tensors that exist one after the other queue on the channel between the same two processors."""
    transfer = np.zeros((3, 3, 3))
    transfer[:, 0, 1] = 10.0
    problem = small(
        queued=True,
        ops=("a", "b", "c"),
        latency_us=np.array([[1.0, 1.0], [1.0, 1.0], [1.0, 1.0]]),
        producer=np.arange(3),
        reads=((), (), (0, 1)),
        is_output=np.zeros(3, dtype=bool),
        transfer_us=transfer,
        tensors=("ta", "tb", "tc"),
    )
    assert simulate(problem, [0, 0, 1], [0, 1, 2]).start_us[2] == 21.0


def test_inputs_start_and_outputs_end_on_the_host():
    """The host charges for a graph input's way in and for a graph output's way out."""
    transfer = np.zeros((2, 2, 2))
    transfer[:, 1, 0], transfer[:, 0, 1] = 3.0, 7.0
    problem = Problem(
        ops=("a",),
        machine=Machine.apart(("cpu",)),
        latency_us=np.array([[5.0]]),
        producer=np.array([-1, 0]),
        reads=((0,),),
        is_output=np.array([False, True]),
        transfer_us=transfer,
        tensors=("x", "y"),
    )
    schedule = simulate(problem, [0], [0])
    assert (schedule.finish_us, schedule.makespan_us) == ((8.0,), 15.0)


def test_processors_that_share_a_resource_take_turns():
    """B and c run side by side on two processors, and one after the other once these share a core."""
    free = simulate(small(transfer_us=np.zeros((4, 3, 3))), [0, 0, 1, 0], [0, 1, 2, 3])
    gang = small(transfer_us=np.zeros((4, 3, 3)), conflicts=np.ones((2, 2), dtype=bool))
    shared = simulate(gang, [0, 0, 1, 0], [0, 1, 2, 3])
    assert (free.makespan_us, shared.makespan_us) == (12.0, 15.0)


@given(seed=st.integers(0, 10**6), hosts=st.booleans())
@example(seed=1476, hosts=False)  # an output is sent home before others may take it in
@example(seed=2375, hosts=False)  # an op begins in the instant in which a neighbour ends, but for the order of a sum
@example(seed=21340, hosts=True)  # the same, and a link to another host sends it on from there
@settings(max_examples=2000 if CAMPAIGN else 80)
def test_the_simulator_agrees_with_another_reading_of_its_rules(seed: int, hosts: bool):
    """Every finish time is the smallest that obeys the rules, found without lines or queues, on any machine."""
    problem = draw(seed, 10, rich=True, hosts=hosts)
    placement, order = shuffled(problem, seed)
    schedule = simulate(problem, placement, order)
    finish, value = timing(problem, placement, order)
    assert schedule.value_us == pytest.approx(value)
    assert list(schedule.finish_us) == pytest.approx([finish[op] for op in range(len(problem.ops))])
    if math.isfinite(schedule.makespan_us):
        check(problem, schedule)


@given(seed=st.integers(0, 10**6), hosts=st.booleans())
@settings(max_examples=1000 if CAMPAIGN else 30)
def test_ops_that_are_taken_back_leave_nothing(seed: int, hosts: bool):
    """Two ops placed elsewhere and taken back change no time of a schedule, and a copy goes on without its original."""
    problem = draw(seed, 10, rich=True, hosts=hosts)
    placement, order = shuffled(problem, seed)
    decoder = Decoder(problem)
    for turn, op in enumerate(order):
        before = decoder.copy()
        for tried in order[turn : turn + 2]:
            decoder.place(tried, (placement[tried] + 1) % problem.host)
        for _ in order[turn : turn + 2]:
            decoder.take_back()
        (before if turn % 2 else decoder).append(decoder.times(op, placement[op]))
        decoder = before if turn % 2 else decoder
    assert decoder.schedule() == simulate(problem, placement, order)


@pytest.mark.parametrize(("sequence", "word"), [([1, 0, 2, 3], "before"), ([0, 1, 2], "once"), ([0, 0, 1, 2], "once")])
def test_an_order_that_is_none_is_refused(sequence: list[int], word: str):
    """A sequence that is no topological order of all ops is an error, not a schedule."""
    with pytest.raises(ValueError, match=word):
        simulate(small(), [0, 0, 0, 0], sequence)


def broken(schedule: Schedule, column: str, op: int, value: float) -> Schedule:
    """A schedule with one figure changed."""
    row = list(getattr(schedule, column))
    row[op] = value
    return dataclasses.replace(schedule, **{column: tuple(row)})


def test_the_checker_names_every_broken_rule():
    """Each way to break a legal schedule is found, and the message says what is wrong."""
    problem = small()
    good = simulate(problem, [0, 1, 1, 0], [0, 1, 2, 3])
    check(problem, good)
    unsupported = small(latency_us=np.array([[4.0, 5.0], [6.0, math.inf], [6.0, 3.0], [2.0, 9.0]]))
    late = dataclasses.replace(good, transfers=(good.transfers[0]._replace(start_us=3.0), *good.transfers[1:]))
    quick = dataclasses.replace(good, transfers=(good.transfers[0]._replace(finish_us=5.0), *good.transfers[1:]))
    twice = dataclasses.replace(good, transfers=(*good.transfers, good.transfers[0]))
    astray = dataclasses.replace(good, transfers=(good.transfers[0]._replace(source=2), *good.transfers[1:]))
    cases = [
        (problem, dataclasses.replace(good, sequence=(0, 1, 2, 2)), "every op exactly once"),
        (problem, dataclasses.replace(good, finish_us=good.finish_us[:3]), "lists 3 ops"),
        (problem, broken(good, "assignment", 1, 7), "does not exist"),
        (unsupported, good, "does not support"),
        (problem, broken(good, "start_us", 2, math.nan), "no finite times"),
        (problem, broken(good, "start_us", 2, 15.0), "overlaps others"),
        (problem, broken(good, "finish_us", 3, 20.5), "nobody pays|less than its latency"),
        (problem, broken(good, "start_us", 1, 3.0), "before tensor 'ta' exists"),
        (problem, broken(good, "finish_us", 1, 15.0), "before tensor .ta. is there|what it pays for"),
        (problem, late, "before it exists"),
        (problem, quick, "faster than it can be"),
        (problem, twice, "moved twice"),
        (problem, astray, "not moved from where"),
        (problem, dataclasses.replace(good, transfers=good.transfers[1:]), "never reaches op"),
        (problem, dataclasses.replace(good, transfers=good.transfers[:-1]), "never reaches the host"),
        (problem, dataclasses.replace(good, makespan_us=20.0), "makespan says"),
    ]
    for case, schedule, words in cases:
        with pytest.raises(IllegalSchedule, match=words):
            check(case, schedule)


@given(seed=st.integers(0, 10**6), shift=st.floats(0.01, 0.9))
@example(seed=18767, shift=0.5)
@settings(max_examples=500 if CAMPAIGN else 25)
def test_no_op_of_a_semi_active_schedule_can_start_earlier(seed: int, shift: float):
    """Moving any op that waits forward in time breaks a rule: the simulator never leaves a gap that it need not."""
    problem = draw(seed, 8, hope=True)
    placement, order = shuffled(problem, seed)
    schedule = simulate(problem, placement, order)
    if not math.isfinite(schedule.makespan_us):
        return
    instants = {end for start, end in zip(schedule.start_us, schedule.finish_us, strict=True) if start == end}
    for op, start in enumerate(schedule.start_us):
        # Behind an op that takes no time it starts in its turn, but nothing would be in its way.
        if start > 1.0 and schedule.finish_us[op] > start + 1.0 and start not in instants:
            earlier = broken(
                broken(schedule, "start_us", op, start - shift), "finish_us", op, schedule.finish_us[op] - shift
            )
            with pytest.raises(IllegalSchedule):
                check(problem, earlier)


@given(seed=st.integers(0, 10**6), part=st.floats(0.05, 0.95), hosts=st.booleans())
@settings(max_examples=1000 if CAMPAIGN else 60)
def test_no_schedule_of_any_machine_can_be_told_shorter(seed: int, part: float, hosts: bool):
    """An op, a move or the whole that claims to take less than it does is found, whatever the machine."""
    problem = draw(seed, 10, rich=True, hosts=hosts)
    schedule = simulate(problem, *shuffled(problem, seed))
    if not math.isfinite(schedule.makespan_us) or schedule.makespan_us < 1.0:
        return
    random = np.random.default_rng(seed)
    op = int(random.integers(len(problem.ops)))
    start, finish = schedule.start_us[op], schedule.finish_us[op]
    told = [dataclasses.replace(schedule, makespan_us=part * schedule.makespan_us)]
    if finish - start > 0.01:
        told.append(broken(schedule, "finish_us", op, start + part * (finish - start)))
    for index, move in enumerate(schedule.transfers):
        if move.finish_us - move.start_us > 0.01:
            quick = move._replace(finish_us=move.start_us + part * (move.finish_us - move.start_us))
            moves = (*schedule.transfers[:index], quick, *schedule.transfers[index + 1 :])
            told.append(dataclasses.replace(schedule, transfers=moves))
    for one in told:
        with pytest.raises(IllegalSchedule):
            check(problem, one)


def beside(shares: list[float], **machine: object) -> Problem:
    """Ops that depend on nothing, 10 µs each, on one of two processors: a GPU, and a core in the same memory."""
    n = len(shares)
    figures: dict[str, object] = {
        "processors": ("gpu", "cpu"),
        "uses": np.eye(2, dtype=bool),
        "places": ("host", "gpu"),
        "place": np.array([1, 0]),
        "busy": np.full((2, 2), -1),
        "queues": (),
        "launch_us": np.zeros(2),
        "end_us": np.zeros(2),
        "slowdown": np.ones(2),
        "memory": np.zeros(2, dtype=np.int64),
    }
    return Problem(
        machine=Machine(**(figures | machine)),
        ops=tuple(f"op{op}" for op in range(n)),
        latency_us=np.full((n, 2), 10.0),
        producer=np.arange(n),
        reads=((),) * n,
        is_output=np.zeros(n, dtype=bool),
        transfer_us=np.zeros((n, 2, 2)),
        tensors=tuple(f"t{op}" for op in range(n)),
        share=np.array([[share, 1.0] for share in shares]),
    )


def test_what_fits_on_a_resource_runs_at_once():
    """Shares of a half, a quarter and a quarter run together; the next one waits until it has room."""
    schedule = simulate(beside([0.5, 0.25, 0.25, 0.5]), [0, 0, 0, 0], [0, 1, 2, 3])
    assert schedule.start_us == (0.0, 0.0, 0.0, 10.0)
    crowded = dataclasses.replace(schedule, start_us=(0.0, 0.0, 0.0, 5.0), finish_us=(10.0, 10.0, 10.0, 15.0))
    with pytest.raises(IllegalSchedule, match="overlaps others"):
        check(beside([0.5, 0.25, 0.25, 0.5]), crowded)


def test_neighbours_slow_each_other_by_what_they_occupy():
    """Beside a core at work an op on half of the GPU leaves 1.5 resources, of which one is taken."""
    problem = beside([0.5, 0.5], slowdown=np.array([1.6, 1.0]))
    schedule = simulate(problem, [0, 1], [1, 0])
    assert schedule.finish_us[0] == pytest.approx(10.0 * (1 + 0.6 / 1.5))
    hasty = broken(schedule, "finish_us", 0, 12.0)
    with pytest.raises(IllegalSchedule, match="less than its latency"):
        check(problem, hasty)


def test_a_crossing_costs_one_launch_and_a_delay():
    """D takes in two tensors from another processor: one launch on its own time, after that one's end."""
    problem = small(transfer_us=np.zeros((4, 3, 3)))
    machine = dataclasses.replace(problem.machine, launch_us=np.array([3.0, 3.0]), end_us=np.array([0.0, 3.0]))
    schedule = simulate(dataclasses.replace(problem, machine=machine), [1, 1, 1, 0], [0, 1, 2, 3])
    assert schedule.start_us[3] == schedule.finish_us[2] + 3.0
    assert schedule.finish_us[3] == schedule.start_us[3] + 3.0 + 2.0


def test_the_latest_job_is_what_counts_for_lateness():
    """Two networks on one processor: the heavier one, whose microseconds are told, goes first though it comes last."""
    problem = dataclasses.replace(
        beside([1.0, 1.0]),
        producer=np.array([-1, -1]),
        reads=((0,), (1,)),
        job=np.array([0, 1]),
        jobs=(Job(0.0, 5.0), Job(4.0, 14.0, 3.0)),
        objective="lateness",
    )
    first, second = simulate(problem, [0, 0], [0, 1]), simulate(problem, [0, 0], [1, 0])
    assert first.value_us == max((10.0 - 5.0) / 3.0, 20.0 - 14.0)
    assert second.start_us == (14.0, 4.0)
    assert second.value_us == pytest.approx(max(24.0 - 5.0, 0.0) / 3.0)
    assert optimise(problem, "auto", Budget(rounds=2)).solution.schedule.value_us <= 5.0 / 3.0


def test_what_begins_earlier_slows_its_neighbour_wherever_it_stands_in_the_sequence() -> None:
    """Two ops side by side, the second read by a third: told in the wrong order one of them seems to run alone."""
    beside = dataclasses.replace(Machine.apart(("p", "q")), slowdown=np.array([2.0, 2.0]), memory=np.zeros(2, np.int64))
    problem = small(
        machine=beside,
        ops=("a", "b", "c"),
        latency_us=np.array([[4.0, 4.0], [4.0, 4.0], [4.0, 4.0]]),
        producer=np.arange(3),
        reads=((), (), (0,)),
        is_output=np.array([False, True, True]),
        transfer_us=np.zeros((3, 3, 3)),
        tensors=("ta", "tb", "tc"),
    )
    told = simulate(problem, [0, 1, 0], [0, 2, 1])
    assert told.finish_us == (4.0, 8.0, 8.0)
    settled = in_start_order(problem, told)
    assert settled.sequence == (0, 1, 2)
    assert settled.finish_us == (4.0, 8.0, 12.0)
    check(problem, settled)
    assert in_start_order(problem, settled) == settled
