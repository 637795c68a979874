"""Policies: Band's golden cases, every decision against an independent simulation, and what must hold of any policy."""

from __future__ import annotations

import random
from array import array
from collections.abc import Sequence
from itertools import pairwise

import pytest

from agent_sdk.errors import InputError, UnknownNameError
from agent_sdk.scheduling.job import Terms
from agent_sdk.scheduling.mixes import Mix
from agent_sdk.scheduling.network import FORGOTTEN, NEVER, Network
from agent_sdk.scheduling.outcome import Ended
from agent_sdk.scheduling.policies import POLICIES, LeastSlack, Planned, policy
from agent_sdk.scheduling.request import ON_LATE, Request
from agent_sdk.scheduling.scheduler import Dispatch, JointPlan, PlannedRun, Scheduler
from agent_sdk.scheduling.sequence import Shortest, in_python
from tests import CAMPAIGN
from tests.agent.scheduling.oracle import Asked, World
from tests.agent.scheduling.simulation import simulate

MIXES = 1000 if CAMPAIGN else 8
MS = 1_000_000


def random_network(name: str, draw: random.Random, processors: int, most: int, slower: int) -> Network:
    """One that the first processor can run, in integer nanoseconds that are never equal by chance."""
    count = draw.randint(1, most)
    table = {}
    for first in range(count):
        for last in range(first, count):
            for processor in range(processors):
                if processor == 0 or draw.random() < 0.7:
                    table[first, last, processor] = draw.randint(1, 20 * MS * slower * (last - first + 1))
    return Network(name, count, processors, table)


def latencies(network: Network) -> dict[tuple[int, int, int], int]:
    """What is expected by first unit, last unit and processor."""
    across = range(network.units)
    keys = ((first, last, where) for where in range(network.processors) for first in across for last in across[first:])
    return {key: ns for key in keys if (ns := network.expected(*key)) < NEVER}


def random_mix(draw: random.Random, models: list[str], slower: int) -> Mix:
    """Three to six streams that together ask for about as much as there is."""
    streams = []
    for index in range(draw.randint(3, 6)):
        arrival = draw.choice(("periodic", "poisson", "trace"))
        period = draw.choice((15, 30, 60, draw.uniform(10, 90)))
        stream = {
            "name": f"s{index}",
            "model": draw.choice(models),
            "arrival": arrival,
            "period_ms": period * slower,
            "deadline_ms": draw.uniform(5, 120) * slower,
            "jitter_ms": draw.choice((0, 2)),
            "on_late": draw.choice(ON_LATE),
        }
        if arrival == "trace":
            stream["trace_ms"] = [draw.uniform(0, 390) * slower for _ in range(draw.randint(1, 20))]
            if draw.random() < 0.5:
                del stream["deadline_ms"], stream["period_ms"]
        streams.append(stream)
    return Mix.model_validate({"seconds": 0.4 * slower, "streams": streams})


def random_plan(networks: Sequence[Network], mix: Mix, draw: random.Random) -> JointPlan:
    """Each run somewhere, at times that may not fit; as often as a stream of it has."""
    plan: dict[Network, list[PlannedRun]] = {}
    for network in networks:
        periods = [stream.period_ms for stream in mix.streams if stream.model == network.name and stream.period_ms]
        plan[network] = []
        for run in range(draw.randint(1, 3)):
            release = round(run * (periods[0] if periods else 30) * MS)
            where, took = draw.choice(list(network.wholes()))
            start = release + draw.randint(0, 10 * MS)
            plan[network].append(PlannedRun(release, start, start + took, where))
    return plan


