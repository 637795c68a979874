"""Charts are geometry, and that geometry is the plan's."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hope_schema import Cause, Plan, PlannedJob, Step, Transfer
from planner_api.console.charts import bars, gantt, heat
from planner_api.console.pages.plans import differences

LENGTHS = st.lists(
    st.tuples(st.integers(0, 2), st.floats(0.0, 1e6), st.sampled_from(list(Cause))), min_size=1, max_size=60
)


def plan_of(lengths: list[tuple[int, float, Cause]], names: str = "abc") -> Plan:
    """A plan of steps one after another per processor, every other of which pays for a transfer."""
    free = dict.fromkeys(names, 0.0)
    steps, moves = [], []
    for number, (index, us, cause) in enumerate(lengths):
        name = names[index]
        start, free[name] = free[name], free[name] + us
        steps.append(
            Step(
                id=number, ops=(f"op{number}",), dtype="float32", processor=name, start_us=start,
                finish_us=free[name], cause=cause,
            )
        )  # fmt: skip
        moves.append(
            Transfer(
                tensor=f"t{number}", source="host", target=name, start_us=start, finish_us=start + us / 4,
                reader=number if number % 2 else None, over=None if number % 2 else "link",
            )
        )  # fmt: skip
    makespan = max(free.values())
    return Plan(
        jobs=(PlannedJob(model_hash="0" * 64, finish_us=makespan),), soc="s", frequency="f", processors=tuple(names),
        steps=tuple(steps), order=tuple(range(len(steps))), transfers=tuple(moves), makespan_us=makespan,
        lower_bound_us=makespan / 2, gap=1.0, method="m", bound_method="b", profile_version=1,
    )  # fmt: skip


@given(LENGTHS)
def test_bars_stay_on_the_axis_where_the_mean_is_before_their_end(lengths: list[tuple[int, float, Cause]]) -> None:
    """A plan tells its mean, and draws the run in which nothing varies."""
    plan = plan_of(lengths)
    chart = gantt.draw(plan.model_copy(update={"makespan_us": plan.makespan_us / 2}))
    assert all(bar.at + bar.width <= 100.0 + 1e-3 for lane in chart.lanes for bar in (*lane.bars, *lane.moves))


@given(LENGTHS)
def test_every_step_is_drawn_once_where_it_runs(lengths: list[tuple[int, float, Cause]]) -> None:
    """Each step is in one bar of its processor's lane, of its cause, and within that bar; bars stay on the axis."""
    plan = plan_of(lengths)
    chart = gantt.draw(plan)
    seen: list[int] = []
    for lane in chart.lanes:
        for bar in lane.bars:
            assert bar.at >= -1e-6
            assert bar.at + bar.width <= 100.0 + 1e-3
            for number in bar.steps:
                step = plan.step[number]
                assert (lane.name, bar.kind) == (step.processor, step.cause)
                if plan.makespan_us > 0:
                    assert bar.at - 2e-3 <= 100 * step.start_us / plan.makespan_us
                    assert 100 * step.finish_us / plan.makespan_us <= bar.at + bar.width + 2e-3
            seen.extend(bar.steps)
        assert 0.0 <= lane.busy <= 1.0 + 1e-9
    assert sorted(seen) == list(range(len(plan.steps)))
    assert sum(chart.causes.values()) == len(plan.steps)
    assert {*chart.idle} == set(plan.processors) - {step.processor for step in plan.steps}


def test_a_plan_of_ten_thousand_steps_is_drawn_with_few_bars() -> None:
    """What nobody could see apart is one bar, so that a large network's page stays small."""
    plan = plan_of([(number % 3, 1.0, Cause.FASTER) for number in range(10_000)])
    assert sum(len(lane.bars) + len(lane.moves) for lane in gantt.draw(plan).lanes) < 6000


@given(LENGTHS, LENGTHS)
def test_a_comparison_has_every_op_of_either_plan(
    left: list[tuple[int, float, Cause]], right: list[tuple[int, float, Cause]]
) -> None:
    """Each op stands once, what moved comes first, and the changes add up to the difference of all times."""
    plans = plan_of(left), plan_of(right)
    found = differences(*plans)
    assert sorted(one.op for one in found) == sorted({step.ops[-1] for plan in plans for step in plan.steps})
    moved = [one.moved for one in found]
    assert moved == sorted(moved, reverse=True)
    total = [sum(step.finish_us - step.start_us for step in plan.steps) for plan in plans]
    assert sum(one.change_us for one in found) == pytest.approx(total[1] - total[0], abs=1e-3)


@given(st.lists(st.floats(0.1, 1e6) | st.none(), min_size=1, max_size=8))
def test_the_warmest_cell_of_a_row_is_its_fastest(us: list[float | None]) -> None:
    """Level 0 is the fastest and nothing else is faster; what cannot run has no colour, what is unknown says so."""
    kinds = [f"kind{number}" for number in range(len(us))]
    figures = {("Conv:1", kind): heat.Figure(one, 0.0) for kind, one in zip(kinds, us, strict=True)}
    [row] = heat.draw(["Conv:1"], [*kinds, "unmeasured"], figures)
    assert row.cells[-1].state == "absent"
    known = [one for one in us if one is not None]
    for cell, one in zip(row.cells, us, strict=False):
        assert cell.state == ("unsupported" if one is None else "known")
        if one is not None:
            assert (cell.level == 0) == (one <= min(known) * (1 + 1e-9))


def test_votes_that_a_quarter_does_not_believe_are_contested() -> None:
    """Three of four is still agreement, five of seven is not."""
    for agreeing, voters, contested in ((3, 4, False), (5, 7, True), (1, 1, False), (0, 0, False)):
        cell = heat.Cell("known", figure=heat.Figure(1.0, 0.1, voters, agreeing))
        assert cell.contested == contested


def test_a_histogram_has_a_bar_for_every_step() -> None:
    """Its labels name both ends, and the middle step is where predictions hold."""
    found = bars.steps([1, 2, 4, 0], [-0.1, 0.1, 0.5])
    assert [bar.label for bar in found] == [
        "below −10\u202f%",
        "−10\u202f% to +10\u202f%",
        "+10\u202f% to +50\u202f%",
        "above +50\u202f%",
    ]
    assert [bar.length for bar in found] == [25.0, 50.0, 100.0, 0.0]
    assert [bar.kind for bar in found] == ["", "good", "", ""]
