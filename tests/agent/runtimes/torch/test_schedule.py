"""Streams, events and frees: legal on any device that keeps the order events ask for, and no more than needed."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from agent_sdk.runtimes.torch.contention import Work, decoded, fitted, sequence
from agent_sdk.runtimes.torch.driver import record
from agent_sdk.runtimes.torch.listing import listed
from agent_sdk.runtimes.torch.schedule import MAY_WAIT, Schedule, Task, assign_streams, networks, order, urgencies
from tests.agent.runtimes.torch.simulated import Simulated


class Mix:
    """A kernel on small vectors whose outcome tells which values it read."""

    def __init__(self, task: Task, weight: int) -> None:
        self.inputs, self.outputs, self.views, self.weight = task.reads, task.writes, task.views, weight

    def __call__(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Mix what it reads."""
        if self.views:
            return tuple(tensors[self.inputs.index(self.views[name])].view(-1) for name in self.outputs)
        total = sum((tensor * (place + 2) for place, tensor in enumerate(tensors)), torch.full((8,), self.weight))
        return tuple((total + place) % 1_000_003 for place, _ in enumerate(self.outputs))


def drawn(seed: int, count: int, lanes: int) -> list[Task]:
    """A random graph, timed as if up to ``lanes`` tasks ran at once, in the order of starts."""
    draw = random.Random(seed)
    made, ends, tasks = ["x"], {"x": 0.0}, []
    free = [0.0] * lanes
    for index in range(count):
        reads = tuple(dict.fromkeys(draw.choices(made[-8:], k=draw.randint(1, 3))))
        lane = min(range(lanes), key=lambda one: free[one])
        start = max([free[lane], *(ends[name] for name in reads)])
        finish = start + draw.choice([0.5, 1.0, 3.0, 9.0])
        free[lane] = finish
        if draw.random() < 0.15:
            writes, views = (f"t{index}",), {f"t{index}": reads[0]}
        else:
            writes, views = tuple(f"t{index}{end}" for end in "ab"[: draw.randint(1, 2)]), {}
        ends.update(dict.fromkeys(writes, finish))
        made += writes
        tasks.append(Task(reads, writes, start, finish, views=views))
    place = {id(task): index for index, task in enumerate(tasks)}
    return sorted(tasks, key=lambda task: (task.start_us, place[id(task)]))


def played(schedule: Schedule, tasks: list[Task], kept: list[str], seed: int):
    """Record a schedule on the simulated device; returns the replay and the memory."""
    device = Simulated(seed)
    memory: dict = {"x": torch.arange(8)}
    with device.recording(schedule.streams) as replay:
        device.fork(schedule.streams)
        record(schedule, [Mix(task, index) for index, task in enumerate(tasks)], memory, device)
    return replay, memory, device


def truth(tasks: list[Task]) -> dict[str, torch.Tensor]:
    """What the tasks compute one after the other."""
    memory = {"x": torch.arange(8)}
    for index, task in enumerate(tasks):
        memory.update(zip(task.writes, Mix(task, index)(*[memory[name] for name in task.reads]), strict=True))
    return memory


cases = given(seed=st.integers(0, 10**6), count=st.integers(1, 40), lanes=st.integers(1, 6))


@cases
@settings(max_examples=150, deadline=None)
def test_any_legal_order_gives_the_same_numbers(seed: int, count: int, lanes: int) -> None:
    """Whatever order a device takes within the events, kept tensors come out right and nothing races."""
    tasks = drawn(seed, count, lanes)
    kept = [tasks[-1].writes[0], random.Random(seed).choice(tasks).writes[0]]
    replay, memory, _ = played(order(tasks, assign_streams(tasks), kept), tasks, kept, seed)
    assert replay.finished()
    assert replay.races() == []
    wanted = truth(tasks)
    for _ in range(3):
        replay.replay()
        for name in kept:
            assert torch.equal(memory[name].read(), wanted[name])


