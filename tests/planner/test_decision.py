"""The sequential test behind releases: its error rate, exactly where that can be enumerated, and its power."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner_api.rollout.decision import Pairs, does_harm, evidence, joint, stratum_evidence


@pytest.mark.parametrize("strata", [1, 2, 3])
def test_betting_against_fair_coins_wins_nothing(strata: int) -> None:
    """Over all outcomes of twelve devices in some strata, each as likely better as worse, the mean stake is 1."""
    stakes = []
    for outcome in itertools.product((0, 1), repeat=12):
        worse = [sum(outcome[number::strata]) for number in range(strata)]
        sizes = [len(outcome[number::strata]) for number in range(strata)]
        found = evidence(Pairs(bad, size - bad) for bad, size in zip(worse, sizes, strict=True))
        stakes.append(math.exp(joint((found, 0.0, 0.0))))
    assert np.mean(stakes) == pytest.approx(1.0)


def test_looking_after_every_device_errs_no_more_often_than_stated() -> None:
    """Of 4000 harmless releases, looked at after each of 200 devices, at most about the stated share is taken back."""
    rng, error_rate = np.random.default_rng(1), 0.05
    enough = [
        next((bad for bad in range(seen + 1) if does_harm(evidence([Pairs(bad, seen - bad)]), error_rate)), seen + 1)
        for seen in range(1, 201)
    ]
    worse = np.cumsum(rng.random((4000, 200)) < 0.5, axis=1)
    taken_back = int((worse >= np.array(enough)).any(axis=1).sum())
    assert 0 < taken_back / 4000 <= error_rate + 3 * math.sqrt(error_rate * (1 - error_rate) / 4000)


@given(st.integers(0, 200), st.integers(0, 200))
def test_one_more_device_that_is_worse_is_more_evidence(worse: int, better: int) -> None:
    """And one more that is better is less; nothing at all is none."""
    here = stratum_evidence(Pairs(worse, better))
    assert stratum_evidence(Pairs(worse + 1, better)) > here > stratum_evidence(Pairs(worse, better + 1))
    assert stratum_evidence(Pairs()) == pytest.approx(0.0)


def test_harm_in_one_place_is_found_among_many() -> None:
    """Thirty devices that are worse on one SoC of 300 are harm, however the others fall."""
    quiet = [Pairs(10, 10)] * 299
    assert does_harm(joint((evidence([*quiet, Pairs(30, 0)]), 0.0, 0.0)), 0.001)
    assert not does_harm(joint((evidence([*quiet, Pairs(10, 10)]), 0.0, 0.0)), 0.001)


@given(st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 10**6)), max_size=5))
def test_any_counts_have_an_answer(counts: list[tuple[int, int]]) -> None:
    """A million devices overflow nothing."""
    assert math.isfinite(evidence(Pairs(*each) for each in counts))
