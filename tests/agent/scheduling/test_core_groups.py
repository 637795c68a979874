"""Which of several core groups a run gets: under load, behind stalls, beside loops that have no deadline."""

from __future__ import annotations

import random
from functools import cache

import pytest

from agent_sdk.scheduling.mixes import Mix
from agent_sdk.scheduling.network import RUNS, Network
from agent_sdk.scheduling.outcome import Ended, missed
from agent_sdk.scheduling.policies import policy
from agent_sdk.scheduling.request import Late, Request
from agent_sdk.scheduling.scheduler import Dispatch, Policy, Scheduler
from agent_sdk.scheduling.sequence import Choice
from tests.agent.scheduling.simulation import expected, simulate

MS = 1_000_000


class Halves(Policy):
    """Each network on cores of its own, as an expert would have it."""

    def choose(self, state: Scheduler, group: list[Request]) -> None:
        """Where that is idle."""
        for request in group:
            where = 1 if request.network.name == "small" else 2
            if state.idle(request, where):
                state.take(request, Choice(0, 0, where, None))


def stalled(which: Policy, on_late: str, load: float) -> list[Ended]:
    """A small and a large network on sixteen cores, all or eight for each run, of which one in 250 takes ten times as
    long as it should.
    """
    draw = random.Random(3)
    ms = {"small": (1.5, 1.75, 1.75), "large": (8.6, 12.75, 12.75)}
    networks = {
        name: Network(name, 1, 3, {(0, 0, at): round(us * MS) for at, us in enumerate(ms[name])}) for name in ms
    }
    for network in networks.values():
        network.alike, network.in_flight = {1: [1, 2], 2: [1, 2]}, 4
    streams = [
        {"name": name, "model": name, "period_ms": 2 * own[0] / load, "on_late": on_late} for name, own in ms.items()
    ]
    mix = Mix.model_validate({"seconds": 60 * 2 * 8.6e-3 / load, "streams": streams})

    @cache
    def takes(one: Dispatch) -> int:
        times = 10 if draw.random() < 1 / 250 else draw.uniform(1, 1.1)
        return round(ms[one.request.network.name][one.processor] * times * MS)

    return simulate(mix, networks, [0xFFFF, 0x00FF, 0xFF00], which, takes=takes)


@pytest.mark.parametrize("load", [0.8, 1.15, 1.4])
def test_stalls_and_overload_cost_less_than_in_a_partition(load: float) -> None:
    """Earliest deadline misses at most 0.6 of what is missed on halves of the cores, and leaves no network out."""
    found = stalled(policy("earliest_deadline"), "drop", load)
    assert missed(found) <= 0.6 * missed(stalled(Halves(), "late", load))
    assert any(not one.missed for one in found if one.stream == "large")


@pytest.mark.parametrize(("load", "share"), [(0.1, 0.95), (0.5, 0.85), (0.7, 0.05)])
def test_who_has_no_deadline_gets_what_is_left_by_those_who_have(load: float, share: float) -> None:
    """A closed loop costs a periodic network no deadline, and gets this share of the time that is left; where the
    network needs all cores at once it goes on, at least once a second.
    """
    masks, periodic = [3, 1, 2], {0: 6, 1: 11, 2: 11}
    networks = {
        "periodic": Network("periodic", 1, 3, {(0, 0, at): ms * MS for at, ms in periodic.items()}),
        "loop": Network("loop", 1, 3, {(0, 0, 0): 22 * MS, (0, 0, 1): 42 * MS, (0, 0, 2): 42 * MS}),
    }
    networks["loop"].border_ns = {0: 5 * MS, 1: 9 * MS, 2: 9 * MS}
    streams = [
        {"name": "periodic", "model": "periodic", "period_ms": 6 / load, "on_late": "drop"},
        {"name": "loop", "model": "loop", "arrival": "closed"},
    ]
    mix = Mix.model_validate({"seconds": 4, "streams": streams})
    ended = simulate(mix, networks, masks, policy("earliest_deadline"), takes=expected)
    own = [one for one in ended if one.stream == "loop"]
    assert missed(ended) <= 0.02  # a run that has waited for a second goes first
    assert len(own) >= share * (1 - load) * 4000 / 22