@cases
@settings(max_examples=100, deadline=None)
def test_streams_are_as_few_as_the_overlaps_need(seed: int, count: int, lanes: int) -> None:
    """There are as many streams as planned intervals overlap at most, and none holds two that do."""
    tasks = drawn(seed, count, lanes)
    streams = assign_streams(tasks)
    edges = sorted([(t.start_us, 1) for t in tasks] + [(t.finish_us, -1) for t in tasks])
    at_once = most = 0
    for _, change in edges:
        at_once += change
        most = max(most, at_once)
    assert max(streams) + 1 == most
    for stream in set(streams):
        own = [task for task, where in zip(tasks, streams, strict=True) if where == stream]
        assert all(a.finish_us <= b.start_us for a, b in pairwise(own))


@cases
@settings(max_examples=60, deadline=None)
def test_no_event_is_needless(seed: int, count: int, lanes: int) -> None:
    """Without any one of its waits, the schedule races: none is there for nothing, and the oracle would see it."""
    tasks = drawn(seed, count, lanes)
    schedule = order(tasks, assign_streams(tasks), [tasks[-1].writes[0]])
    waits = [(at, wait) for at, issue in enumerate(schedule.issues) for wait in issue.waits]
    for at, wait in waits[:8]:
        issues = list(schedule.issues)
        issues[at] = replace(issues[at], waits=tuple(one for one in issues[at].waits if one != wait))
        replay, _, _ = played(replace(schedule, issues=tuple(issues)), tasks, [], seed)
        assert replay.races()


def beside(own: list[Task], others: list[Task]) -> list[Task]:
    """Two networks, the names of the second one marked, in the order of starts."""

    def mark(task: Task) -> Task:
        reads, writes = (tuple(f"2/{name}" for name in names) for names in (task.reads, task.writes))
        views = {f"2/{name}": f"2/{source}" for name, source in task.views.items()}
        return replace(task, reads=reads, writes=writes, views=views)

    return sorted([*own, *map(mark, others)], key=lambda task: task.start_us)


@cases
@settings(max_examples=60, deadline=None)
def test_networks_that_run_together_wait_for_nothing_of_each_other(seed: int, count: int, lanes: int) -> None:
    """Each has its own streams, and no event leads from one to the other, whether as planned or as listed."""
    tasks = beside(drawn(seed, count, lanes), drawn(seed + 1, count, lanes))
    own = [{place for place, task in enumerate(tasks) if task.reads[0].startswith("2/") is second}
           for second in (False, True)]  # fmt: skip
    assert sorted(map(set, networks(tasks)), key=min) == sorted(own, key=min)
    alone = [listed([tasks[place] for place in sorted(one)], lanes) for one in own]
    assert [[listed(tasks, lanes)[place] for place in sorted(one)] for one in own] == alone
    schedule = order(tasks, assign_streams(tasks))
    for place, issue in enumerate(schedule.issues):
        [mine] = [one for one in own if place in one]
        assert set(issue.waits) <= mine
        assert all(schedule.issues[other].stream != issue.stream for one in own if one is not mine for other in one)


@cases
@settings(max_examples=60, deadline=None)
def test_what_may_wait_makes_nothing_longer(seed: int, count: int, lanes: int) -> None:
    """A task that starts late by what its urgency allows does not lengthen the longest way; one level more does."""
    tasks = drawn(seed, count, lanes)

    def longest(late: int = -1, us: float = 0.0) -> float:
        ends: dict[str, float] = {}
        for place, task in enumerate(tasks):
            start = max((ends.get(name, 0.0) for name in task.reads), default=0.0) + (us if place == late else 0.0)
            ends.update(dict.fromkeys(task.writes, start + task.finish_us - task.start_us))
        return max(ends.values())

    whole, found = longest(), urgencies(tasks)
    assert max(found) == len(MAY_WAIT)
    for place, urgency in enumerate(found):
        if urgency < len(MAY_WAIT):
            surely = MAY_WAIT[len(MAY_WAIT) - 1 - urgency] * whole
            assert longest(place, surely) == pytest.approx(whole)
        if urgency:
            at_most = MAY_WAIT[len(MAY_WAIT) - urgency] * whole
            assert longest(place, 1.001 * at_most + 1e-6) > whole