def agreed(
    mix: Mix,
    networks: dict[str, Network],
    masks: list[int],
    name: str,
    seed: int = 0,
    plan: JointPlan | None = None,
    late_ns: int = 0,
) -> list[Ended]:
    """What becomes of a mix, where every decision is that of the independent simulation."""
    found: list[tuple[int, int, int, int, int | None]] = []
    releases = sorted(
        (
            (round(at * 1e6), index, stream)
            for index, stream in enumerate(mix.streams)
            for at in stream.releases(mix.seconds, seed)
        ),
        key=lambda one: one[:2],
    )
    asked = [
        Asked(
            stream.model, at, None if stream.due_ms is None else at + round(stream.due_ms * 1e6), stream.on_late, number
        )
        for number, (at, _, stream) in enumerate(releases, 1)
    ]

    def told(now: int, started: Sequence[Dispatch], dropped: Sequence[Request]) -> None:
        found.extend((now, one.request.number, one.first, one.last, one.processor) for one in started)
        found.extend((now, one.number, 0, 0, None) for one in dropped)

    who = policy(name)
    who.follow(plan or {}, late_ns)
    nets = {model: (own.units, latencies(own)) for model, own in networks.items()}  # as it was told, not as it learns
    ended = simulate(mix, networks, masks, who, seed=seed, told=told)
    sets = [frozenset(bit for bit in range(8) if mask >> bit & 1) for mask in masks]
    borders = {(model, where): ns for model, own in networks.items() for where, ns in own.border_ns.items()}
    pools = {(model, where): pool for model, own in networks.items() for where, pool in own.alike.items()}
    cheaper = {model: own.cheaper.name for model, own in networks.items() if own.cheaper is not None}
    runs = {own.name: list(map(tuple, planned)) for own, planned in (plan or {}).items()}
    rounds = {"plan": runs, "late": late_ns} if who.joint else {}
    wanted = World(nets, sets, name, borders, pools=pools, cheaper=cheaper, **rounds).run(asked)

    def flat(decisions: list) -> list:
        return sorted(decisions, key=lambda one: (*one[:4], one[4] is None, one[4] or 0))

    assert flat(found) == flat(wanted), (name, seed)
    assert {number for _, number, *_ in found} == {*range(1, len(asked) + 1)}  # nobody is left waiting
    return ended


@pytest.mark.parametrize("name", list(POLICIES))
@pytest.mark.parametrize(("groups", "pieces"), [(False, False), (True, False), (True, True)])
def test_decisions_are_those_of_an_independent_simulation(name: str, groups: bool, pieces: bool) -> None:
    """Each policy decides as its definition does, over random mixes, on distinct processors and on core groups, where
    runs may be in pieces; of slow networks some wait for longer than a second.
    """
    for seed in range(MIXES):
        draw = random.Random(f"{name}{groups}{seed}")
        masks = [1, 2, 4, 8, 3, 12, 15] if groups else [1 << index for index in range(draw.randint(1, 4))]
        most = 1 if groups else 4
        slower = draw.choice((1, 8))
        networks = {model: random_network(model, draw, len(masks), most, slower) for model in "abc"}
        for own in networks.values() if pieces else ():
            own.border_ns = {
                where: draw.randint(1, 4 * MS * slower) for where in range(len(masks)) if draw.random() < 0.8
            }
        for own in networks.values() if groups else ():
            if draw.random() < 0.5:  # on any of the single cores, whichever is free
                own.alike = {where: [0, 1, 2, 3] for where in range(4)}
                own.border_ns.update(dict.fromkeys(range(4), own.border_ns.get(0, 0)))
                for where in range(4):
                    own.set((0, 0, where), own.expected(0, 0, 0))
        for model, other in ("ab", "bc"):
            if draw.random() < 0.7:
                networks[model].cheaper = networks[other]
        # NOTE: measured latencies change what is expected; here what is expected is what it takes, so nothing changes.
        mix = random_mix(draw, list(networks), slower)
        plan = random_plan([networks[model] for model in draw.sample("abc", draw.randint(2, 3))], mix, draw)
        agreed(mix, networks, masks, name, seed, plan, draw.choice((0, 3 * MS, 30 * MS)))