def test_a_loop_costs_no_deadline_where_runs_take_longer_now_and_then() -> None:
    """Beside a network that is busy half of the time and due when the next run comes, of which one run in twenty takes
    up to half as long again, a closed loop gets most of what is left.
    """
    draw = random.Random(1)
    ms = {"periodic": (5, 8, 8), "loop": (22, 40, 40)}
    networks = {
        name: Network(name, 1, 3, {(0, 0, at): own * MS for at, own in enumerate(each)}) for name, each in ms.items()
    }
    networks["loop"].border_ns, networks["loop"].in_flight = {0: 5 * MS // 2, 1: 9 * MS // 2, 2: 9 * MS // 2}, 1
    for network in networks.values():
        network.alike = {1: [1, 2], 2: [1, 2]}
    streams = [
        {"name": "periodic", "model": "periodic", "period_ms": 10, "on_late": "drop"},
        {"name": "loop", "model": "loop", "arrival": "closed"},
    ]
    mix = Mix.model_validate({"seconds": 20, "streams": streams})

    @cache
    def takes(one: Dispatch) -> int:
        times = draw.uniform(1.1, 1.5) if draw.random() < 1 / 20 else draw.uniform(0.97, 1.08)
        return round(ms[one.request.network.name][one.processor] * times * MS)

    ended = simulate(mix, networks, [3, 1, 2], policy("earliest_deadline"), takes=takes)
    assert missed(ended) <= 0.01
    assert sum(one.stream == "loop" for one in ended) >= 0.85 * 0.5 * 20_000 / 22


@pytest.mark.parametrize(("deadline_ms", "where"), [(60, 0), (13, 0), (9, 1)])
def test_who_has_no_deadline_leaves_cores_to_who_is_late_behind_its_borders(deadline_ms: int, where: int) -> None:
    """All cores where no more of another's runs would miss their deadlines behind a border; else one of two."""
    loop = Network("loop", 1, 3, {(0, 0, 0): 22 * MS, (0, 0, 1): 42 * MS, (0, 0, 2): 42 * MS})
    loop.border_ns = {0: 2 * MS, 1: 4 * MS, 2: 4 * MS}
    periodic = Network("periodic", 1, 3, {(0, 0, 0): 6 * MS, (0, 0, 1): 7 * MS, (0, 0, 2): 7 * MS})
    scheduler = Scheduler(policy("earliest_deadline"), [3, 1, 2])
    scheduler.active[periodic] = (deadline_ms * MS, 0, 0)
    scheduler.submit(loop, MS)
    assert [one.processor for one in scheduler.decide(MS)[0]] == [where]


@pytest.mark.parametrize("priority", [0, 1])
def test_who_is_late_anyway_hides_nobody_from_who_has_no_deadline(priority: int) -> None:
    """It goes where another's runs make their deadlines, whatever becomes of one that makes its own nowhere."""
    loop, late = (Network(name, 1, 3, {(0, 0, 0): 22 * MS, (0, 0, 1): 42 * MS, (0, 0, 2): 42 * MS}) for name in "ab")
    periodic = Network("periodic", 1, 3, {(0, 0, 0): 6 * MS, (0, 0, 1): 7 * MS, (0, 0, 2): 7 * MS})
    scheduler = Scheduler(policy("earliest_deadline"), [3, 1, 2])
    scheduler.active |= {periodic: (12 * MS, 0, 0), late: (20 * MS, 0, 0)}
    scheduler.submit(loop, MS, priority=priority)
    assert [one.processor for one in scheduler.decide(MS)[0]] == [1]


def test_where_a_loop_goes_is_found_without_asking_every_group_of_everybody(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of each of the others two groups count beside each place: it may be decided at every end of a run."""
    masks = [((1 << size) - 1) << first for size in (16, 8, 4, 2, 1) for first in range(0, 16, size)]
    ms = {(0, 0, where): 64 * MS // mask.bit_count() for where, mask in enumerate(masks)}
    loop, *others = (Network(str(number), 1, len(masks), ms) for number in range(4))
    scheduler = Scheduler(policy("earliest_deadline"), masks)
    scheduler.active |= dict.fromkeys(others, (12 * MS, 0, 0))
    asked: list[int] = []
    risk = Network.risk
    monkeypatch.setattr(Network, "risk", lambda network, *given: asked.append(1) or risk(network, *given))
    scheduler.submit(loop, MS)
    scheduler.decide(MS)
    assert len(asked) <= len(masks) * (1 + 2 * len(others))


def test_a_run_that_took_no_time_is_a_short_one() -> None:
    """What is measured between two ticks of a clock is expected to take something, and counts."""
    network = Network("n", 1, 1, {(0, 0, 0): MS})
    network.doubt(0)
    network.learn(0, 0, 0, 0)
    network.learn(0, 0, 0, 0)
    assert network.risk(network.expected(0, 0, 0), MS) == 0
    scheduler = Scheduler(policy("earliest_deadline"), [1])
    scheduler.submit(network, 0, deadline_ns=MS)
    assert len(scheduler.decide(0)[0]) == 1


def test_nobody_waits_for_what_is_late_anyway() -> None:
    """What has no deadline begins where the network that was asked for lately could make its own on no processor."""
    late, loop = (Network(name, 1, 1, {(0, 0, 0): 20 * MS}) for name in ("late", "loop"))
    scheduler = Scheduler(policy("earliest_deadline"), [1])
    scheduler.active[late] = (10 * MS, 0, 0)
    scheduler.submit(loop, MS)
    assert len(scheduler.decide(MS)[0]) == 1


@pytest.mark.parametrize("on_late", ["drop", "late"])
@pytest.mark.parametrize(("own", "other", "waits"), [(0, 0, True), (7, 7, True), (-7, 0, True), (0, -7, False)])
def test_a_run_waits_for_its_priority_and_above_for_a_second(own: int, other: int, waits: bool, on_late: Late) -> None:
    """Where it would cost a network that was asked for lately several deadlines; whatever the priorities, no longer."""
    large, small = (Network(name, 1, 1, {(0, 0, 0): ms * MS}) for name, ms in (("large", 30), ("small", 5)))
    scheduler = Scheduler(policy("earliest_deadline"), [1])
    begun: list[int] = []
    for now_ms in range(0, 1500, 5):
        scheduler.active[small] = (10 * MS, now_ms * MS, other)
        if on_late == "late" and now_ms == 0:
            scheduler.submit(large, 0, priority=own)
        if on_late == "drop" and now_ms % 150 == 0:  # fewer than sixteen in a second
            scheduler.submit(large, now_ms * MS, deadline_ns=(now_ms + 100) * MS, priority=own, on_late="drop")
        started, _ = scheduler.decide(now_ms * MS)
        begun += [now_ms] * len(started)
        for one in started:
            scheduler.finished(one, 30 * MS)
    assert (1000 <= begun[0] < 1200) if waits else begun[0] == 0


@pytest.mark.parametrize("low", [0, 1])
def test_what_has_no_deadline_goes_where_it_costs_a_lower_priority_theirs(low: int) -> None:
    """It waits for no core that another network needs as long as there is one that only a less important one needs."""
    scheduler = Scheduler(policy("earliest_deadline"), [1, 2])
    for where in (0, 1):
        own = Network(str(where), 1, 2, {(0, 0, where): 6 * MS})
        scheduler.active[own] = (12 * MS, 0, -7 if where == low else 0)
    loop = Network("loop", 1, 2, {(0, 0, 0): 30 * MS, (0, 0, 1): 30 * MS})
    scheduler.submit(loop, MS)
    assert [one.processor for one in scheduler.decide(MS)[0]] == [low]


def test_a_stall_wherever_it_strikes_says_nothing_of_a_group() -> None:
    """Where some runs take so long that they miss the deadline on any cores, the cheapest ones go on."""
    network = Network("n", 1, 3, {(0, 0, 0): 40 * MS, (0, 0, 1): 24 * MS, (0, 0, 2): 16 * MS})
    for run in range(RUNS):
        before = network.expected(0, 0, 0)
        network.learn(0, 0, 0, 10 * before if run % 10 == 0 else before)
        network.set((0, 0, 0), before)
    scheduler = Scheduler(policy("earliest_deadline"), [1, 3, 15])
    scheduler.submit(network, 0, deadline_ns=50 * MS)
    assert [one.processor for one in scheduler.decide(0)[0]] == [0]


def test_the_cheapest_group_that_makes_the_deadline() -> None:
    """One core where that makes the deadline, two where it does not: four would cost more core time."""
    network = Network("n", 1, 3, {(0, 0, 0): 40 * MS, (0, 0, 1): 24 * MS, (0, 0, 2): 16 * MS})
    for deadline, where in ((60, 0), (38, 1), (17, 2)):
        scheduler = Scheduler(policy("earliest_deadline"), [1, 3, 15])
        scheduler.submit(network, 0, deadline_ns=deadline * MS)
        assert [one.processor for one in scheduler.decide(0)[0]] == [where]


def test_runs_that_take_longer_now_and_then_get_more_cores() -> None:
    """Once a run took so long that it would miss the deadline on one core two make it, until a hundred took less."""
    network = Network("n", 1, 3, {(0, 0, 0): 40 * MS, (0, 0, 1): 24 * MS, (0, 0, 2): 16 * MS})

    def chosen() -> int:
        scheduler = Scheduler(policy("earliest_deadline"), [1, 3, 15])
        scheduler.submit(network, 0, deadline_ns=70 * MS)
        return scheduler.decide(0)[0][0].processor

    assert chosen() == 0
    network.learn(0, 0, 2, 32 * MS)  # wherever that was: the same will happen elsewhere
    network.set((0, 0, 2), 16 * MS)
    assert chosen() == 1
    for _ in range(20):
        network.learn(0, 0, 1, 24 * MS)
    assert chosen() == 1
    for _ in range(80):
        network.learn(0, 0, 1, 24 * MS)
    assert chosen() == 0


def test_who_is_sure_nowhere_takes_as_many_cores_as_leave_the_others_theirs() -> None:
    """Two equal networks whose runs take a quarter longer, and twice as long now and then, share the cores evenly,
    whoever comes first.
    """
    masks = [0b1111, 0b0011, 0b1100, 1, 2, 4, 8]
    ms = {4: 6, 2: 8, 1: 12}
    networks = [
        Network(name, 1, 7, {(0, 0, where): ms[mask.bit_count()] * MS for where, mask in enumerate(masks)})
        for name in "ab"
    ]
    scheduler = Scheduler(policy("earliest_deadline"), masks)
    for network in networks:
        for run in range(RUNS):
            network.learn(0, 0, 0, round((2 if run % 10 == 0 else 1.25) * network.expected(0, 0, 0)))
        for where, mask in enumerate(masks):
            network.set((0, 0, where), ms[mask.bit_count()] * MS)
        scheduler.active[network] = (13 * MS, 0, 0)
    for network, other in (networks, networks[::-1]):
        began = []
        for one in (network, other):
            scheduler.submit(one, 0, deadline_ns=13 * MS)
            began += scheduler.decide(0)[0]
        assert [one.processor for one in began] == [1, 2]
        for one in began:
            scheduler.finished(one, None)


def test_a_long_network_leaves_room_for_a_short_one() -> None:
    """What has no deadline does not take all cores for longer than a network that is asked for lately can wait."""
    short = Network("short", 1, 3, {(0, 0, 0): 5 * MS, (0, 0, 1): 5 * MS, (0, 0, 2): 4 * MS})
    long = Network("long", 1, 3, {(0, 0, 0): 190 * MS, (0, 0, 1): 190 * MS, (0, 0, 2): 100 * MS})
    scheduler = Scheduler(policy("earliest_deadline"), [1, 2, 3])
    scheduler.submit(short, 0, deadline_ns=20 * MS)
    began = scheduler.decide(0)[0]
    scheduler.finished(began[0], None)
    scheduler.submit(long, 6 * MS)
    assert scheduler.decide(6 * MS)[0][0].processor in (0, 1)
