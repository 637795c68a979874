"""Folding uploads: liars are outvoted, every device weighs the same, and what is stored is what was folded."""

from __future__ import annotations

import math
import random
import statistics as reference
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hope_schema import LatencyColumns, ModelGraph, Op, Processor, Profile, SuperOp, Tensor, merge
from hope_schema.base import MAX_ROWS
from planner_api.compression import zstd
from planner_api.models.figures import Figures, figures_of
from planner_api.planning import PlanningError
from planner_api.planning.problem.build import build_problem
from planner_api.profiles import statistics as statistics_module
from planner_api.profiles.folding import MAX_PROCESSORS, Folder, estimate, estimates, median, moved
from planner_api.profiles.known import Known, differ
from planner_api.profiles.snapshot import materially_changed, publish
from planner_api.profiles.statistics import Statistics, device_hash
from tests import CAMPAIGN
from tests.planner.samples import PROCESSORS

BIG = PROCESSORS[0].kind


def upload(
    costs: dict[str, float | None], processors: Iterable[Processor] = PROCESSORS, **overheads: Any
) -> dict[str, Any]:
    """Latencies of one device on the big core, as parsed JSON."""
    return {
        "processors": [processor.model_dump(mode="json") for processor in processors],
        "latencies": {
            "signature": list(costs),
            "kind": [BIG] * len(costs),
            "us": list(costs.values()),
            "spread_us": [0.1] * len(costs),
            "count": [5] * len(costs),
        },
        "overheads": overheads,
    }


def stored(folder: Folder, signature: str) -> float:
    """The estimate of a latency."""
    votes = folder.statistics.latencies
    return float(estimate(votes)[0][votes.index[signature, BIG]])


@pytest.mark.parametrize("factor", [3.0, 100.0, 0.01])
@pytest.mark.parametrize("batch", [1, 7, 64])
def test_twenty_percent_liars(factor: float, batch: int) -> None:
    """One device in five lies by a factor, in whatever order and batches: the stored latency is 2 % off at most."""
    generator = random.Random(f"{factor} {batch}")
    folder = Folder(Statistics())
    devices = [(f"device-{n}", factor if n % 5 == 0 else 1.0) for n in range(400)]
    generator.shuffle(devices)
    uploads = [(name, upload({"a": 100.0 * lie * generator.gauss(1.0, 0.02)})) for name, lie in devices]
    for at in range(0, len(uploads), batch):
        folder.fold(uploads[at : at + batch])
    assert stored(folder, "a") == pytest.approx(100.0, rel=0.005)


def test_liars_who_come_first_are_outvoted_later() -> None:
    """Early liars set the estimate only until honest devices outnumber them."""
    folder = Folder(Statistics())
    folder.fold([(f"liar-{n}", upload({"a": 900.0})) for n in range(5)])
    assert stored(folder, "a") == pytest.approx(900.0)
    folder.fold([(f"honest-{n}", upload({"a": 100.0 + n / 10})) for n in range(20)])
    assert stored(folder, "a") == pytest.approx(101.0, rel=0.02)


def test_a_device_weighs_one_vote_however_often_it_uploads() -> None:
    """A device that uploads a hundred times moves the estimate no more than one that uploads once."""
    folder = Folder(Statistics())
    folder.fold([(f"device-{n}", upload({"a": 100.0})) for n in range(9)])
    for _ in range(100):
        folder.fold([("eager", upload({"a": 104.0}))])
    assert stored(folder, "a") == pytest.approx((9 * 100.0 + 104.0) / 10)


def test_the_newest_vote_of_a_device_counts() -> None:
    """Within a batch and across batches a device's later figures replace its earlier ones."""
    folder = Folder(Statistics())
    folder.fold([("one", upload({"a": 50.0})), ("one", upload({"a": 80.0}))])
    assert stored(folder, "a") == 80.0
    folder.fold([("one", upload({"a": 10.0}))])
    assert stored(folder, "a") == 10.0


def test_a_new_level_gets_through() -> None:
    """When a driver makes an op twice as fast, the votes of those that have it outweigh the others and what settled."""
    folder = Folder(Statistics())
    for us in (100.0, 50.0):
        for at in range(0, 500, 50):
            folder.fold([(f"device-{n}", upload({"a": us})) for n in range(at, at + 50)])
        assert stored(folder, "a") == pytest.approx(us)


def test_unsupported_by_a_majority() -> None:
    """An op is unsupported when most devices say so, and supported otherwise."""
    folder = Folder(Statistics())
    folder.fold([("one", upload({"a": None})), ("two", upload({"a": None})), ("three", upload({"a": 5.0}))])
    assert stored(folder, "a") == float("inf")
    folder.fold([("four", upload({"a": 5.0})), ("five", upload({"a": 5.0}))])
    assert stored(folder, "a") == 5.0


