"""Which shapes get a plan, and what that may cost, on clocks that the tests set."""

from __future__ import annotations

import random
from dataclasses import dataclass

import pytest

from agent_sdk.journey import demand
from agent_sdk.journey.demand import CREDIT_S, FRESH_S, SHARE, USES, Budget, Demand, ShapeKey


@dataclass
class Clock:
    """Seconds that stand still until they are set."""

    now_s: float = 0.0

    def __call__(self) -> float:
        """Return the time."""
        return self.now_s


def key(size: int) -> ShapeKey:
    """Return the shapes of one input."""
    return ((1, size),)


def test_shapes_that_come_once_or_twice_are_never_worth_a_plan() -> None:
    """However many there are, and however often others come; the third run at the same shapes is the first that is."""
    counted = Demand(Budget(Clock()))
    for size in range(100):
        assert not any(counted.used(key(size)) for _ in range(USES - 1))
    assert counted.chosen() is None
    assert counted.used(key(7))
    assert (counted.chosen(), counted.chosen()) == (key(7), None)
    assert not any(counted.used(key(7)) for _ in range(10))


def test_the_latest_go_first_and_those_that_no_longer_come_are_dropped() -> None:
    """Who waited too long without a run waits again with the next one."""
    clock = Clock()
    counted = Demand(Budget(Clock()), clock)
    for size in range(3):
        clock.now_s = float(size)
        for _ in range(USES):
            counted.used(key(size))
    clock.now_s = 1.0 + FRESH_S
    assert [counted.chosen() for _ in range(3)] == [key(2), key(1), None]
    assert counted.used(key(0))
    assert counted.chosen() == key(0)
    counted.forget(key(0))
    assert [counted.used(key(0)) for _ in range(USES)] == [False] * (USES - 1) + [True]


def test_what_is_spent_stays_within_a_share_of_what_the_application_uses() -> None:
    """Over any mixture of the application's own work and plans: never more than the credit, the share, and one plan."""
    draw = random.Random(0)
    cpu, clock = Clock(), Clock()
    budget = Budget(cpu)
    counted = Demand(budget, clock)
    spent = own = 0.0
    for step in range(2000):
        own += (used := draw.uniform(0.0, 0.5))
        cpu.now_s += used
        for _ in range(USES):
            counted.used(key(step))
        if counted.chosen() is not None:
            assert spent < CREDIT_S + SHARE * own
            with budget.spending():
                cpu.now_s += (cost := draw.uniform(1.0, 5.0))
            spent += cost
    assert CREDIT_S + SHARE * own - 5.0 <= spent <= CREDIT_S + SHARE * own + 5.0


def test_a_bounded_number_of_shapes_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those seen longest ago are forgotten, whether or not they wait."""
    monkeypatch.setattr(demand, "MAX_SHAPES", 10)
    counted = Demand(Budget(Clock()), Clock())
    for size in range(1000):
        for _ in range(USES):
            counted.used(key(size))
    chosen = set()
    while (found := counted.chosen()) is not None:
        chosen.add(found)
    assert chosen == {key(size) for size in range(990, 1000)}