def test_the_best_sequence_is_the_best_of_all() -> None:
    """The native sequence is that of the Python rule, which is no worse than any other, ties included."""
    draw, shortest = random.Random(7), Shortest()
    for _ in range(300):
        count, processors = draw.randint(1, 6), draw.randint(1, 4)
        keys = [(i, j, p) for i in range(count) for j in range(i, count) for p in range(processors)]
        network = Network("n", count, processors, {key: draw.randint(1, 9) for key in keys if draw.random() < 0.7})
        free = array("q", [draw.randint(0, 9) for _ in range(processors)])
        unit = draw.randrange(count)
        assert shortest(network, unit, free, 3) == in_python(network, unit, free, 3)


def test_least_slack_goes_first() -> None:
    """80 - 10 = 70 goes before 100 - 10 = 90; who has no deadline comes last; what is too late is dropped."""
    network = Network("n", 1, 1, {(0, 0, 0): 10})
    scheduler = Scheduler(LeastSlack(), [1])
    nobody = scheduler.submit(network, 0)
    later = scheduler.submit(network, 0, deadline_ns=100)
    sooner = scheduler.submit(network, 0, deadline_ns=80)
    lost = scheduler.submit(network, 0, deadline_ns=9, on_late="drop")
    order, now = [], 0
    while True:
        started, dropped = scheduler.decide(now)
        assert dropped == ([lost] if not order else [])
        if not started:
            break
        order.append(started[0].request)
        now += 10
        scheduler.finished(started[0], 10)
    assert order == [sooner, later, nobody]


def test_a_plan_is_followed_while_the_mix_is_as_planned() -> None:
    """Keys are the begin of the round + planned starts; who is late, missing or of another shape ends that, until all
    have come together again.
    """
    first, last = (Network(name, 1, 2, {(0, 0, 0): 10 * MS, (0, 0, 1): 30 * MS}) for name in "ab")
    plan = {
        first: [PlannedRun(0, 0, 30 * MS, 1)],
        last: [PlannedRun(0, 5 * MS, 15 * MS, 0)],
    }
    scheduler = Scheduler(policy := Planned(), [1, 2])
    policy.follow(plan, 2 * MS)

    def played(begin: int, *comers: tuple[Network, int, bool]) -> list[tuple[int, bool]]:
        """Where each runs, and whether its key is the plan's."""
        found = []
        for network, after, fits in comers:
            now = (begin + after) * MS
            scheduler.submit(network, now, deadline_ns=now + 100 * MS, fits=fits)
            (one,), _ = scheduler.decide(now)
            found.append((one.processor, one.key == begin * MS + plan[network][0].start_ns))
            scheduler.finished(one, None)
        return found

    follows, by_slack = [(1, True), (0, True)], [(0, False), (0, False)]
    assert played(0, (first, 0, True), (last, 2, True)) == follows
    assert played(100, (last, 0, True), (first, 1, True)) == follows[::-1]
    assert played(200, (first, 0, True), (last, 3, True)) == [(1, True), (0, False)]  # late, so that it begins a round
    assert played(300, (first, 0, True), (last, 0, True)) == by_slack
    assert played(400, (first, 0, True), (last, 0, True)) == follows
    assert played(500, (first, 0, True)) == follows[:1]  # the other one is missing
    assert played(600, (first, 0, True), (last, 0, True)) == by_slack
    assert played(700, (first, 0, True), (last, 0, False)) == [(1, True), (0, False)]  # another shape
    assert played(800, (first, 0, True), (last, 0, True)) == by_slack