finite = st.floats(0.0, 1e9, allow_nan=False)


@given(st.lists(st.lists(st.one_of(finite, st.just(float("nan")), st.just(float("inf"))), min_size=3, max_size=3)))
def test_median_against_the_standard_library(rows: list[list[float]]) -> None:
    """The vectorised median of finite values is the standard library's; without one it is NaN."""
    if not rows:
        return
    for row, found in zip(rows, median(np.array(rows)), strict=True):
        values = [value for value in row if np.isfinite(value)]
        assert found == (
            pytest.approx(reference.median(values)) if values else pytest.approx(float("nan"), nan_ok=True)
        )


@given(
    st.lists(st.tuples(st.integers(0, 5), st.sampled_from("abc"), finite), min_size=1, max_size=60),
    st.integers(1, 20),
)
@settings(max_examples=150, deadline=None)
def test_few_devices_against_a_plain_oracle(sent: list[tuple[int, str, float]], batch: int) -> None:
    """With at most VOTES devices the estimate is the mean of the newest votes near their median, computed plainly."""
    folder = Folder(Statistics())
    uploads = [(f"device-{device}", upload({signature: us})) for device, signature, us in sent]
    for at in range(0, len(uploads), batch):
        folder.fold(uploads[at : at + batch])
    newest: dict[str, dict[int, float]] = {}
    for device, signature, us in sent:
        newest.setdefault(signature, {})[device] = us
    for signature, votes in newest.items():
        values = list(votes.values())
        centre = reference.median(values)
        window = max(4 * 1.4826 * reference.median([abs(value - centre) for value in values]), 0.05 * centre)
        near = [value for value in values if abs(value - centre) <= window]
        assert stored(folder, signature) == pytest.approx(sum(near) / len(near), rel=1e-9, abs=1e-9)


@given(st.lists(st.tuples(st.integers(0, 99), st.sampled_from("abcd"), finite), max_size=120), st.integers(0, 119))
@settings(max_examples=40, deadline=None)
def test_storing_and_loading_changes_nothing(sent: list[tuple[int, str, float]], pause: int) -> None:
    """Statistics that were written and read in the middle end where those that stayed in memory end."""
    uploads = [(f"device-{device}", upload({signature: us}, end_us={BIG: 1.5})) for device, signature, us in sent]
    kept, reloaded = Folder(Statistics((1, 2))), Folder(Statistics((1, 2)))
    for part in (uploads[:pause], uploads[pause:]):
        kept.fold(part)
        reloaded.fold(part)
        reloaded = Folder(Statistics.load(reloaded.statistics.dump()))
    one, other = (publish(each, estimates(each), "soc", "max", 1) for each in (kept.statistics, reloaded.statistics))
    assert one == other


def test_an_upload_that_cannot_be_read_changes_nothing() -> None:
    """A damaged upload is named, and the others of its batch count."""
    folder = Folder(Statistics())
    broken = upload({"a": 1.0})
    del broken["latencies"]["us"]
    folded = folder.fold([("one", broken), ("two", upload({"a": 7.0}))])
    assert list(folded.failed) == [0]
    assert stored(folder, "a") == 7.0


def test_versions_follow_material_changes() -> None:
    """A profile is published anew when a figure appears or moves by more than one per cent, and not otherwise."""
    statistics = Statistics()
    folder = Folder(statistics)
    folder.fold([("one", upload({"a": 100.0}))])
    assert materially_changed(statistics, estimates(statistics))
    profile = Profile.model_validate_json(publish(statistics, estimates(statistics), "soc", "max", 3))
    assert (profile.version, profile.latencies.us) == (3, (100.0,))
    assert not materially_changed(statistics, estimates(statistics))
    folder.fold([("two", upload({"a": 101.0}))])
    assert not materially_changed(statistics, estimates(statistics)), "half a per cent is noise"
    folder.fold([("three", upload({"a": 110.0})), ("four", upload({"a": 110.0}))])
    assert materially_changed(statistics, estimates(statistics))
    publish(statistics, estimates(statistics), "soc", "max", 4)
    folder.fold([("five", upload({"b": None}))])
    assert materially_changed(statistics, estimates(statistics))


