"""What the pages do: names that mean harm are shown as what they are, actions are done once and written down."""

from __future__ import annotations

import asyncio
import gc
import re
import unicodedata
from collections import Counter
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser
from typing import Any
from unittest.mock import AsyncMock

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import insert, select, update
from structlog.testing import capture_logs

from agent_sdk.planner.identity import versions
from agent_sdk.runtimes.base import PACKAGES
from hope_schema import Cause, DeviceDescription, DeviceReport, Job, MeasuredRun
from planner_api.compression import zstd
from planner_api.console import overview
from planner_api.console.address import HOME
from planner_api.console.rendering import clip, command, percent, prose, visible
from planner_api.db.tables import (
    AuditRow,
    DeviceRow,
    JobRow,
    PlanJobRow,
    PlanRow,
    PlanVersionRow,
    SocRow,
    TokenRow,
    WorkerRow,
)
from planner_api.errors import DatabaseAwayError
from planner_api.jobs.workers import looked
from tests.planner.console.test_charts import plan_of
from tests.planner.console.visits import HERE, audited, send
from tests.planner.jobs_help import improve
from tests.planner.samples import FREQUENCY, SOC, Api, chain, eventually, plan_request, serving
from tests.planner.test_hosts import EDGE, LINKS, learn_server

EVIL = "\"'><script>alert(1)</script><img src=x onerror=alert(2)>&amp;{{7*7}}"
HIDDEN = "\u202e\u200b\x9b"
"""Turns the writing direction, is not seen, controls a terminal."""
GRAPH = chain(3, EVIL + HIDDEN)


pytestmark = pytest.mark.planner(rate_per_address=0)


class Elements(HTMLParser):
    """Every element of a page with its attributes, and where scripts come from."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.attributes: list[tuple[str, str]] = []
        self.scripts: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Collect."""
        self.attributes += [(tag, name) for name, _ in attrs]
        if tag == "script":
            self.scripts.append(dict(attrs).get("src") or "inline")


def test_a_plan_over_hosts_shows_them_and_how_the_links_are(api: Api) -> None:
    """The plan's page names its hosts, what runs there and what crosses each link; a device's names whom it uses."""
    graph = chain()
    api.learn(graph)
    learn_server(api)
    links = tuple(link.model_copy(update={"us_per_byte": 0.001, "float16_us_per_byte": 1e-6}) for link in LINKS)
    reply = api.plan(graph, hosts=(EDGE,), links=links)
    crossing = [move for move in reply.plan.transfers if (move.source, move.target) == ("host", "edge:host")]
    speed = round(8 / reply.plan.links[0].us_per_byte, 1)
    page = api.client.get(f"{HOME}/plans/{reply.plan_id}").text
    section = re.sub(r"<[^>]*>|\s+", " ", page.partition('id="hosts"')[2].partition('id="steps"')[0])
    there = sum(step.processor.startswith("edge:") for step in reply.plan.steps)
    assert re.search(rf"edge +server +at +{FREQUENCY} +\d+ +{there} ", section)
    assert all(move.dtype for move in crossing)
    assert re.search(rf"device +edge +radio +\S+ µs +{speed} +{len(crossing)} +{len(crossing)} ", section)
    run = MeasuredRun(plan_id=reply.plan_id, plan_version=reply.version, measured_us=5.0, runs=3)
    api.put("/devices/device-1/report", DeviceReport(soc=SOC, frequency=FREQUENCY, measured=(run,)))
    assert "with <bdi>edge</bdi>" in api.client.get(f"{HOME}/devices/device-1").text


def test_every_run_of_a_joint_plan_is_called_after_its_network(api: Api) -> None:
    """Where networks run again and again a plan has more runs than networks; its pages name each run's own."""
    graphs = {"often": chain(2, "often"), "seldom": chain(3, "seldom")}
    for graph in graphs.values():
        api.learn(graph)
    jobs = (
        Job(model_hash=graphs["often"].model_hash, period_us=1000.0),
        Job(model_hash=graphs["seldom"].model_hash, period_us=3000.0),
    )
    reply = api.plan(graphs["often"], jobs=jobs)
    improve(api, reply.plan_id)
    told = Counter(
        re.findall(r"<td><bdi>(often|seldom)</bdi></td>", api.client.get(f"{HOME}/plans/{reply.plan_id}").text)
    )
    of_hash = {graph.model_hash: name for name, graph in graphs.items()}
    assert told == Counter(of_hash[reply.plan.jobs[step.job].model_hash] for step in reply.plan.steps)
    assert told == {"often": 3 * 2, "seldom": 3}
    compared = api.client.get(f"{HOME}/compare?left={reply.plan_id}@1&right={reply.plan_id}@2")
    assert compared.status_code == 200


