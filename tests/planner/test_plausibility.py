"""What one device alone says counts where it is plausible, and else once another one says it too."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hope_schema import LatencyColumns, Missing, Observations, Profile, by_recipe, merge
from planner_api.profiles.folding import Folder, estimates
from planner_api.profiles.plausibility import FACTOR, MOST_ALONE, Reference, held_of, standings
from planner_api.profiles.snapshot import publish
from planner_api.profiles.statistics import Statistics, device_hash
from tests import CAMPAIGN
from tests.planner.samples import FREQUENCY, SOC, Api, enrolled, measure, missing_request, plan_request
from tests.planner.test_folding import BIG, upload
from tests.planner.test_predictions import FEATURES, KNOWN, UNSEEN, cost

AGREED = {op.signature: cost(op.signature, BIG) for op in merge(KNOWN)}
OPEN = {op.signature: cost(op.signature, BIG) for op in merge(UNSEEN)}


def moves(costs: dict[int, float]) -> dict[str, Any]:
    """Transfers of so many elements from the big core's place to the little one's, as parsed JSON."""
    rows = len(costs)
    return {
        "tensor": [{"shape": [size], "dtype": "float32"} for size in costs],
        "source": ["host/big"] * rows,
        "target": ["host/little"] * rows,
        "us": list(costs.values()),
        "spread_us": [0.1] * rows,
        "count": [5] * rows,
    }


def published(folder: Folder) -> Profile:
    """The profile that plans rest on, after what devices do not agree on was doubted."""
    statistics = folder.statistics
    found = estimates(statistics)
    standing = standings(statistics, found)
    Reference(statistics, standing, FEATURES).hold_back(statistics, standing, FEATURES)
    return Profile.model_validate_json(publish(Statistics.load(statistics.dump()), found, "soc", "max", 1))


@given(data=st.data())
@settings(max_examples=300 if CAMPAIGN else 15)
def test_a_lone_figure_counts_where_it_is_plausible(data: st.DataObject) -> None:
    """However a lone figure is off, in whatever order devices speak: it counts near the truth, and far from it waits
    for a second voice. Nothing else of the profile changes.
    """
    factors = {
        signature: data.draw(
            st.one_of(st.floats(0.5, 2.0), st.floats(50.0 * FACTOR, 1e6), st.floats(1e-9, 0.02 / FACTOR))
        )
        for signature in OPEN
    }
    lone = {signature: min(us * factors[signature], 3e9) for signature, us in OPEN.items()}
    noise = random.Random(0)
    uploads = [(f"d{n}", upload({key: us * noise.gauss(1, 0.02) for key, us in AGREED.items()})) for n in range(3)]
    folder = Folder(Statistics())
    for one in data.draw(st.permutations([*uploads, ("lone", upload(lone))])):
        folder.fold([one])
    found = set(published(folder).latencies.signature)
    assert found == AGREED.keys() | {key for key, factor in factors.items() if 0.5 <= factor <= 2.0}
    folder.fold([("second", upload({key: us * 1.1 for key, us in lone.items()}))])
    assert set(published(folder).latencies.signature) == AGREED.keys() | OPEN.keys()


def test_two_who_contradict_each_other_are_no_agreement() -> None:
    """Beside a wild figure a second device's true one changes nothing yet; a third voice decides."""
    folder = Folder(Statistics())
    folder.fold([(f"d{n}", upload(AGREED)) for n in range(2)])
    signature, us = next(iter(OPEN.items()))
    for name, factor, there in (("liar", 1e4, False), ("one", 1.0, False), ("two", 1.01, True)):
        folder.fold([(name, upload({signature: us * factor}))])
        profile = published(folder)
        assert (signature in profile.latencies.signature) == there
    assert dict(zip(profile.latencies.signature, profile.latencies.us, strict=True))[signature] == pytest.approx(
        us, rel=0.01
    )


