"""No device decides alone what a profile says: figures by agreement, on both databases."""

from __future__ import annotations

import random

import numpy as np
import pytest
from sqlalchemy import update

from hope_schema import LatencyColumns, Observations, Profile
from planner_api.db.tables import InboxRow
from planner_api.jobs.kind import Lease, Task
from planner_api.profiles import statistics as statistics_module
from planner_api.profiles.fold import Fold
from planner_api.profiles.folding import Folder, estimate, estimates, wanted
from planner_api.profiles.jobs import FOLD, key_of
from planner_api.profiles.snapshot import publish
from planner_api.profiles.statistics import Statistics, device_hash
from tests.planner.commanding import commanding
from tests.planner.in_thread import computed
from tests.planner.samples import (
    FREQUENCY,
    SOC,
    Api,
    admin_token,
    chain,
    enrolled,
    measure,
    missing_request,
    plan_request,
    problem,
)
from tests.planner.test_folding import BIG, upload

GRAPH = chain()


pytestmark = pytest.mark.planner(tokens_required=True)


def test_the_first_reporter_decides_nothing(api: Api) -> None:
    """A lone figure is asked of others too, whatever it says a plan is made, and three honest devices outweigh it."""
    liar = enrolled(api, "liar")
    assert api.post("/models", GRAPH, **liar).status_code == 201
    everything = api.missing(GRAPH, "liar", liar)
    absurd = measure(everything, "liar", cost=lambda *_: 3.6e9).model_dump_json().replace("3600000000.0", "1e12")
    assert api.post("/profiles", absurd.encode(), **liar).status_code == 422, "the contract bounds a figure"
    assert api.upload(measure(everything, "liar", cost=lambda *_: 3.6e9), liar).status_code == 202
    answer = api.post("/plans", plan_request(GRAPH), **liar)
    assert answer.status_code == 200, answer.text
    for number in range(3):
        name = f"honest-{number}"
        header = enrolled(api, name)
        asked = api.missing(GRAPH, name, header)
        assert {row.signature for row in asked.latencies} == {row.signature for row in everything.latencies}
        assert api.upload(measure(asked, name), header).status_code == 202
    assert max(us for us in api.profile().latencies.us if us is not None) == pytest.approx(25.0)
    assert api.missing(GRAPH, "liar", liar).latencies == (), "whoever said it is not asked again"


def test_revoking_a_device_takes_its_figures_back(api: Api, admin: dict[str, str]) -> None:
    """What only it said is unknown again, what others said stays, and who said what can be seen."""
    one, two = enrolled(api, "one"), enrolled(api, "two")
    api.post("/models", GRAPH, **one)
    both = measure(api.missing(GRAPH, "one", one), "one")
    api.upload(both, one)
    api.upload(measure(api.missing(GRAPH, "two", two), "two", cost=lambda *_: 12.0), two)
    junk = {**both.model_dump(), "device_id": "two", "upload_id": "junk", "latencies": {
        "signature": ("junk",), "kind": (both.latencies.kind[0],), "us": (1.0,), "spread_us": (0.0,), "count": (1,),
    }}  # fmt: skip
    api.upload(Observations(**{**junk, "processors": both.processors, "transfers": both.transfers}), two)
    assert "junk" in api.profile().latencies.signature
    where = {"soc": SOC, "frequency": FREQUENCY}
    page = api.client.get("/fleet/profiles/contributions", params=where, headers=admin).json()
    assert [(row["device_id"], row["alone"]) for row in page["contributions"]] == [("one", 0), ("two", 1)]
    said = api.client.get("/fleet/profiles/votes", params={**where, "device_id": "two", "limit": 1000}, headers=admin)
    assert {"figure": ["junk", both.latencies.kind[0]], "device_id": "two", "us": 1.0} in said.json()["votes"]
    assert api.client.delete("/devices/two", headers=admin).status_code == 204
    left = api.profile()
    assert "junk" not in left.latencies.signature
    assert set(left.latencies.us) == set(both.latencies.us)
    assert api.client.delete("/fleet/profiles/contributions", params=where, headers=admin).status_code == 204
    assert api.profile().latencies.us == ()