def test_the_agents_version_is_what_agents_report(api: Api) -> None:
    """The list of devices shows the version under the name by which an agent reports itself."""
    [agent] = versions().keys() - set(PACKAGES)
    report = DeviceReport(soc=SOC, frequency=FREQUENCY, versions={**versions(), agent: "9.8.7"})
    api.put("/devices/device-1/report", report)
    assert "9.8.7" in api.client.get(f"{HOME}/devices").text


@pytest.mark.above_databases
def test_a_comparison_counts_moves_as_the_api_does(api: Api) -> None:
    """An op that runs where it ran has not moved, whatever step it is part of now."""
    graph = chain()
    api.learn(graph)
    first = api.plan(graph)
    plan_id = first.plan_id
    improve(api, plan_id)
    apart, whole = plan_of([(0, 1.0, Cause.FASTER)] * 2), plan_of([(0, 2.0, Cause.FASTER)])
    together = whole.model_copy(update={"steps": (whole.steps[0].model_copy(update={"ops": ("op0", "op1")}),)})

    async def store() -> None:
        async with api.app.planner.database.write() as session:
            for version, plan in ((1, apart), (2, together)):
                body = zstd(first.model_copy(update={"version": version, "plan": plan}).model_dump_json().encode())
                this = update(PlanVersionRow).where(PlanVersionRow.version == version)
                await session.execute(this.values(body_zstd=body))

    api.await_(store)
    diff = api.client.get(f"/plans/{plan_id}/diff").json()
    assert (diff["moved"], diff["unmoved"]) == ([], 1)
    page = api.client.get(f"{HOME}/compare?left={plan_id}@1&right={plan_id}@2")
    assert "0 of 1 step run elsewhere" in page.text


def test_a_hostile_name_is_text_wherever_it_stands(api: Api) -> None:
    """Models, ops, devices, notes, errors and what was searched for: no element comes of them, nothing hides."""
    api.learn(GRAPH)
    plan_id = api.plan(GRAPH).plan_id
    api.put("/devices/device-1/report", DeviceReport(soc=SOC, frequency=FREQUENCY))
    api.put("/devices/device-1/description", DeviceDescription(name=EVIL))
    assert send(api, "/tokens", kind="viewer", label=EVIL, days="30").status_code == 200

    async def say() -> None:
        async with api.app.planner.database.write() as session:
            await session.execute(update(PlanRow).values(error=EVIL + HIDDEN))
            await session.execute(update(JobRow).values(error=EVIL + HIDDEN, asked_by=EVIL))
            await session.execute(update(DeviceRow).values(soc=EVIL))

    api.await_(say)
    shown = 0
    query = "?search=" + "%22%3E%3Cscript%3Ealert(3)%3C/script%3E"
    for path in (
        "", "/plans", f"/plans/{plan_id}", f"/compare?left={plan_id}@1&right={plan_id}@1", "/models", "/tokens",
        f"/models/{GRAPH.model_hash}", "/devices", f"/devices{query}", "/queue", "/audit", "/releases", "/groups",
        f"/profiles/{SOC}/{FREQUENCY}?op=%3Cscript%3E", "/profiles", f"/login?to=%2Fconsole%2F{query}", "/nothing<b>",
    ):  # fmt: skip
        answer = api.client.get(HOME + path)
        assert answer.status_code in (200, 303, 404), path
        found = Elements(answer.text)
        assert all(source.startswith("/console/static/") for source in found.scripts), path
        assert not [name for _, name in found.attributes if name.startswith("on") or name == "style"], path
        assert "alert(1)</script" not in answer.text, path
        assert not set(HIDDEN) & set(answer.text), path
        shown += "&lt;script&gt;alert(1)" in answer.text
    assert shown >= 6