def test_transfers_are_held_to_their_line() -> None:
    """What one device says of a move counts near what a line through the agreed ones says, and else does not."""

    def line(size: int) -> float:
        return 5.0 + size / 1000

    agreed = moves({size: line(size) for size in range(1000, 9000, 1000)})
    folder = Folder(Statistics())
    folder.fold([(f"d{n}", {**upload({}), "transfers": agreed}) for n in range(2)])
    folder.fold([("lone", {**upload({}), "transfers": moves({500: 7.0, 1500: 1e6, 2500: 1e-3, 20000: 60.0})})])
    profile = published(folder)
    sizes = {tensor.shape[0] for tensor in profile.transfers.tensor}
    assert sizes == {*range(1000, 9000, 1000), 500, 20000}


@pytest.mark.parametrize(("name", "lie"), [("launch_us", 1e9), ("end_us", 1e9), ("slowdown", 8.0), ("spread", 1.0)])
def test_no_device_alone_says_what_launches_cost_a_fleet(name: str, lie: float) -> None:
    """The first device's overheads count until others agree on its kind, then up to a bound, as it is told.

    That is never nothing, and what two say counts however large it is.
    """

    def said(us: float) -> dict[str, Any]:
        return {**upload(AGREED), "overheads": {name: {BIG: us}}}

    folder = Folder(Statistics())
    folder.fold([("liar", said(lie))])
    assert getattr(published(folder).overheads, name) == {BIG: lie}
    folder.fold([("one", upload(AGREED)), ("two", upload(AGREED))])
    assert getattr(published(folder).overheads, name) == {BIG: MOST_ALONE[name]}
    told = held_of(folder.statistics, device_hash("liar"))
    assert told is not None
    assert told.startswith(f"1 figure not used as said until another device says them too, {name} {BIG} among them")
    assert "speaks against" not in told, "nothing is known that does"
    assert held_of(folder.statistics, device_hash("one")) is None
    plausible = MOST_ALONE[name] * 0.6
    folder.fold([("liar", said(plausible))])
    assert getattr(published(folder).overheads, name) == {BIG: plausible}
    folder.fold([("liar", said(lie))])
    honest = lie / 100
    if name == "slowdown":
        honest = 1.2
    folder.fold([("one", said(honest)), ("two", said(honest * 1.1))])
    assert getattr(published(folder).overheads, name)[BIG] == pytest.approx(1.05 * honest)


def test_no_device_alone_says_what_runs_beside_an_op() -> None:
    """The first device's shares count until others agree on its kind; then each once two say about the same."""

    def said(share: float) -> dict[str, Any]:
        asked = upload(AGREED)
        return {**asked, "latencies": {**asked["latencies"], "share": [share] * len(AGREED)}}

    folder = Folder(Statistics())
    folder.fold([("liar", said(1e-3))])
    assert set(published(folder).latencies.share) == {1e-3}
    folder.fold([("one", upload(AGREED)), ("two", upload(AGREED))])
    assert set(published(folder).latencies.share) == {1.0}
    folder.fold([("one", said(0.5)), ("two", said(0.5))])
    assert published(folder).latencies.share == pytest.approx([0.5] * len(AGREED))


def test_the_first_device_is_believed_but_for_ops_that_nobody_has() -> None:
    """Where nothing is agreed on, every time counts; that an op of no model cannot run does not."""
    folder = Folder(Statistics())
    known = dict.fromkeys(OPEN, 1000000000.0)
    folder.fold([("first", upload({**known, next(iter(AGREED)): None, "Conv:junk": None}))])
    assert set(published(folder).latencies.signature) == {*known, next(iter(AGREED))}


pytestmark = [pytest.mark.above_databases, pytest.mark.planner(tokens_required=True)]