def test_a_profile_lists_what_devices_list_now() -> None:
    """A device that lists a processor anew, and as before again, is followed each time, and without new figures too."""
    folder, other = Folder(Statistics()), PROCESSORS[0].model_copy(update={"resources": ("cpu9",)})
    for version, first in enumerate((PROCESSORS[0], other, PROCESSORS[0], other, PROCESSORS[0])):
        said = upload({"a": 1.0}, processors=(first, *PROCESSORS[1:]))
        folder.fold([("one", said)])
        found = estimates(folder.statistics)
        assert materially_changed(folder.statistics, found)
        profile = Profile.model_validate_json(publish(folder.statistics, found, "soc", "max", version))
        assert {*profile.processors} == {first, *PROCESSORS[1:]}
        folder = Folder(Statistics.load(folder.statistics.dump()))
        folder.fold([("one", said)])
        assert not materially_changed(folder.statistics, estimates(folder.statistics))


def test_what_a_forgotten_device_listed_leaves_the_profile() -> None:
    """A processor that a device alone listed, of which nobody has figures, goes with it."""
    odd = PROCESSORS[0].model_copy(update={"id": "npu@0", "runtime": "npu"})
    folder = Folder(Statistics())
    folder.fold([("one", upload({"a": 1.0})), ("odd", upload({}, processors=(*PROCESSORS, odd)))])
    publish(folder.statistics, estimates(folder.statistics), "soc", "max", 1)
    folder.statistics.forget([device_hash("odd")])
    found = estimates(folder.statistics)
    assert materially_changed(folder.statistics, found)
    profile = Profile.model_validate_json(publish(folder.statistics, found, "soc", "max", 2))
    assert {*profile.processors} == {*PROCESSORS}


@pytest.mark.parametrize("changed", [{"resources": ("cpu9",)}, {"place": "host/other"}, {"version": "9"}])
def test_plans_are_compared_by_what_processors_are(changed: dict[str, Any]) -> None:
    """A processor on other resources differs for those who may use it, though every figure is the same."""
    first = PROCESSORS[0].model_copy(update=changed)
    versions = (PROCESSORS, (first, *PROCESSORS[1:]))
    bodies = (Profile(soc="soc", frequency="max", version=1, processors=those).model_dump_json() for those in versions)
    old, new = (Known.read(zstd(body.encode())) for body in bodies)
    figures = Figures(signatures=("a",), inputs=(), inner=(), outputs=())
    assert differ(old, new, figures, None, 0.1)
    assert differ(old, new, figures, [PROCESSORS[0].id], 0.1)
    assert not differ(old, new, figures, [PROCESSORS[1].id], 0.1)


@pytest.mark.parametrize("recipe", [{}, {"b/2": 5.0}, {"a/2": 5.0}, {"a/2": 9.0}, {"a": 9.0}])
def test_plans_are_compared_by_the_recipes_of_their_ops(recipe: dict[str, float]) -> None:
    """A recipe that came, went or moved is a reason for another plan of those who have its op, as its own row is."""
    old, new = (known({"a": 10.0, "b": 10.0, "a/2": 5.0} | one) for one in ({}, recipe))
    figures = Figures(signatures=("a",), inputs=(), inner=(), outputs=())
    moves = recipe in ({"a/2": 9.0}, {"a": 9.0})
    assert differ(old, new, figures, None, 0.05) == differ(new, old, figures, None, 0.05) == moves
    without = known({"a": 10.0, "b": 10.0})
    assert differ(old, without, figures, None, 0.05)
    assert differ(without, old, figures, None, 0.05)


@pytest.mark.parametrize("us", [10.5, 40.0, None])
def test_plans_are_compared_by_the_parts_of_their_ops(us: float | None) -> None:
    """What runs as its parts, for it was not measured whole, takes what these take: a plan follows their figures."""
    tensors = tuple(Tensor(name=name, shape=(1, 8, 4, 4), dtype="float32") for name in "xyz")
    ops = (Op(type="Conv", inputs=("x",), outputs=("y",)), Op(type="Relu", inputs=("y",), outputs=("z",)))
    graph = ModelGraph(name="net", tensors=tensors, ops=ops, inputs=("x",), outputs=("z",))
    conv, relu = (SuperOp(graph, (op,)).signature for op in ops)
    versions = [{conv: 10.0, relu: 5.0}, {conv: us, relu: 5.0} if us else {relu: 5.0}]
    took = []
    for version in versions:
        try:
            took.append(float(build_problem(graph, profile(version), [PROCESSORS[0].id]).latency_us[0, 0]))
        except PlanningError:
            took.append(math.inf)
    old, new = map(known, versions)
    moves = took[1] > took[0] * 1.1
    assert differ(old, new, figures_of(graph, merge(graph)), None, 0.1) == moves == (us != 10.5)


def known(us: dict[str, float]) -> Known:
    """A version of a profile as tables."""
    return Known.read(zstd(profile(us).model_dump_json().encode()))