def test_no_address_breaks_a_page(api: Api) -> None:
    """Addresses nobody links to are answered with a page that says so."""
    for path in (
        "/devices?search=" + "x" * 10_000,
        "/devices?search=%00",
        "/devices?after=" + "x" * 200,
        "/plans?soc=%0a",
        "/plans?model=zz",
        "/plans?status=x",
        "/plans/" + "x" * 300,
        "/profiles/%00/%00",
        "/profiles/nothing",
        "/compare?left=a&right=b",
        "/compare",
        "/models?offset=-1",
        "/models/zz",
        "/names/%3Cb%3E",
        "/releases/r-1",
        "/audit?before=" + "9" * 40,
        "/queue?what=is",
        "/static/../app.py",
    ):
        answer = api.client.get(HOME + path)
        assert answer.status_code in (404, 422), path
        assert 'role="alert"' in answer.text, path


def test_a_new_planner_says_what_to_do_first(api: Api, database_url: str) -> None:
    """Without a device and a model the first page has the commands, with this planner's address; then the fleet."""
    assert str(command(f"hope-agent run net.onnx --planner {HERE}")) in api.client.get(f"{HOME}/plans").text
    assert "First steps" in api.client.get(HOME).text
    assert api.post("/models", GRAPH).status_code == 201
    with serving(database_url) as later:
        assert "First steps" not in later.client.get(HOME).text


def test_an_empty_fleet_says_so_in_words(api: Api) -> None:
    """Where nothing was asked for or measured yet, the first page's tiles say that and hold no dash."""
    tiles = re.findall(r"<dt>([^<]*)</dt><dd[^>]*>(.*?)</dd>", api.client.get(HOME).text)
    assert {"Served from cache": "None yet", "Median drift": "None yet"}.items() <= dict(tiles).items()
    assert not [name for name, shown in tiles if "–" in shown]


def test_a_soc_that_too_few_agree_on_is_told_apart(api: Api, database_url: str) -> None:
    """The first page counts it beside those that count, and the list says what makes it count."""
    api.learn(GRAPH)
    api.plan(GRAPH)

    def counts() -> tuple[int, int]:
        fleet = api.client.get("/fleet").json()
        return fleet["socs"], fleet["socs_unconfirmed"]

    async def doubt() -> None:
        async with api.app.planner.database.write() as session:
            await session.execute(update(SocRow).values(established_at=None))

    assert counts() == (1, 0)
    assert "once 3 devices" not in api.client.get(f"{HOME}/profiles").text
    api.await_(doubt)
    assert counts() == (0, 1)
    with serving(database_url) as later:
        first = later.client.get(HOME).text
        assert "1 more unconfirmed" in first
        assert "unconfirmed SoCs</a> are not among them" in first
        assert "Covered: the share of all pairs of confirmed SoC" in later.client.get(f"{HOME}/models").text
    page = api.client.get(f"{HOME}/profiles").text
    assert "once 3 devices uploaded for it" in page
    assert str(command("hope-planner profiles establish SOC")) in page


def test_the_queue_says_when_nobody_solves(database_url: str) -> None:
    """Without a worker, and with none that looked of late, it says so and how to start one; with one it does not."""
    with serving(database_url, works=()) as api:

        def page() -> str:
            return str(api.client.get(f"{HOME}/queue").text)

        def looked_at(moment: datetime) -> None:
            async def change() -> None:
                async with api.app.planner.database.write() as session:
                    await looked(session, "worker-1", 1)
                    await session.execute(update(WorkerRow).values(looked_at=moment))

            api.await_(change)

        now = datetime.now(UTC)
        assert "Nobody solves: no worker looks for work." in page()
        looked_at(now + timedelta(minutes=1))
        assert "Nobody solves" not in page()
        looked_at(now - timedelta(hours=1))
        assert "the last one did" in page()
        assert "hope-planner worker" in page()