class Fleet:
    """Devices that measure what they are asked for, of which two agree on one network's figures."""

    def __init__(self, api: Api, *names: str) -> None:
        self.api = api
        self.headers = {name: enrolled(api, name) for name in ("one", "two", *names)}
        for graph in (KNOWN, UNSEEN):
            assert api.post("/models", graph, **self.headers["one"]).status_code == 201
        for name in ("one", "two"):
            self.send(name)

    def send(self, name: str, factor: float = 1.0, which: Any = KNOWN, *, recipe: int | None = None) -> Observations:
        """Say this factor of what is true of a network, or take it for what a further recipe of its ops takes."""
        missing = self.api.post("/profiles/missing", missing_request(which, name), **self.headers[name]).json()
        rows = [(row["signature"], row["kind"]) for row in missing["latencies"]]
        columns = LatencyColumns(
            signature=tuple(by_recipe(row[0], recipe) for row in rows),
            kind=tuple(row[1] for row in rows),
            us=tuple(cost(*row) * factor for row in rows),
            spread_us=(0.1,) * len(rows),
            count=(5,) * len(rows),
        )
        sent = measure(Missing(profile_version=0), name, latencies=columns)
        assert self.api.post("/profiles", sent, **self.headers[name]).status_code == 202
        self.api.await_(self.api.app.planner.profiles.folded, SOC, FREQUENCY)
        return sent

    def figures(self) -> dict[str, float | None]:
        """What plans rest on, on the big core."""
        rows = self.api.profile().latencies
        return {row: us for row, kind, us in zip(rows.signature, rows.kind, rows.us, strict=True) if kind == BIG}


@pytest.mark.parametrize("other", [1.2e4, 1.0])
def test_who_is_left_alone_is_doubted_again(api: Api, admin: dict[str, str], other: float) -> None:
    """Once the other voice is taken back, agreed or contradicting, a wild figure is one device's word and waits."""
    fleet = Fleet(api, "liar", "other")
    fleet.send("liar", 1e4, UNSEEN)
    fleet.send("other", other, UNSEEN)
    assert (OPEN.keys() <= fleet.figures().keys()) == (other > 1)
    assert api.client.delete("/devices/other", headers=admin).status_code == 204
    assert not OPEN.keys() & fleet.figures().keys()
    assert fleet.figures().keys() == AGREED.keys()
    fleet.send("two", 1.0, UNSEEN)
    assert api.client.delete("/devices/liar", headers=admin).status_code == 204
    assert OPEN.keys() <= fleet.figures().keys(), "what an honest one says alone is plausible"


def test_a_plan_rests_on_no_wild_figure_of_one_device(api: Api) -> None:
    """Its plan is predicted instead; its receipt and its own view say so; with another voice it counts."""
    fleet = Fleet(api, "liar", "other")
    headers, send, figures = fleet.headers, fleet.send, fleet.figures
    lie = send("liar", 1e4, UNSEEN)
    assert not OPEN.keys() & figures().keys()
    again = api.post("/profiles", lie, **headers["liar"]).json()
    assert again["duplicate"]
    assert "until another device says them too" in again["unused"]
    assert "until another device" in api.client.get("/devices/liar", headers=headers["liar"]).json()["unused"]
    plan = api.post("/plans", plan_request(UNSEEN), **headers["two"]).json()["plan"]
    assert plan["makespan_us"] == pytest.approx(sum(OPEN.values()), rel=0.3)
    assert all(step["predicted_spread"] for step in plan["steps"])
    send("other", 1.2e4, UNSEEN)
    assert {signature: us / true for signature, true in OPEN.items() if (us := figures()[signature])} == pytest.approx(
        dict.fromkeys(OPEN, 1.1e4)
    ), "two who agree are believed, however strange"


def test_a_plan_rests_on_no_wild_recipe_of_one_device(api: Api) -> None:
    """What a device alone says of a further recipe is held to what is predicted of its op."""
    fleet = Fleet(api, "liar")
    fleet.send("liar", 1e-4, UNSEEN, recipe=2)
    assert fleet.figures().keys() == AGREED.keys()
    fleet.send("two", 1.2, UNSEEN, recipe=3)
    assert fleet.figures().keys() == AGREED.keys() | {by_recipe(signature, 3) for signature in OPEN}