def profile(us: dict[str, float]) -> Profile:
    """A version of a profile in which the first processor's kind takes so many microseconds."""
    n = len(us)
    columns = LatencyColumns(
        signature=tuple(us), kind=(PROCESSORS[0].kind,) * n, us=tuple(us.values()), spread_us=(0.0,) * n, count=(1,) * n
    )
    return Profile(soc="soc", frequency="max", version=1, processors=PROCESSORS, latencies=columns)


def test_a_lone_device_cannot_add_a_processor_for_all() -> None:
    """A processor that one device in a large fleet lists stays out of the profile; equal definitions count together."""
    folder = Folder(Statistics())
    odd = PROCESSORS[0].model_copy(update={"id": "npu@0", "runtime": "npu"})
    folder.fold([(f"device-{n}", upload({"a": 1.0})) for n in range(30)])
    folder.fold([("odd", upload({"a": 1.0}, processors=(*PROCESSORS, odd)))])
    profile = Profile.model_validate_json(publish(folder.statistics, estimates(folder.statistics), "soc", "max", 1))
    assert {processor.id for processor in profile.processors} == {processor.id for processor in PROCESSORS}
    folder.fold([(f"new-{n}", upload({"a": 1.0}, processors=(*PROCESSORS, odd))) for n in range(3)])
    profile = Profile.model_validate_json(publish(folder.statistics, estimates(folder.statistics), "soc", "max", 2))
    assert "npu@0" in {processor.id for processor in profile.processors}


def test_overheads_are_figures_too() -> None:
    """Launches, ends and spreads are folded like latencies; a device that says nothing of them casts no vote."""
    folder = Folder(Statistics())
    said = {"launch_us": {BIG: 4.0}, "end_us": {BIG: 2.0}, "spread": {BIG: 0.3}}
    folder.fold([(f"d{n}", upload({"a": 1.0}, **said)) for n in range(4)])
    folder.fold([("silent", upload({"a": 1.0}))])
    lies = {"launch_us": {BIG: 400.0}, "end_us": {BIG: 200.0}, "spread": {BIG: 1.0}}
    folder.fold([("liar", upload({"a": 1.0}, **lies))])
    profile = Profile.model_validate_json(publish(folder.statistics, estimates(folder.statistics), "soc", "max", 1))
    assert profile.overheads.launch_us == {BIG: 4.0}
    assert profile.overheads.end_us == {BIG: 2.0}
    assert profile.overheads.spread == {BIG: 0.3}


def test_what_an_upload_leaves_out_stays_as_it_was() -> None:
    """A device that measured launches where its plan ran, and no ends, has not said that there is none."""
    folder = Folder(Statistics())
    folder.fold([("d", upload({"a": 1.0}, launch_us={BIG: 4.0}, end_us={BIG: 2.0}))])
    folder.fold([("d", upload({"a": 1.0}, launch_us={BIG: 9.0}))])
    profile = Profile.model_validate_json(publish(folder.statistics, estimates(folder.statistics), "soc", "max", 1))
    assert (profile.overheads.launch_us, profile.overheads.end_us) == ({BIG: 9.0}, {BIG: 2.0})


def test_moved() -> None:
    """Moves are relative; appearing, vanishing and changing between supported and not are moves of any size."""
    nan, inf = float("nan"), float("inf")
    old = np.array([100.0, 100.0, nan, nan, inf, inf, 5.0])
    new = np.array([100.9, 102.0, nan, 1.0, inf, 5.0, inf])
    assert moved(old, new, 0.01).tolist() == [False, True, False, True, False, True, True]


def test_what_is_published_at_the_limits_is_a_profile(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many figures and processors are sent, the profile is one by the contract; what is too much is refused."""
    assert statistics_module.MAX_FIGURES == MAX_ROWS
    limit = MAX_ROWS if CAMPAIGN else 2000
    monkeypatch.setattr(statistics_module, "MAX_FIGURES", limit)

    def latencies(count: int) -> dict[str, Any]:
        return upload(dict.fromkeys((f"op-{n}" for n in range(count)), 1.0))

    folder = Folder(Statistics())
    assert "1 of" in folder.fold([("greedy", latencies(limit + 1))]).unused[0]
    assert list(folder.fold([("greedy", upload({"one more": 1.0}))]).unused) == [0]
    assert folder.fold([("greedy", latencies(limit))]).unused == {}
    for start in (0, 1000, 2000):
        many = [PROCESSORS[0].model_copy(update={"id": f"cpu@{n}"}) for n in range(start, start + 1000)]
        folder.fold([("crowded", upload({}, processors=(*PROCESSORS, *many)))])
    profile = Profile.model_validate_json(publish(folder.statistics, estimates(folder.statistics), "soc", "max", 1))
    assert len(profile.latencies.us) == limit
    assert len(profile.processors) == MAX_PROCESSORS
