"""A plan that contradicts itself is no plan."""

from __future__ import annotations

import json
import math
import random
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from hope_schema import Link, Plan, PlanRequest
from hope_schema.base import MAX_FIGURE_US
from hope_schema.hosts import stepped
from hope_schema.periods import runs


def plan() -> dict[str, Any]:
    """Return the JSON of a small valid plan: two steps on two processors."""
    step = {"dtype": "float32", "cause": "faster"}
    return {
        "jobs": [{"model_hash": "0" * 64, "finish_us": 9.5}], "soc": "soc", "frequency": "f", "processors": ["a", "b"],
        "steps": [
            step | {"id": 0, "ops": ["t0", "t1"], "processor": "a", "start_us": 0.0, "finish_us": 5.0},
            step | {"id": 1, "ops": ["t2"], "processor": "b", "start_us": 5.0, "finish_us": 9.0},
        ],
        "order": [0, 1],
        "transfers": [
            {"tensor": "t1", "source": "a", "target": "b", "reader": 1, "start_us": 5.0, "finish_us": 6.0},
            {"tensor": "t2", "source": "b", "target": "host", "over": "dma", "start_us": 9.0, "finish_us": 9.5},
        ],
        "makespan_us": 9.5, "lower_bound_us": 8.0, "gap": 0.1875, "method": "greedy", "bound_method": "path",
        "single_processor_us": {"a": 12.0}, "profile_version": 1,
    }  # fmt: skip


def test_a_plan_survives_the_wire() -> None:
    """The body comes back byte for byte, and knows which processors work."""
    first = Plan.model_validate_json(json.dumps(plan()))
    text = first.model_dump_json()
    assert Plan.model_validate_json(text).model_dump_json() == text
    assert first.processors_used == ("a", "b")
    assert first.step[1].ops == ("t2",)


def test_a_plan_is_printed_in_a_line() -> None:
    """Who prints a plan reads what it takes and how good it is, not its thousand steps."""
    words = "2 steps on a, b: 0.009 ms by greedy, at most 18.8% above the optimum"
    assert str(Plan.model_validate_json(json.dumps(plan()))) == words


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        (("steps", 1, "id"), 0, "step id stands twice"),
        (("steps", 1, "ops"), ["t1"], "op stands in two steps"),
        (("steps", 1, "ops"), [], "at least 1"),
        (("steps", 0, "processor"), "c", "not among the plan's processors"),
        (("steps", 0, "finish_us"), -1.0, "greater than or equal to 0"),
        (("steps", 1, "finish_us"), 4.0, "finishes before it starts"),
        (("steps", 0, "cause"), "luck", "Input should be"),
        (("steps", 0, "dtype"), "float7", "Input should be"),
        (("steps",), [], "at least 1"),
        (("order",), [0], "every step exactly once"),
        (("order",), [0, 0], "every step exactly once"),
        (("order",), [0, 1, 2], "every step exactly once"),
        (("transfers", 0, "reader"), 2, "which the plan does not have"),
        (("transfers", 0, "over"), "dma", "takes the time of 'dma' and of step 1 at once"),
        (("transfers", 1, "job"), 1, "job 1 is not among the plan's 1"),
        (("steps", 0, "job"), 1, "job 1 is not among the plan's 1"),
        (("jobs",), [], "at least 1"),
        (
            ("jobs", 0, "cuts"),
            [{"op": "t0", "axes": [1], "at": [[1]]}, {"op": "t0", "axes": [2], "at": [[2]]}],
            "cut twice",
        ),
        (("jobs", 0, "cuts"), [{"op": "t0", "axes": [1], "at": [[2, 2]]}], "a part is empty"),
        (("jobs", 0, "cuts"), [{"op": "t0", "axes": [2, 1], "at": [[2], [2]]}], "along axes [2, 1]"),
        (("jobs", 0, "cuts"), [{"op": "t0", "axes": [1, 2], "at": [[2]]}], "at 1 lists of borders"),
        (("jobs", 0, "cuts"), [{"op": "t0", "axes": [1, 2], "at": [[*range(1, 9)], [*range(1, 9)]]}], "more than 64"),
        (("jobs", 0, "weight"), 0.0, "greater than 0"),
        (("makespan_us",), -1.0, "greater than or equal to 0"),
        (("gap",), -0.1, "greater than or equal to 0"),
        (("jobs", 0, "model_hash"), "0" * 64 + "\n", "pattern"),
        (("schema_version",), 3, "Input should be 4"),
        (("objective",), "energy", "Input should be"),
        (("transfer_mode",), "overlap", "Extra inputs"),
        (("solved_at",), "2026", "Extra inputs"),
    ],
)
def test_inconsistent_plans_are_refused(path: tuple[str | int, ...], value: object, words: str) -> None:
    """Each contradiction is refused with a message that names it."""
    broken = plan()
    place: Any = broken
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    with pytest.raises(ValidationError) as caught:
        Plan.model_validate_json(json.dumps(broken))
    assert any(words in str(error["msg"]) for error in caught.value.errors())


@pytest.mark.parametrize("number", ["NaN", "Infinity"])
def test_times_that_are_no_numbers_are_refused(number: str) -> None:
    """A plan with NaN or infinite times does not get in, whichever field they stand in."""
    text = json.dumps(plan())
    for old in ("9.5", "8.0", "0.1875", "12.0", "5.0"):
        with pytest.raises(ValidationError):
            Plan.model_validate_json(text.replace(old, number, 1))


