"""No device decides alone: figures by agreement, shares of a profile, quotas and turns, on both databases."""

from __future__ import annotations

import asyncio
import random
import select as ready
import socket
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import UTC, datetime
from typing import Any
from unittest.mock import AsyncMock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import select

from hope_schema import Enrolment, LatencyColumns, Missing, Observations, Profile
from planner_api import cli
from planner_api.db.tables import PlanRow
from planner_api.devices.principal import Principal
from planner_api.errors import TooOftenError
from planner_api.http.body import SMALL_BYTES
from planner_api.locks import Turns
from planner_api.plans import repository, service
from planner_api.profiles import oversight
from planner_api.profiles import statistics as statistics_module
from planner_api.profiles.folding import Folder, estimate, estimates, wanted
from planner_api.profiles.snapshot import publish
from planner_api.profiles.statistics import Statistics, device_hash
from planner_api.server import build_config
from planner_api.solving.repository import take
from tests.planner.samples import (
    FREQUENCY,
    SOC,
    Api,
    chain,
    enrolled,
    eventually,
    measure,
    missing_request,
    operator_token,
    plan_request,
    serving,
    tokens,
)
from tests.planner.test_folding import BIG, upload
from tests.planner.wire import listening, raw

GRAPH = chain()


@pytest.fixture
def api(database_url: str) -> Iterator[Api]:
    """A planner that wants tokens."""
    with serving(
        database_url,
        tokens_required=True,
        models_per_day=3,
        plan_keys_per_day=4,
        profiles_per_device=2,
        figures_per_device=60,
    ) as running:
        yield running


@pytest.fixture
def operator(api: Api) -> dict[str, str]:
    """An operator's header."""
    return {"authorization": f"Bearer {operator_token(api)}"}


@pytest.fixture
def device(api: Api, database_url: str, capsys: pytest.CaptureFixture[str]) -> Any:
    """Makes the header of an enrolled device."""
    claim = tokens(capsys, database_url, "create", "--claim")

    def enrol(name: str) -> dict[str, str]:
        answer = api.post("/devices", Enrolment(device_id=name), authorization=f"Bearer {claim}")
        return {"authorization": f"Bearer {answer.json()['token']}"}

    return enrol


def ask(api: Api, name: str, header: dict[str, str], **more: Any) -> Missing:
    """What a device should measure."""
    answer = api.post("/profiles/missing", missing_request(GRAPH, name, **more), **header)
    assert answer.status_code == 200, answer.text
    return Missing.model_validate_json(answer.content)


def send(api: Api, upload: Observations, header: dict[str, str]) -> Any:
    """Upload, and have it folded."""
    answer = api.post("/profiles", upload, **header)
    if answer.status_code == 202:
        api.await_(api.app.planner.profiles.fold, upload.soc, upload.frequency)
    return answer


def profile(api: Api) -> Profile:
    """The profile as it stands."""
    from planner_api.compression import unzstd

    return Profile.model_validate_json(unzstd(api.await_(api.app.planner.profiles.read, SOC, FREQUENCY)))


def test_the_first_reporter_decides_nothing(api: Api, device: Any, operator: dict[str, str]) -> None:
    """A lone figure is asked of others too, whatever it says a plan is made, and three honest devices outweigh it."""
    liar = device("liar")
    assert api.post("/models", GRAPH, **liar).status_code == 201
    everything = ask(api, "liar", liar)
    absurd = measure(everything, "liar", cost=lambda *_: 3.6e9).model_dump_json().replace("3600000000.0", "1e12")
    assert api.post("/profiles", absurd.encode(), **liar).status_code == 422, "the contract bounds a figure"
    assert send(api, measure(everything, "liar", cost=lambda *_: 3.6e9), liar).status_code == 202
    answer = api.post("/plans", plan_request(GRAPH), **liar)
    assert answer.status_code == 200, answer.text
    for number in range(3):
        name = f"honest-{number}"
        header = device(name)
        asked = ask(api, name, header)
        assert {row.signature for row in asked.latencies} == {row.signature for row in everything.latencies}
        assert send(api, measure(asked, name), header).status_code == 202
    assert max(us for us in profile(api).latencies.us if us is not None) == pytest.approx(25.0)
    assert ask(api, "liar", liar).latencies == (), "whoever said it is not asked again"


