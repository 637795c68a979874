"""What a decision looks at: who may begin, however many wait behind."""

from __future__ import annotations

import random
import sys
from types import FrameType
from typing import Any

import pytest

from agent_sdk.scheduling.network import Network
from agent_sdk.scheduling.policies import POLICIES, policy
from agent_sdk.scheduling.queue import Queue
from agent_sdk.scheduling.request import PATIENCE_NS, Request
from agent_sdk.scheduling.scheduler import Scheduler

MS = 1_000_000
ROUNDS = 10


def lines_of_decisions(name: str, waiting: int) -> list[int]:
    """Lines of the scheduler's that each of some decisions executes, between which what has started ends."""
    networks = [Network(each, 1, 2, {(0, 0, 0): 10 * MS, (0, 0, 1): 12 * MS}) for each in "abc"]
    scheduler = Scheduler(policy(name), [1, 2])
    for network in networks:
        network.in_flight = 1
    for number in range(waiting):
        scheduler.submit(networks[number % 3], 0, deadline_ns=900 * MS)
    found = []

    def count(frame: FrameType, event: str, _: object) -> Any:
        if "scheduling" not in frame.f_code.co_filename:
            return None
        found[-1] += event == "line"
        return count

    for now in range(ROUNDS):
        found.append(0)
        sys.settrace(count)
        try:
            scheduler.decide(now * MS)
        finally:
            sys.settrace(None)
        for dispatch in list(scheduler.running):
            scheduler.finished(dispatch, None)
    return found


@pytest.mark.parametrize("name", list(POLICIES))
def test_a_decision_looks_at_no_more_where_more_wait(name: str) -> None:
    """With 1 000 runs waiting of three networks, one at a time of each, it does what it does with 100."""
    assert lines_of_decisions(name, 1000) == lines_of_decisions(name, 100)


def test_who_may_begin_is_found_as_by_walking_the_queue() -> None:
    """Runs that come, go and grow old, of any priority, are offered as when all that wait are sorted each time."""
    draw = random.Random(5)
    networks = [Network(name, 2, 1, {(0, 1, 0): 1}) for name in "abc"]
    for network, most in zip(networks, (1, 2, 2**31), strict=True):
        network.in_flight = most
    queue, stands, now = Queue(), list[Request](), 0
    for number in range(1, 600):
        now += draw.randrange(30 * MS)
        deadline = draw.choice((None, now + draw.randrange(PATIENCE_NS)))
        stands.append(Request(draw.choice(networks), number, now, deadline, draw.choice((-1, 0, 0, 0, 2))))
        queue.add(stands[-1])
        for one in draw.sample(stands, min(len(stands), draw.randrange(3))):
            stands.remove(one)
            queue.remove(one)
            if draw.random() < 0.5:  # it comes back: it had to go, or a part of it has run
                one.unit = draw.randrange(2)
                stands.insert(0, one)
                queue.add(one)
        begun = [one for one in stands if one.unit]
        wanted: dict[tuple[int, bool], list[Request]] = {}
        room = {network: network.in_flight - sum(one.network is network for one in begun) for network in networks}
        waited = {
            one: now - (one.release_ns if one.deadline_ns is None else one.deadline_ns) >= PATIENCE_NS for one in stands
        }
        later = sorted((one for one in stands if not one.unit), key=lambda one: one.number)
        for one in [*begun, *sorted(later, key=lambda one: (-one.priority, not waited[one]))]:
            room[one.network] -= not one.unit
            if one.unit or room[one.network] >= 0:
                wanted.setdefault((-one.priority, not waited[one]), []).append(one)
        for of_one in wanted.values():
            of_one.sort(key=lambda one: 0 if one.unit else one.number)
        assert queue.groups(now, begun) == [(not fresh, wanted[key, fresh]) for key, fresh in sorted(wanted)]
        assert all(one in queue for one in stands)