@pytest.mark.parametrize("sign", [-1.0, 1.0])
def test_the_largest_weight_may_be_late_as_long_as_anything_takes(sign: float) -> None:
    """A lateness is the largest weight times the longest duration at most, on either side of the deadline."""
    job, latest = {"model_hash": "0" * 64, "finish_us": 9.5, "weight": 1e6, "deadline_us": 9.5}, sign * 1e6 * 1e15
    assert Plan.model_validate_json(json.dumps(plan() | {"jobs": [job], "lateness_us": latest})).lateness_us == latest


def test_a_request_names_the_networks_that_run_together() -> None:
    """One to 64 jobs, none due before it begins, deadlines where lateness is to be small; anything else is refused."""
    job = {"model_hash": "0" * 64}
    body: dict[str, Any] = {"jobs": [job], "soc": "s", "frequency": "f"}
    assert PlanRequest.model_validate_json(json.dumps(body)).method == "auto"
    late = body | {"objective": "lateness", "jobs": [job | {"release_us": 5.0, "deadline_us": 5.0, "weight": 2.0}, job]}
    assert PlanRequest.model_validate_json(json.dumps(late)).jobs[0].deadline_us == 5.0
    for change in (
        {"jobs": []},
        {"jobs": [job] * 65},
        {"jobs": [job | {"period_us": 0.0}]},
        {"jobs": [job | {"release_us": 5.0, "deadline_us": 4.0}]},
        {"objective": "lateness"},
        {"objective": "energy"},
        {"objective": "latency"},
        {"method": "magic"},
        {"processors": []},
    ):
        with pytest.raises(ValidationError):
            PlanRequest.model_validate_json(json.dumps(body | change))


HOSTS: dict[str, Any] = {
    "hosts": [{"name": "edge", "soc": "e", "frequency": "f"}, {"name": "cloud", "soc": "c", "frequency": "f"}],
    "links": [
        {"source": source, "target": target, "fixed_us": 100.0, "us_per_byte": 0.1, "busy": "radio"}
        for source, target in (("host", "edge"), ("edge", "cloud"), ("cloud", "edge"), ("edge", "host"))
    ],
}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"hosts": [HOSTS["hosts"][0]] * 2}, "host 'edge' is named twice"),
        ({"hosts": [{**HOSTS["hosts"][0], "name": "host"}]}, "'host' is the device itself"),
        ({"hosts": HOSTS["hosts"][:1]}, "there is no host 'cloud'"),
        ({"links": HOSTS["links"][:1]}, "no link leads to host 'cloud'"),
        ({"links": HOSTS["links"][:3]}, "no link leads from host 'cloud'"),
        ({"links": HOSTS["links"] + HOSTS["links"][:1]}, "two links lead from one host"),
        ({"links": [{**HOSTS["links"][0], "target": "host"}]}, "a link from 'host' to itself"),
        (
            {"jobs": [{"model_hash": "0" * 64, "period_us": us} for us in (1000.0, 999.0)]},
            "more than the 256 runs",
        ),
    ],
)
def test_hosts_and_periods_that_make_no_plan_are_refused(change: dict[str, Any], words: str) -> None:
    """One sentence each says what is wrong: names, links, ways, the hyperperiod."""
    body = {"jobs": [{"model_hash": "0" * 64}], "soc": "s", "frequency": "f", **HOSTS}
    assert PlanRequest.model_validate(body).profiles == (("s", "f"), ("e", "f"), ("c", "f"))
    with pytest.raises(ValidationError) as caught:
        PlanRequest.model_validate(body | change)
    assert [words in error["msg"] for error in caught.value.errors()] == [True]


@pytest.mark.parametrize("us", [0.0, 1e-9, 37.0, MAX_FIGURE_US])
def test_a_link_in_steps_is_a_link(us: float) -> None:
    """The nearest step is within half a step, and a figure that a link may have: the slowest link too."""
    figure = stepped(us)
    assert figure == pytest.approx(us, rel=0.05, abs=1e-6)
    assert Link(source="host", target="edge", fixed_us=figure, us_per_byte=figure, busy="radio").fixed_us == figure


def test_runs_fill_the_hyperperiod() -> None:
    """Periods of 20 and 30 ms begin together again after 60 ms: three runs and two; one without a period runs once."""
    assert runs([20_000.0, 30_000.0, None]) == [3, 2, 1]
    assert runs([0.5, 0.75]) == [3, 2]
    assert runs([None, None]) == [1, 1]
    assert runs(list(np.array([20.0, 30.0]))) == [3, 2]


@pytest.mark.parametrize("us", [0.0, -5.0, math.nan, math.inf])
def test_a_period_that_is_no_time_is_refused_in_words(us: float) -> None:
    """Nothing runs every zero microseconds, nor backwards."""
    with pytest.raises(ValueError, match=f"every {us} µs"):
        runs([us])


def test_periods_that_never_come_together_are_refused_in_words() -> None:
    """Of many periods with all their digits the hyperperiod is longer than any float."""
    drawn = random.Random(1)
    with pytest.raises(ValueError, match="choose periods that are multiples of each other"):
        runs([drawn.uniform(1e9, 1e12) for _ in range(64)])