def test_revoking_a_device_takes_its_figures_back(api: Api, device: Any, operator: dict[str, str]) -> None:
    """What only it said is unknown again, what others said stays, and who said what can be seen."""
    one, two = device("one"), device("two")
    api.post("/models", GRAPH, **one)
    both = measure(ask(api, "one", one), "one")
    send(api, both, one)
    send(api, measure(ask(api, "two", two), "two", cost=lambda *_: 12.0), two)
    junk = {**both.model_dump(), "device_id": "two", "upload_id": "junk", "latencies": {
        "signature": ("junk",), "kind": (both.latencies.kind[0],), "us": (1.0,), "spread_us": (0.0,), "count": (1,),
    }}  # fmt: skip
    send(api, Observations(**{**junk, "processors": both.processors, "transfers": both.transfers}), two)
    assert "junk" in profile(api).latencies.signature
    where = {"soc": SOC, "frequency": FREQUENCY}
    page = api.client.get("/fleet/profiles/contributions", params=where, headers=operator).json()
    assert [(row["device_id"], row["alone"]) for row in page["contributions"]] == [("one", 0), ("two", 1)]
    said = api.client.get(
        "/fleet/profiles/votes", params={**where, "device_id": "two", "limit": 1000}, headers=operator
    )
    assert {"figure": ["junk", both.latencies.kind[0]], "device_id": "two", "us": 1.0} in said.json()["votes"]
    assert api.client.delete("/devices/two", headers=operator).status_code == 204
    left = profile(api)
    assert "junk" not in left.latencies.signature
    assert set(left.latencies.us) == set(both.latencies.us)
    assert api.client.delete("/fleet/profiles/contributions", params=where, headers=operator).status_code == 204
    assert profile(api).latencies.us == ()