@pytest.mark.parametrize(
    "path", ["/devices/one", f"/fleet/profiles/contributions?soc={SOC}&frequency={FREQUENCY}&device_id=one"]
)
def test_what_waits_to_be_folded_is_taken_back_too(api: Api, admin: dict[str, str], path: str) -> None:
    """Uploads from before count no more, also where their device enrols again; those from after it count."""
    one = enrolled(api, "one")
    api.post("/models", GRAPH, **one)
    said = measure(api.missing(GRAPH, "one", one), "one")
    assert api.post("/profiles", said, **one).status_code == 202
    assert api.client.delete(path, headers=admin).status_code == 204
    if path.startswith("/devices"):
        one = enrolled(api, "one")
    api.await_(api.app.planner.profiles.folded, SOC, FREQUENCY)
    assert api.client.get(f"/profiles/{SOC}/{FREQUENCY}", headers=admin).status_code == 404
    assert api.client.get("/devices/one", headers=admin).json()["unused"] == "not used: it was taken back"
    assert api.upload(said.model_copy(update={"upload_id": "after"}), one).status_code == 202
    assert set(api.profile().latencies.us) == set(said.latencies.us)


def test_a_fold_under_way_stores_nothing_that_was_taken_back(api: Api, admin: dict[str, str]) -> None:
    """It has read an upload whose device is revoked before it ends: it is done once more, without that."""
    planner, one = api.app.planner, enrolled(api, "one")
    api.post("/models", GRAPH, **one)
    said = measure(api.missing(GRAPH, "one", one), "one")
    assert api.post("/profiles", said, **one).status_code == 202
    fold, lease = Fold(planner.database, planner.settings), Lease(1, 1, FOLD, key_of(SOC, FREQUENCY))

    async def folded(task: Task) -> bool:
        outcome = await computed(fold, lease, task)
        async with planner.database.write() as session:
            return await fold.store(session, lease, task, outcome)

    task = api.await_(fold.load, lease)
    assert [sent.device_id for sent in task.order.uploads] == ["one"]
    assert api.client.delete("/devices/one", headers=admin).status_code == 204
    assert api.await_(folded, task)
    assert api.await_(fold.load, lease) is None
    assert api.client.get(f"/profiles/{SOC}/{FREQUENCY}", headers=admin).status_code == 404


@pytest.mark.above_databases
def test_profiles_are_corrected_at_the_command_line(api: Api, capsys: pytest.CaptureFixture[str]) -> None:
    """What a device said is forgotten by name and by revoking it; what the others said stays."""
    headers = {name: enrolled(api, name) for name in ("one", "two", "three", "four")}
    for name, header in headers.items():
        api.post("/models", GRAPH, **header)
        said = measure(api.missing(GRAPH, name, header), name)
        junk = LatencyColumns(signature=(name,), kind=(BIG,), us=(1.0,), spread_us=(0.0,), count=(1,))
        for sent in (said, said.model_copy(update={"latencies": junk, "upload_id": "junk"})):
            assert api.upload(sent, header).status_code == 202
    shared = set(api.profile().latencies.signature) - headers.keys()

    with commanding(api, capsys, admin_token(api)) as say:

        def after(*arguments: str) -> set[str]:
            """Whose junk a command leaves."""
            assert say(*arguments) == "done\n"
            return headers.keys() & set(api.profile().latencies.signature)

        assert after("profiles", "forget", SOC, FREQUENCY, "--device", "one") == {"two", "three", "four"}
        assert after("devices", "revoke", "two") == {"three", "four"}
        assert after("devices", "revoke", "three") == {"four"}
        assert shared <= set(api.profile().latencies.signature), "what others said stays"
        assert say("profiles", "who", SOC, FREQUENCY).splitlines()[1].split()[:1] == ["four"]
        assert after("profiles", "forget", SOC, FREQUENCY) == set()
        assert api.profile().latencies.us == ()
        assert "nothing is known of SoC 'nobody'" in say("profiles", "who", "nobody", "max", status=1)


def test_socs_count_by_agreement(api: Api, admin: dict[str, str]) -> None:
    """A release plans for a SoC once three devices uploaded for it, or an admin vouched for it."""
    api.post("/models", GRAPH, **admin)

    def total() -> int:
        return int(api.client.post(f"/models/{GRAPH.model_hash}/plans", headers=admin).json()["total"])

    for number in range(3):
        assert total() == 0
        name = f"device-{number}"
        header = enrolled(api, name)
        api.upload(measure(api.missing(GRAPH, name, header), name), header)
    assert total() == 1
    asked_about = missing_request(GRAPH).model_copy(update={"soc": "asked-about"})
    assert api.post("/profiles/missing", asked_about, **admin).status_code == 200
    for soc in ("made-up", "asked-about"):
        problem(api.client.put(f"/fleet/socs/{soc}", headers=admin), 404, "soc-unknown")