@pytest.mark.above_databases
def test_a_page_that_failed_does_not_lead_to_itself(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    """The way on is another page; where the address alone was wrong, the section is offered too."""
    assert "To the page Plans" in api.client.get(f"{HOME}/plans/p-none").text
    monkeypatch.setattr("planner_api.views.service.plans", AsyncMock(side_effect=RuntimeError))
    answer = api.client.get(f"{HOME}/plans")
    assert answer.status_code == 500
    assert "To the page Plans" not in answer.text
    assert "To the fleet" in answer.text


@pytest.mark.above_databases
def test_what_is_not_there_is_said_with_what_to_type(api: Api) -> None:
    """The page of an error has a command for people, whole, and no word of HTTP."""
    for path, typed in (
        ("/plans/p-none", "hope-planner plans list"),
        ("/models/" + "0" * 64, "hope-planner fleet models"),
        ("/profiles/none/max", "hope-planner profiles list"),
        ("/releases/r-" + "0" * 24, "hope-planner releases list"),
        ("/names/nobody", "hope-planner models add nobody HASH"),
        ("/devices/nobody", "hope-planner devices list"),
        ("/groups?change=nobody", "hope-planner groups set nobody"),
    ):
        page = api.client.get(HOME + path).text
        alert = page.partition('role="alert">')[2].partition("</p>")[0]
        assert str(command(typed)) in alert, path
        assert not re.search(r"GET |POST |PUT |`", alert), path


@pytest.mark.above_databases
def test_a_failed_plan_leads_to_the_figures_it_was_to_rest_on(api: Api) -> None:
    """Where its profile is there, its page links to it; where nothing was measured, it says that."""
    api.learn(GRAPH)
    api.plan(GRAPH)

    async def fail(soc: str) -> None:
        values = {
            "id": f"p-{soc}", "model_hash": GRAPH.model_hash, "jobs": [{"model_hash": GRAPH.model_hash}], "soc": soc,
            "frequency": FREQUENCY, "method": "auto", "objective": "makespan", "error": "no way",
            "created_at": datetime.now(UTC),
        }  # fmt: skip
        async with api.app.planner.database.write() as session:
            await session.execute(insert(PlanRow).values(**values))
            serves = {"plan_id": values["id"], "position": 0, "model_hash": values["model_hash"]}
            await session.execute(insert(PlanJobRow).values(**serves))

    for soc in (SOC, "unmeasured"):
        api.await_(fail, soc)
    link = f'href="/console/profiles/{SOC}/{FREQUENCY}?model={GRAPH.model_hash}"'
    assert link in api.client.get(f"{HOME}/plans/p-{SOC}").text
    assert api.client.get(f"{HOME}/profiles/{SOC}/{FREQUENCY}?model={GRAPH.model_hash}").status_code == 200
    assert "Nothing was measured" in api.client.get(f"{HOME}/plans/p-unmeasured").text


@given(st.text())
def test_a_sentence_with_commands_is_no_markup(text: str) -> None:
    """Whatever stands in a sentence, between backticks or not, every element that comes of it is our own."""
    assert set(re.findall(r"<(\w+)", str(prose(text)))) <= {"bdi", "code", "span"}
    assert not re.search(r"[\x00-\x08\x1b\u202e]", str(prose(text)))


def test_tokens_are_made_shown_once_and_revoked(api: Api) -> None:
    """A new token stands on the page that made it and on no other; a claim counts its uses; all is written down."""
    made = send(api, "/tokens", kind="admin", label="night shift", days="1")
    [token] = re.findall(r"hope_a_[A-Za-z0-9_\-]{43}", made.text)
    assert token not in api.client.get(f"{HOME}/tokens").text
    bearer = {"authorization": f"Bearer {token}"}
    assert api.client.get("/fleet", headers=bearer).status_code == 200
    claim = send(api, "/tokens", kind="claim", label="", days="", uses="5")
    assert "hope_c_" in claim.text

    async def number() -> int:
        async with api.app.planner.database.read() as session:
            found = await session.scalar(select(TokenRow.id).where(TokenRow.label == "night shift"))
        assert found is not None
        return found

    made_as = api.await_(number)
    path = f"/tokens/{made_as}"
    assert send(api, path).status_code == 303
    assert send(api, path).status_code == 404
    assert eventually(lambda: bool(api.client.get("/fleet", headers=bearer).status_code == 401))
    assert send(api, "/tokens/claims/1").status_code == 303
    assert audited(api) == ["token.create", "claim.create", "token.revoke", "claim.revoke"]
    assert audited(api, AuditRow.subject) == [f"token:{made_as}", "claim:1", f"token:{made_as}", "claim:1"]


def test_no_token_is_made_of_nonsense(api: Api) -> None:
    """A form nobody was shown makes nothing and says what to look at."""
    forms: tuple[dict[str, str], ...] = (
        {"kind": "device", "days": ""},
        {"kind": "viewer", "days": "7"},
        {"kind": "viewer", "days": "", "label": "x" * 129},
        {"kind": "viewer", "days": "", "label": "a\x1b[2Jb"},
        {"kind": "claim", "days": "", "uses": "0"},
        {"kind": "claim", "days": "", "uses": "٣"},
        {"kind": "claim", "days": "", "uses": "9" * 30},
        {"label": ""},
    )
    for fields in forms:
        assert send(api, "/tokens", **fields).status_code == 422, fields
    assert audited(api) == []


def test_a_form_is_not_larger_than_a_form(api: Api) -> None:
    """More than 8 KiB is refused unread."""
    assert send(api, "/tokens", kind="viewer", label="x" * 10_000).status_code == 413


def test_a_device_is_found_by_a_part_of_its_name_and_taken_out(api: Api) -> None:
    """Pages of fifty in either direction, found by any part of an id or a name; revoking is written down."""

    async def enrol() -> None:
        async with api.app.planner.database.write() as session:
            rows = [{"id": f"phone-{number:03}", "enrolled_at": datetime.now(UTC)} for number in range(120)]
            await session.execute(insert(DeviceRow), rows)

    api.await_(enrol)
    api.put("/devices/phone-077/description", DeviceDescription(name="Amélie's 100 % phone"))
    seen: list[str] = []
    path = f"{HOME}/devices"
    for _ in range(3):
        page = api.client.get(path).text
        seen += re.findall(r'/console/devices/(phone-\d+)"', page)
        further = re.search(r'href="\?([^"]*)" rel="next"', page)
        back = re.search(r'href="\?([^"]*)" rel="prev"', page)
        path = f"{HOME}/devices?{further[1].replace('&amp;', '&')}" if further else ""
    assert seen == [f"phone-{number:03}" for number in range(120)]
    assert not path
    assert back is not None
    page = api.client.get(f"{HOME}/devices?{back[1].replace('&amp;', '&')}").text
    assert re.findall(r'/console/devices/(phone-\d+)"', page) == seen[50:100]
    for search, expected in (("one-07", 10), ("Amélie", 1), ("100 %", 1), ("%", 1), ("_", 0), ("nobody", 0)):
        page = api.client.get(f"{HOME}/devices", params={"search": search}).text
        assert len(re.findall(r'/console/devices/(phone-\d+)"', page)) == expected, search
    assert send(api, "/devices/phone-077").status_code == 303
    assert "revoked" in api.client.get(f"{HOME}/devices/phone-077").text
    assert send(api, "/devices/nobody").status_code == 404
    assert audited(api) == ["device.describe", "device.revoke"]


def test_groups_are_made_changed_used_and_dropped(api: Api) -> None:
    """A form makes a group and, filled in, changes it; its devices are listed; nonsense makes none."""
    for number in range(3):
        api.put(f"/devices/phone-{number}/report", DeviceReport(soc=f"soc-{number}", frequency=FREQUENCY))
    api.put("/devices/phone-1/description", DeviceDescription(labels={"channel": "beta"}))
    assert send(api, "/groups", name="early", socs="soc-0, soc-1", labels="", share="100").status_code == 303
    assert send(api, "/groups", name="early", socs="soc-1", labels="channel=beta", share="50").status_code == 303
    form = api.client.get(f"{HOME}/groups?change=early").text
    assert all(f'value="{value}"' in form for value in ("early", "soc-1", "channel=beta", "50"))
    assert send(api, "/groups", name="all", share="100").status_code == 303
    page = api.client.get(f"{HOME}/devices?group=all&soc=soc-2").text
    assert re.findall(r'/console/devices/(phone-\d)"', page) == ["phone-2"]
    nonsense: tuple[dict[str, str], ...] = (
        {"name": ""}, {"name": EVIL}, {"name": "x" * 101}, {"socs": EVIL}, {"labels": "alone"}, {"share": "0"},
        {"share": "half"}, {"share": "nan"}, {"labels": f"a={EVIL}"},
    )  # fmt: skip
    for fields in nonsense:
        assert send(api, "/groups", **{"name": "other", "share": "100", **fields}).status_code == 422
    assert send(api, "/groups/early/drop").status_code == 303
    assert send(api, "/groups/early/drop").status_code == 404
    assert api.client.get(f"{HOME}/devices?group=early").status_code == 404
    assert audited(api) == ["device.describe", "group.store", "group.store", "group.store", "group.drop"]


def test_a_model_is_planned_everywhere_and_released_from_its_page(api: Api) -> None:
    """The forms do what the routes do, and what cannot be done is said on a page."""
    api.learn(GRAPH)
    api.post("/plans", plan_request(GRAPH))
    path = f"/models/{GRAPH.model_hash}"
    assert send(api, f"{path}/plans").headers["location"] == f"{HOME}/queue"
    assert send(api, f"{path}/rollout", rollout="held").status_code == 303
    assert "when an admin releases them" in api.client.get(HOME + path).text
    assert send(api, f"{path}/rollout", rollout="never").status_code == 422
    nothing = send(api, "/releases", model=GRAPH.model_hash, hold_h="0.5")
    assert (nothing.status_code, "its newest versions already" in nothing.text) == (409, True)
    assert send(api, "/releases", model="<b>", hold_h="1").status_code == 422
    assert send(api, "/releases", model=GRAPH.model_hash, hold_h="soon").status_code == 422
    assert send(api, "/releases", model="nobody:1", hold_h="1").status_code == 404
    for action in ("pause", "resume", "approve", "rollback"):
        assert send(api, f"/releases/r-{'0' * 24}/{action}").status_code == 404
    assert send(api, f"/releases/r-{'0' * 24}/delete").status_code == 422
    for unknown in ("f" * 64, "0" * 64):
        assert send(api, f"/models/{unknown}/plans").status_code == 404


@given(st.text())
def test_nothing_hides_in_what_is_shown(text: str) -> None:
    """Control characters and those that turn or hide text become visible; everything else stays as it is."""
    found = visible(text)
    assert len(found) == len(text)
    for before, after in zip(text, found, strict=True):
        assert after in (before, "\ufffd")
        hidden = unicodedata.category(before) == "Cc" and before not in "\t\n\r"
        turning = unicodedata.bidirectional(before) in ("LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI")
        if hidden or turning:
            assert after == "\ufffd"
    assert "<" not in str(clip(text, 20)).replace("<bdi", "").replace("</bdi>", "")


def test_figures_are_written_for_people() -> None:
    """Few digits, a real minus, and a sign where a change is meant."""
    assert [percent(value) for value in (0.0, 0.031, 0.5, 1.0)] == ["0 %", "3.1 %", "50 %", "100 %"]
    assert [percent(value, sign=True) for value in (-0.25, 0.25, 0.0, -0.0001)] == ["−25 %", "+25 %", "0 %", "0 %"]


def test_the_first_view_is_counted_once_for_everybody(api: Api) -> None:
    """While one counting is fresh, nobody counts again."""
    overviews = api.app.planner.overviews

    async def both() -> tuple[Any, Any]:
        return await overviews.get(), await overviews.get()

    first, second = api.await_(both)
    assert first is second


@pytest.mark.above_databases
def test_a_recount_that_fails_is_logged_and_the_old_view_shown(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for it, so nobody else would say that it failed; the next view counts anew."""
    overviews, unheard = api.app.planner.overviews, list[Any]()
    failures = [DatabaseAwayError("gone"), ValueError("wrong")]

    async def failing(_database: Any) -> Any:
        raise failures.pop(0)

    async def look() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _loop, context: unheard.append(context))
        old = await overviews.get()
        monkeypatch.setattr(overview, "FRESH_S", 0.0)
        monkeypatch.setattr(overview, "count", failing)
        while failures:
            assert await overviews.get() is old
            await asyncio.wait([overviews._counting])
        overviews._counting = None
        gc.collect()

    with capture_logs() as said:
        api.await_(look)
    assert [line["event"] for line in said] == ["overview_lost_database", "overview_failed"]
    assert unheard == []