@pytest.mark.parametrize("behind", [0, 1])
@pytest.mark.parametrize("phase", [0, 30, 60])
def test_a_plan_is_followed_over_its_hyperperiod(phase: int, behind: int) -> None:
    """Three runs of one network to one of another each have their own place; whenever they were first asked for, and
    whoever comes first, two rounds later they follow, and a run that stays out ends that for the next round alone.
    """
    fast, slow = (Network(name, 1, 2, {(0, 0, 0): 5 * MS, (0, 0, 1): 8 * MS}) for name in "ab")
    starts = {fast: [0, 31, 62], slow: [6]}
    plan = {
        network: [PlannedRun(30 * run * MS, at * MS, (at + 8) * MS, 1) for run, at in enumerate(own)]
        for network, own in starts.items()
    }
    scheduler = Scheduler(policy := Planned(), [1, 2])
    policy.follow(plan, 10 * MS)
    asked = [(30 * run, fast) for run in range(24) if run != 15]
    asked += [(phase + 90 * run + 2 * behind, slow) for run in range(8)]
    follows = dict[int, bool]()
    for at, network in sorted(asked, key=lambda one: (one[0], (one[1] is fast) == bool(behind))):
        scheduler.submit(network, at * MS, deadline_ns=(at + 90) * MS)
        (one,), _ = scheduler.decide(at * MS)
        begin = (at - phase) // 90 * 90 + phase
        planned = starts[network][(at - begin) // 30]
        follows[at] = follows.get(at, True) and (one.key, one.processor) == ((begin + planned) * MS, 1)
        scheduler.finished(one, None)
    assert all(follows[at] for at in follows if phase + 180 <= at < 450)
    assert not all(follows[at] for at in follows if 450 <= at < 600)
    assert all(follows[at] for at in follows if 660 <= at < 720)


@pytest.mark.parametrize("name", list(POLICIES))
def test_an_estimate_that_is_out_of_date_drops_nothing_for_ever(name: str) -> None:
    """Where a disturbance made a network seem too slow for its deadline, it is tried again, and then kept to."""
    network = Network("n", 1, 2, {(0, 0, 0): 500 * MS, (0, 0, 1): 600 * MS})
    streams = [{"name": "s", "model": "n", "period_ms": 20, "on_late": "drop"}]
    mix = Mix.model_validate({"seconds": 2, "streams": streams})
    ended = simulate(mix, {"n": network}, [1, 2], policy(name), takes=lambda _: 5 * MS)
    assert sum(one.missed for one in ended) <= 17
    assert network.expected(0, 0, 0) == 5 * MS


def test_expected_latencies_are_smoothed() -> None:
    """A new measurement counts for a tenth, as half as long again as expected at most."""
    network = Network("n", 1, 1, {(0, 0, 0): 1000})
    network.learn(0, 0, 0, 1400)
    assert network.expected(0, 0, 0) == 1040
    network.learn(0, 0, 0, 99_000)
    assert network.expected(0, 0, 0) == 1092


def test_what_is_taken_for_too_slow_is_tried_again() -> None:
    """What was learnt of one processor fades while runs are on others, down to what was measured first; no further."""
    network = Network("n", 1, 3, {(0, 0, 0): 1000, (0, 0, 1): 2000, (0, 0, 2): 3000})
    for _ in range(30):
        network.learn(0, 0, 1, 9000)
    assert network.expected(0, 0, 1) > 6000
    for _ in range(20 * FORGOTTEN):
        network.learn(0, 0, 0, 1000)
    assert network.expected(0, 0, 1) < 2000 + FORGOTTEN
    assert [network.expected(0, 0, where) for where in (0, 2)] == [1000, 3000]


@pytest.mark.parametrize("name", list(POLICIES))
def test_nobody_starves(name: str) -> None:
    """Beside streams that ask for more than there is, a run without a deadline ends all the same."""
    busy = [
        {"name": f"s{index}", "model": "a", "period_ms": 20, "on_late": "drop", "deadline_ms": 60} for index in range(3)
    ]
    streams = [*busy, {"name": "patient", "model": "b", "arrival": "trace", "trace_ms": [5]}]
    mix = Mix.model_validate({"seconds": 6, "streams": streams})
    networks = {
        "a": Network("a", 1, 3, {(0, 0, 0): 10 * MS, (0, 0, 1): 10 * MS, (0, 0, 2): 9 * MS}),
        "b": Network("b", 1, 3, {(0, 0, 2): 50 * MS}),
    }
    ended = simulate(mix, networks, [1, 2, 3], policy(name))
    patient = next(one for one in ended if one.stream == "patient")
    assert patient.end_ms is not None
    assert patient.end_ms < 1500


@pytest.mark.parametrize("name", list(POLICIES))
def test_a_network_that_gives_way_to_others_is_served_every_second(name: str) -> None:
    """Each of its runs costs another network several deadlines, and may be dropped; its own deadline it can make."""
    streams = [
        {"name": "often", "model": "small", "period_ms": 10, "on_late": "drop"},
        {"name": "seldom", "model": "large", "period_ms": 300, "deadline_ms": 100, "on_late": "drop"},
    ]
    mix = Mix.model_validate({"seconds": 8, "streams": streams})
    networks = {name: Network(name, 1, 1, {(0, 0, 0): ms * MS}) for name, ms in (("small", 5), ("large", 30))}
    ended = agreed(mix, networks, [1], name)
    served = [0.0, *(one.end_ms for one in ended if one.stream == "seldom" and one.end_ms), 8000.0]
    assert max(b - a for a, b in pairwise(served)) < 1000 + 2 * 300
    assert all(not one.missed or one.dropped for one in ended if one.stream == "seldom")


@pytest.mark.parametrize(("due_ms", "steps_in"), [(300, False), (109, True)])
def test_nobody_steps_in_where_another_would_be_late_for_that(due_ms: int, steps_in: bool) -> None:
    """Also who goes first by its priority waits, if that is in time; if not, it steps in."""
    longer = Network("longer", 1, 1, {(0, 0, 0): 90 * MS})
    longer.border_ns[0] = 5 * MS
    scheduler = Scheduler(policy("earliest_deadline"), [1])
    scheduler.submit(longer, 0, deadline_ns=100 * MS)
    (running,), _ = scheduler.decide(0)
    urgent = Network("urgent", 1, 1, {(0, 0, 0): 20 * MS})
    request = scheduler.submit(urgent, 10 * MS, deadline_ns=due_ms * MS, priority=1)
    started, _ = scheduler.decide(10 * MS)
    assert [one.request for one in started] == [request] * steps_in
    scheduler.finished(running, None)
    started, _ = scheduler.decide(90 * MS)
    assert [one.request for one in started] == [request] * (not steps_in)


def test_runs_of_one_network_keep_their_order() -> None:
    """With one run in flight, later runs of a network wait, and others pass them."""
    one = Network("one", 1, 2, {(0, 0, 0): 10, (0, 0, 1): 10})
    one.in_flight = 1
    other = Network("other", 1, 2, {(0, 0, 0): 10, (0, 0, 1): 10})
    scheduler = Scheduler(policy("least_slack"), [1, 2])
    first = scheduler.submit(one, 0, deadline_ns=500)
    scheduler.submit(one, 0, deadline_ns=100)
    last = scheduler.submit(other, 0, deadline_ns=900)
    assert {each.request for each in scheduler.decide(0)[0]} == {first, last}


@pytest.mark.parametrize("name", sorted(POLICIES))
def test_who_is_dropped_makes_room(name: str) -> None:
    """A network with one run at a time: behind two that nobody can keep to the third starts in the same decision."""
    network = Network("one at a time", 1, 1, {(0, 0, 0): 10 * MS})
    network.in_flight = 1
    scheduler = Scheduler(POLICIES[name](), [1])
    hopeless = [scheduler.submit(network, 0, deadline_ns=MS, on_late="drop") for _ in range(2)]
    behind = scheduler.submit(network, 0)
    started, dropped = scheduler.decide(0)
    assert ([one.request for one in started], dropped) == ([behind], hopeless)


@pytest.mark.parametrize("name", sorted(POLICIES))
def test_a_degraded_run_goes_where_the_cheaper_network_makes_the_deadline(name: str) -> None:
    """On two cores, where that takes 30 ms of the 40 that there are, not on one, where it costs less and is late."""
    own, cheaper = (
        Network(which, 1, 2, {(0, 0, 0): one * MS, (0, 0, 1): both * MS})
        for which, one, both in (("own", 90, 70), ("cheaper", 50, 30))
    )
    own.cheaper = cheaper
    scheduler = Scheduler(policy(name), [1, 3])
    request = scheduler.submit(own, 0, deadline_ns=40 * MS, on_late="degrade")
    (started,), _ = scheduler.decide(0)
    assert (request.network, started.processor, started.end_ns) == (cheaper, 1, 30 * MS)


@pytest.mark.parametrize("name", sorted(POLICIES))
@pytest.mark.parametrize(("border_ms", "in_flight"), [(5, 2), (0, 1)])
def test_a_degraded_run_waits_for_those_of_the_network_that_answers_it(
    name: str, border_ms: int, in_flight: int
) -> None:
    """It does not step in where its new network has a run in pieces, nor is it one more than that may have at once."""
    own, cheaper = (Network(which, 1, 2, {(0, 0, 0): ms * MS}) for which, ms in (("own", 90), ("cheaper", 50)))
    own.cheaper, cheaper.in_flight = cheaper, in_flight
    cheaper.border_ns[0] = border_ms * MS
    if not border_ms:
        cheaper.set((0, 0, 1), 60 * MS)
    scheduler = Scheduler(policy(name), [1, 2])
    scheduler.submit(cheaper, 0, deadline_ns=500 * MS)
    (running,), _ = scheduler.decide(0)
    request = scheduler.submit(own, MS, deadline_ns=30 * MS, on_late="degrade")
    assert scheduler.decide(MS) == ([], [])
    assert request.network is cheaper
    scheduler.finished(running, None)
    (started,), _ = scheduler.decide(50 * MS)
    assert started.request is request


def test_priority_goes_before_slack() -> None:
    """Of two priorities the higher goes first, whatever the deadlines, and so it does at the arbiter."""
    network = Network("n", 1, 1, {(0, 0, 0): 10})
    for name in POLICIES:
        scheduler = Scheduler(policy(name), [1])
        hurried = scheduler.submit(network, 0, deadline_ns=50)
        urgent = scheduler.submit(network, 0, deadline_ns=500, priority=1)
        (started,), _ = scheduler.decide(0)
        assert started.request is urgent
        assert started.key < scheduler.policy.key(hurried, 10)


def test_what_nobody_can_keep_to_is_refused() -> None:
    """Deadlines in the past, priorities out of bounds and unknown names are refused with their cause."""
    for deadline in (0, -1.0, float("nan"), float("inf")):
        with pytest.raises(InputError, match="deadline_ms"):
            Terms(deadline)
    with pytest.raises(InputError, match="priority"):
        Terms(priority=101)
    with pytest.raises(InputError, match="on_late"):
        Terms(on_late="soon")  # type: ignore[arg-type]
    for unknown, known in (("least_slak", "least_slack"), (7, "fifo"), (int, "fifo")):
        with pytest.raises(UnknownNameError, match=known):
            policy(unknown)  # type: ignore[arg-type]


def test_a_policy_is_named_or_given_as_a_class_or_made() -> None:
    """All three are the same policy."""
    own = LeastSlack()
    assert policy(own) is own
    assert type(policy("least_slack")) is type(policy(LeastSlack)) is LeastSlack


def test_who_is_due_behind_one_that_stepped_in_waits_at_the_arbiter() -> None:
    """It begins before the long run that gave way to both; behind a run in one go it waits for a decision."""
    long, short = Network("long", 1, 1, {(0, 0, 0): 100 * MS}), Network("short", 1, 1, {(0, 0, 0): 5 * MS})
    long.border_ns[0] = 20 * MS
    for first, begins in ((long, True), (short, False)):
        scheduler = Scheduler(policy("earliest_deadline"), [1])
        scheduler.submit(first, 0, deadline_ns=1000 * MS)
        scheduler.decide(0)
        earlier = scheduler.submit(Network("a", 1, 1, {(0, 0, 0): 5 * MS}), MS, deadline_ns=50 * MS)
        later = scheduler.submit(Network("b", 1, 1, {(0, 0, 0): 5 * MS}), MS, deadline_ns=60 * MS)
        started, _ = scheduler.decide(MS)
        assert [one.request for one in started] == ([earlier, later] if begins else [])
        if begins:
            assert [one.end_ns for one in started] == [16 * MS, 21 * MS]