def test_profiles_are_corrected_at_the_command_line(
    api: Api, device: Any, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a device said is forgotten by name and by revoking it; what a revoked one left behind, by making it anew."""
    headers = {name: device(name) for name in ("one", "two", "three", "four")}
    for name, header in headers.items():
        api.post("/models", GRAPH, **header)
        said = measure(ask(api, name, header), name)
        junk = LatencyColumns(signature=(name,), kind=(BIG,), us=(1.0,), spread_us=(0.0,), count=(1,))
        for sent in (said, said.model_copy(update={"latencies": junk, "upload_id": "junk"})):
            assert send(api, sent, header).status_code == 202
    shared = set(profile(api).latencies.signature) - headers.keys()

    def after(*arguments: str) -> set[str]:
        """Whose junk a command leaves."""
        assert cli.main([*arguments, "--database", database_url]) == 0
        return headers.keys() & set(profile(api).latencies.signature)

    assert after("profiles", "forget", SOC, FREQUENCY, "--device", "one") == {"two", "three", "four"}
    assert after("tokens", "revoke", "--device", "two") == {"three", "four"}
    with monkeypatch.context() as killed_halfway:
        killed_halfway.setattr(oversight, "forget_device", AsyncMock(return_value=0))
        assert after("tokens", "revoke", "--device", "three") == {"three", "four"}
    assert after("profiles", "rebuild", SOC, FREQUENCY) == {"four"}
    assert shared <= set(profile(api).latencies.signature), "what others said stays"
    assert after("profiles", "forget", SOC, FREQUENCY) == set()
    assert profile(api).latencies.us == ()


def test_an_upload_beyond_a_share_says_so(api: Api, device: Any, operator: dict[str, str]) -> None:
    """Junk beyond a device's share is left out, and its next receipt and the device's view say that and why."""
    liar = device("liar")
    api.post("/models", GRAPH, **liar)
    good = measure(ask(api, "liar", liar), "liar")
    rows = 500
    columns = {
        "signature": tuple(f"junk-{n}" for n in range(rows)), "kind": (good.processors[0].kind,) * rows,
        "us": (1.0,) * rows, "spread_us": (0.0,) * rows, "count": (1,) * rows,
    }  # fmt: skip
    junk = Observations(**{**dict(good), "upload_id": "junk", "latencies": type(good.latencies)(**columns)})
    assert send(api, junk, liar).json()["unused"] is None
    assert "quota figures" in send(api, junk, liar).json()["unused"], "sent again, it says what became of it"
    assert "quota figures" in api.client.get("/devices/liar", headers=liar).json()["unused"]
    honest = device("honest")
    assert send(api, measure(ask(api, "honest", honest), "honest"), honest).status_code == 202
    assert set(good.latencies.signature) <= set(profile(api).latencies.signature), "nobody else is shut out"


def test_quotas_are_named(api: Api, device: Any, operator: dict[str, str]) -> None:
    """Models, plan keys and SoCs beyond a device's quota: 429 or 403 with its name and when to return; others go on."""
    greedy = device("greedy")
    refused = [api.post("/models", chain(n), **greedy) for n in range(2, 7)]
    assert [answer.status_code for answer in refused] == [201, 201, 201, 429, 429]
    assert "quota models" in refused[-1].json()["detail"]
    assert 0 < int(refused[-1].headers["retry-after"]) <= 86400
    assert api.post("/models", GRAPH, **operator).status_code in (200, 201), "operators have none"
    for soc, status in (("a", 200), ("b", 200), ("a", 200), ("c", 403)):
        answer = api.post(
            "/profiles/missing", missing_request(GRAPH, "greedy").model_copy(update={"soc": soc}), **greedy
        )
        assert answer.status_code == status, answer.text
    assert "quota profiles" in answer.json()["detail"]
    send(api, measure(ask(api, "honest", device("honest")), "honest"), operator)
    keys: list[dict[str, Any]] = [{"processors": ("ort@0",)}, {"processors": ("ort@1",)}, {}, {"method": "greedy"}]
    answers = [api.post("/plans", plan_request(GRAPH, **key), **greedy).status_code for key in keys]
    assert answers == [200] * 4
    beyond = api.post("/plans", plan_request(GRAPH, processors=("ort@0", "ort@1")), **greedy)
    assert (beyond.status_code, "quota plan_keys" in beyond.text) == (429, True)
    assert api.post("/plans", plan_request(GRAPH), **greedy).status_code == 200, "what is known is served"
    assert 'hope_quota_refusals_total{quota="models"} 2.0' in api.client.get("/metrics").text


@pytest.mark.parametrize("quota", ["model_bytes", "upload_bytes", "queued_solves"])
def test_bytes_and_waiting_solves_have_quotas(database_url: str, quota: str) -> None:
    """Beyond each a device is told which one and when to return, which is counted, and another one goes on."""
    with serving(database_url) as anybody:
        said = anybody.learn(GRAPH)
    keys = (("ort@0",), ("ort@1",), ("ort@0", "ort@1"))

    def message(name: str, number: int) -> tuple[str, Any]:
        match quota:
            case "model_bytes":
                return "/models", chain(50 + number + 10 * len(name))
            case "upload_bytes":
                return "/profiles", said.model_copy(update={"device_id": name, "upload_id": f"again-{number}"})
        return "/plans", plan_request(GRAPH, processors=keys[number])

    uploads = int(2.5 * len(said.model_dump_json()))
    allowed = {"model_bytes_per_day": 5000, "upload_bytes_per_day": uploads, "queued_solves": 2}
    with serving(database_url, tokens_required=True, **allowed) as api:
        greedy, modest = enrolled(api, "greedy"), enrolled(api, "a")
        sent = [api.post(*message("greedy", number), **greedy) for number in range(3)]
        assert [answer.is_success for answer in sent] == [True, True, False], [answer.text for answer in sent]
        assert (sent[-1].status_code, f"quota {quota} " in sent[-1].json()["detail"]) == (429, True)
        assert 0 < int(sent[-1].headers["retry-after"]) <= 86400
        assert f'hope_quota_refusals_total{{quota="{quota}"}} 1.0' in api.client.get("/metrics").text
        assert api.post(*message("a", 2), **modest).is_success


def test_large_bodies_are_taken_in_by_turns(database_url: str) -> None:
    """A device that begins many and ends none is told to return, while another one's is taken in."""
    with serving(database_url, tokens_required=True) as api, ExitStack() as open_ones:
        token, other = enrolled(api, "greedy")["authorization"], enrolled(api, "modest")
        turns = api.app.planner.large_bodies
        turns._most = 3
        port = open_ones.enter_context(listening(api, build_config(api.app, "127.0.0.1", 0)))
        begun = raw("POST", "/models", content_length="400000", authorization=token) + b" " * (SMALL_BYTES + 1)
        answers = []
        for _ in range(turns._each + turns._most + 1):
            connection = open_ones.enter_context(socket.create_connection(("127.0.0.1", port), timeout=20))
            connection.sendall(begun)
            answers.append(connection)
        assert eventually(lambda: api.app.planner.quotas.refused["large_bodies"] == 1)
        ((told,), _, _) = ready.select(answers, [], [], 20)
        found = told.recv(4096)
        assert found.startswith(b"HTTP/1.1 429 ")
        assert b"retry-after: " in found
        assert b"quota large_bodies" in found
        body = GRAPH.model_dump_json().encode() + b" " * (SMALL_BYTES + 1)
        assert api.post("/models", body, **other).status_code == 201


def test_a_hundred_keys_wait_behind_anothers_first(api: Api, device: Any, operator: dict[str, str]) -> None:
    """A device's later keys have less priority than another device's first, those beside a solve too."""
    greedy, modest = device("greedy"), device("modest")
    api.post("/models", GRAPH, **greedy)
    send(api, measure(ask(api, "greedy", greedy), "greedy"), greedy)
    planner = api.app.planner

    async def begin() -> None:
        async with planner.database.write() as session:
            assert await take(session, "a worker", 60.0) is not None

    for processors in (("ort@0",), ("ort@1",), ("ort@0", "ort@1")):
        assert api.post("/plans", plan_request(GRAPH, processors=processors), **greedy).status_code == 200
        if processors == ("ort@0",):
            api.await_(begin)
    assert api.post("/plans", plan_request(GRAPH), **modest).status_code == 200

    async def queue() -> list[str | None]:
        async with api.app.planner.database.read() as session:
            query = select(PlanRow.asked_by).order_by(PlanRow.priority.desc(), PlanRow.queued_at)
            return list(await session.scalars(query))

    order = api.await_(queue)
    assert order == ["device:greedy", "device:modest", "device:greedy", "device:greedy"]


def test_first_plans_are_made_in_turns(api: Api, device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """While one device's first plan is being made its others wait, and another device's is made beside it."""
    greedy = device("greedy")
    api.post("/models", GRAPH, **greedy)
    send(api, measure(ask(api, "greedy", greedy), "greedy"), greedy)
    begun: list[tuple[str, ...] | None] = []
    over = threading.Event()
    solve = service._solve

    def slowly(graphs: Any, profile: Any, request: Any, budget_s: float) -> Any:
        begun.append(request.processors)
        assert over.wait(20)
        return solve(graphs, profile, request, budget_s)

    monkeypatch.setattr(service, "_solve", slowly)

    async def begun_are(count: int) -> None:
        async with asyncio.timeout(20):
            while len(begun) < count:
                await asyncio.sleep(0.01)
        await asyncio.sleep(0.1)  # for whoever should wait and does not
        assert len(begun) == count

    async def ask_for(name: str, processors: tuple[str, ...] | None) -> None:
        request, caller = plan_request(GRAPH, processors=processors), Principal("device", f"device:{name}", name)
        await api.app.planner.plans.plan(request, caller)

    async def main() -> None:
        async with asyncio.TaskGroup() as asking:
            for processors in (("ort@0",), ("ort@1",), ("ort@0", "ort@1")):
                asking.create_task(ask_for("greedy", processors))
            await begun_are(1)
            asking.create_task(ask_for("modest", None))
            await begun_are(2)
            over.set()

    api.await_(main)
    assert (len(begun), begun[1]) == (4, None)


def test_replicas_count_a_devices_keys_together(api: Api, device: Any) -> None:
    """Of two keys that a device asks two replicas for at the same moment, one has less priority."""
    greedy = device("greedy")
    assert api.post("/models", GRAPH, **greedy).status_code == 201
    planner = api.app.planner
    making = planner.making

    async def ask(plan_id: str) -> int:
        async with planner.database.write() as session:
            waiting = await making.waiting(session, Principal("device", "device:greedy", "greedy"))
            await asyncio.sleep(0.05)
            asked_at = datetime.now(UTC)
            await repository.insert(session, plan_id, plan_request(GRAPH), asked_at, asked_by="device:greedy")
            await making.improve(session, plan_id, waiting, fresh=True)
        return int(waiting)

    async def both() -> list[int]:
        return sorted(await asyncio.gather(ask("p-1"), ask("p-2")))

    assert api.await_(both) == [0, 1]


def test_socs_count_by_agreement(api: Api, device: Any, operator: dict[str, str]) -> None:
    """A release plans for a SoC once three devices uploaded for it, or an operator vouched for it."""
    api.post("/models", GRAPH, **operator)

    def total() -> int:
        return int(api.client.post(f"/models/{GRAPH.model_hash}/plans", headers=operator).json()["total"])

    for number in range(3):
        assert total() == 0
        name = f"device-{number}"
        header = device(name)
        send(api, measure(ask(api, name, header), name), header)
    assert total() == 1
    assert api.client.put("/fleet/socs/made-up", headers=operator).status_code == 204


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


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 5)), min_size=1, max_size=40), st.integers(1, 3))
@settings(max_examples=40)
def test_turns_are_taken(jobs: list[tuple[int, int]], slots: int) -> None:
    """Never more at work than allowed, never two of one owner, and all come to their turn."""

    async def main() -> None:
        turns = Turns("things", slots=slots, each=1, waiting=100, refused=Counter())
        running: list[int] = []
        started: list[int] = []

        async def job(owner: int, rounds: int) -> None:
            async with turns.turn(owner):
                assert owner not in running
                running.append(owner)
                started.append(owner)
                assert len(running) <= slots
                for _ in range(rounds):
                    await asyncio.sleep(0)
                running.remove(owner)

        await asyncio.gather(*(job(owner, rounds) for owner, rounds in jobs))
        assert len(started) == len(jobs)
        assert not turns._waiting
        assert not turns._at_work

    asyncio.run(main())


def test_too_many_that_wait_are_refused() -> None:
    """Beyond its line an owner is told to return, which is counted, while another still gets its turn."""
    refused: Counter[str] = Counter()

    async def main() -> None:
        turns = Turns("things", slots=1, each=1, waiting=2, refused=refused)
        async with turns.turn("a"):
            waiting = [asyncio.create_task(_hold(turns, "a")) for _ in range(2)]
            await asyncio.sleep(0)
            with pytest.raises(TooOftenError, match="quota things"):
                await _hold(turns, "a")
            assert refused == {"things": 1}
            other = asyncio.create_task(_hold(turns, "b"))
            await asyncio.sleep(0)
        await asyncio.gather(*waiting, other)

    asyncio.run(main())


async def _hold(turns: Turns, owner: str) -> None:
    async with turns.turn(owner):
        await asyncio.sleep(0)