def test_memory_is_reused_on_a_chain() -> None:
    """A chain of any length on one stream needs two blocks."""
    tasks = [Task((f"t{i - 1}" if i else "x",), (f"t{i}",), float(i), i + 1.0) for i in range(20)]
    _, _, device = played(order(tasks, assign_streams(tasks), ["t19"]), tasks, ["t19"], 0)
    assert len(device.blocks) == 2


def test_memory_freed_too_early_is_seen() -> None:
    """The oracle finds a tensor that is freed while another stream may still read it."""
    tasks = [
        Task(("x",), ("a",), 0, 1),
        Task(("a",), ("b",), 1, 9),
        Task(("x",), ("c",), 1, 2),
        Task(("c",), ("d",), 2, 3),
        Task(("b", "d"), ("e",), 9, 10),
    ]
    streams = [0, 1, 0, 0, 0]
    schedule = order(tasks, streams, ["e"])
    assert played(schedule, tasks, ["e"], 0)[0].races() == []
    issues = list(schedule.issues)
    issues[2] = replace(issues[2], frees=("a",))
    issues = [replace(one, frees=tuple(n for n in one.frees if n != "a" or at == 2)) for at, one in enumerate(issues)]
    assert played(replace(schedule, issues=tuple(issues)), tasks, ["e"], 0)[0].races()


@cases
@settings(max_examples=60, deadline=None)
def test_a_list_schedule_is_as_wide_as_asked_for_and_never_idles(seed: int, count: int, lanes: int) -> None:
    """Tasks start behind what they read, on so many streams at most, and each when an input or a stream came free."""
    tasks = drawn(seed, count, 3)
    times = listed(tasks, lanes)
    again = [replace(task, start_us=a, finish_us=b) for task, (a, b) in zip(tasks, times, strict=True)]
    made = {name: task.finish_us for task in again for name in task.writes}
    assert max(assign_streams(sorted(again, key=lambda task: task.start_us))) < lanes
    for task, before in zip(again, tasks, strict=True):
        inputs = max((made[name] for name in task.reads if name in made), default=0.0)
        assert task.start_us >= inputs
        assert task.finish_us - task.start_us == pytest.approx(before.finish_us - before.start_us)
        assert task.start_us == inputs or any(other.finish_us == task.start_us for other in again)


@cases
@example(seed=26134, count=4, lanes=1)
@settings(max_examples=60, deadline=None)
def test_the_fitted_slowdown_gives_the_time_it_was_fitted_to(seed: int, count: int, lanes: int) -> None:
    """Decoding with a slowdown and fitting one to what came out finds it again, or one that takes as long."""
    draw = random.Random(seed)
    works = [
        Work(task.reads, task.writes, draw.uniform(1, 9), draw.uniform(0.05, 1.0)) for task in drawn(seed, count, lanes)
    ]
    row = sequence(works)
    total = sum(work.us for work in works)
    slowdown = draw.uniform(1.0, 3.0)
    takes = max(finish for _, finish in decoded(works, row, slowdown).values())
    again = fitted(works, row, takes / total)
    assert 1.0 <= again <= 8.0
    assert max(finish for _, finish in decoded(works, row, again).values()) == pytest.approx(takes, rel=0.05)


@cases
@settings(max_examples=60, deadline=None)
def test_decoded_works_keep_order_and_never_overfill(seed: int, count: int, lanes: int) -> None:
    """Inputs are there before a work starts, and at no time do the shares at work add up to more than one."""
    draw = random.Random(seed)
    works = [Work(t.reads, t.writes, draw.uniform(1, 9), draw.uniform(0.05, 1.0)) for t in drawn(seed, count, lanes)]
    times = decoded(works, sequence(works), draw.uniform(1.0, 3.0))
    made = {name: times[index][1] for index, work in enumerate(works) for name in work.writes}
    for index, (start, finish) in times.items():
        assert finish >= start + works[index].us - 1e-9
        assert all(made.get(name, 0.0) <= start + 1e-9 for name in works[index].reads)
        at_work = [works[i].share for i, (a, b) in times.items() if a <= start < b]
        assert sum(at_work) <= 1.0 + 1e-6