def test_who_said_nothing_that_is_used_counts_for_nothing(api: Api, admin: dict[str, str]) -> None:
    """Of three uploads one rots before it is folded: the profile counts two devices, which vouch for no SoC."""
    headers = {name: enrolled(api, name) for name in ("one", "two", "three")}
    api.post("/models", GRAPH, **admin)
    asked = {name: api.missing(GRAPH, name, header) for name, header in headers.items()}
    for name, header in headers.items():
        assert api.post("/profiles", measure(asked[name], name), **header).status_code == 202

    async def rot() -> None:
        async with api.app.planner.database.write() as session:
            await session.execute(update(InboxRow).where(InboxRow.device_id == "three").values(body=b"rotten"))

    api.await_(rot)
    api.await_(api.app.planner.profiles.folded, SOC, FREQUENCY)
    [profile] = api.client.get("/fleet/profiles", headers=admin).json()["profiles"]
    assert (profile["devices"], profile["established"]) == (2, False)
    assert "zstd" in api.client.get("/devices/three", headers=admin).json()["unused"]


def test_who_vouches_for_a_soc_is_written_down(api: Api, admin: dict[str, str]) -> None:
    """An admin's upload makes a SoC count as well as an admin's word does: either is an entry, once, of a request."""
    api.post("/models", GRAPH, **admin)
    uploaded = api.post("/profiles", measure(api.missing(GRAPH, "one", admin), "one"), **admin)
    assert uploaded.status_code == 202
    assert api.client.put(f"/fleet/socs/{SOC}", headers=admin).status_code == 204
    (entry,) = api.client.get("/audit", params={"action": "soc.establish"}, headers=admin).json()["entries"]
    assert (entry["actor"], entry["subject"]) == ("admin:1", SOC)
    assert entry["request_id"] == uploaded.headers["x-request-id"]


@pytest.mark.parametrize("factor", [3.0, 100.0, 0.01])
def test_five_percent_of_liars_who_come_first(factor: float) -> None:
    """Of 200 devices the 10 that come first lie alike, again and again: no estimate is a per cent off in the end."""
    figures = [f"op-{n}" for n in range(40)]
    keys = [(name, BIG) for name in figures]
    folder, noise = Folder(Statistics()), random.Random(factor)
    liars = [f"liar-{n}" for n in range(10)]
    for _ in range(3):
        folder.fold([(name, upload(dict.fromkeys(figures, 100.0 * factor))) for name in liars])
    asked = 0
    for number in range(190):
        name = f"honest-{number}"
        mine = [key[0] for key in wanted(folder.statistics.latencies, device_hash(name), keys, 1000)]
        asked += len(mine)
        if mine:
            folder.fold([(name, upload({figure: 100.0 * noise.gauss(1.0, 0.01) for figure in mine}))])
        folder.fold([(liars[number % 10], upload(dict.fromkeys(figures, 100.0 * factor)))])
    assert asked < 190 * len(figures), "not everybody measures everything"
    off = np.abs(estimate(folder.statistics.latencies)[0] / 100.0 - 1.0)
    assert float(np.median(off)) < 0.01
    assert float((off > 0.05).mean()) <= 0.05


def test_a_full_profile_gives_way_to_who_has_less(monkeypatch: pytest.MonkeyPatch) -> None:
    """Five devices that fill a profile together cannot keep a sixth out, and what two of them say stays longer."""
    monkeypatch.setattr(statistics_module, "MAX_FIGURES", 100)
    folder = Folder(Statistics())
    for device in range(5):
        folder.fold([(f"greedy-{device}", upload({f"{device}-{n}": 1.0 for n in range(20)}))])
    folded = folder.fold([("honest", upload({f"true-{n}": 5.0 for n in range(10)}))])
    assert folded.unused == {}
    found = Profile.model_validate_json(publish(folder.statistics, estimates(folder.statistics), "soc", "max", 1))
    assert {f"true-{n}" for n in range(10)} <= set(found.latencies.signature)
    assert len(found.latencies.signature) == 100


def test_a_plan_waits_for_what_is_taken_back(api: Api, admin: dict[str, str]) -> None:
    """Whoever asks right after a device was revoked gets no plan by its figures: the fold comes first."""
    headers = {name: enrolled(api, name) for name in ("honest", "liar")}
    for name, us in (("honest", 10.0), ("liar", 30.0)):
        api.post("/models", GRAPH, **headers[name])
        api.upload(measure(api.missing(GRAPH, name, headers[name]), name, cost=lambda *_, us=us: us), headers[name])
    assert set(api.profile().latencies.us) != {10.0}
    assert api.client.delete("/devices/liar", headers=admin).status_code == 204
    plan = api.post("/plans", plan_request(GRAPH), **headers["honest"]).json()["plan"]
    assert max(step["finish_us"] - step["start_us"] for step in plan["steps"]) <= 11.0  # with a transfer
