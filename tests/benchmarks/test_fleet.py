"""The simulated fleet: what its releases come to."""

from __future__ import annotations

from benchmarks.fleet.rule import simulate


def test_harm_comes_back_and_nothing_else_does() -> None:
    """A fifth of the SoCs 30 % slower stops a release in its first stages; where nothing is, it reaches everybody."""
    bad = simulate(1, devices=10_000, socs=10, hit=0.2, slower=0.3)
    assert bad.taken_back
    assert bad.share < 0.05
    fine = simulate(1, devices=2_000, socs=10, hit=0.0, slower=0.0)
    assert not fine.taken_back
    assert fine.share > 0.5
    assert simulate(1, devices=2_000, socs=10, hit=0.0, slower=0.0) == fine
