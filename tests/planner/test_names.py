"""Names of models and devices, groups, and the audit log that tells of every change to them."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import insert, text, update
from sqlalchemy.exc import DBAPIError

from hope_schema import (
    AliasTarget,
    AuditPage,
    Device,
    DeviceDescription,
    DevicePage,
    DeviceReport,
    Group,
    GroupSelector,
    Labelled,
    ModelVersion,
    ModelVersionPage,
    NamedModelPage,
    NewClaim,
    NewModelVersion,
)
from planner_api.db.tables import AuditRow, DeviceRow, GroupRow
from planner_api.devices import audit
from planner_api.devices import groups as grouping
from planner_api.devices.groups import position, takes
from planner_api.web.principal import Actor
from tests.planner.samples import FREQUENCY, JSON, SOC, Api, admin_token, chain, issue, serving

FIRST, SECOND = chain(3, "first"), chain(4, "second")


@pytest.fixture
def api(api: Api) -> Api:
    """A planner that knows two graphs."""
    for graph in (FIRST, SECOND):
        assert api.post("/models", graph).status_code == 201
    return api


def version(api: Api, graph: Any, name: str = "classifier") -> ModelVersion:
    """Make a graph the next version of a name."""
    answer = api.post(f"/names/{name}/versions", NewModelVersion(model_hash=graph.model_hash, labels={"by": "test"}))
    assert answer.status_code == 201, answer.text
    return ModelVersion.model_validate_json(answer.content)


def entries(api: Api, query: str = "") -> list[tuple[str, str]]:
    """What the audit log says was done to what, oldest first."""
    found = AuditPage.model_validate_json(api.client.get(f"/audit{query}").content).entries
    return [(entry.action, entry.subject) for entry in reversed(found)]


def test_a_reference_means_one_version(api: Api) -> None:
    """A name means its newest version, a number that one, an alias the one it points to; labels can be replaced."""
    assert [version(api, graph).version for graph in (FIRST, SECOND)] == [1, 2]
    pointed = api.put("/names/classifier/aliases/production", AliasTarget(version=1))
    assert ModelVersion.model_validate_json(pointed.content).aliases == ("production",)
    for reference, graph in (("", SECOND), (":1", FIRST), (":2", SECOND), ("@production", FIRST)):
        answer = api.client.get(f"/references/classifier{reference}")
        assert ModelVersion.model_validate_json(answer.content).model_hash == graph.model_hash, reference
    api.put("/names/classifier/aliases/production", AliasTarget(version=2))
    assert api.client.get("/references/classifier@production").json()["version"] == 2
    labelled = api.put("/names/classifier/versions/1/labels", Labelled(labels={"stage": "old"}))
    assert labelled.json()["labels"] == {"stage": "old"}
    (listed,) = NamedModelPage.model_validate_json(api.client.get("/names").content).names
    assert (listed.name, listed.newest, listed.aliases) == ("classifier", 2, {"production": 2})
    page = ModelVersionPage.model_validate_json(api.client.get("/names/classifier/versions?limit=1").content)
    assert ([each.version for each in page.versions], page.next) == ([2], 2)
    rest = ModelVersionPage.model_validate_json(api.client.get("/names/classifier/versions?before=2").content)
    assert ([each.version for each in rest.versions], rest.next) == ([1], None)
    assert api.client.delete("/names/classifier/aliases/production").status_code == 204
    assert api.client.get("/references/classifier@production").status_code == 404
    assert entries(api) == [
        ("name.version", "classifier:1"),
        ("name.version", "classifier:2"),
        ("alias.point", "classifier@production"),
        ("alias.point", "classifier@production"),
        ("name.label", "classifier:1"),
        ("alias.drop", "classifier@production"),
    ]


def test_what_is_not_there_is_said_by_name(api: Api) -> None:
    """Unknown models, names, versions and aliases are 404 of their own kind, and leave no trace."""
    version(api, FIRST)
    unknown = NewModelVersion(model_hash="0" * 64)
    cases = [
        (api.post("/names/other/versions", unknown), "model-unknown"),
        (api.client.get("/names/other/versions"), "name-unknown"),
        (api.client.get("/references/other"), "name-unknown"),
        (api.client.get("/references/classifier:2"), "version-unknown"),
        (api.client.get("/references/classifier:99999999999999999999"), "version-unknown"),
        (api.client.get("/references/classifier@beta"), "alias-unknown"),
        (api.put("/names/classifier/aliases/beta", AliasTarget(version=2)), "version-unknown"),
        (api.put("/names/other/versions/1/labels", Labelled(labels={})), "version-unknown"),
        (api.client.delete("/names/classifier/aliases/beta"), "alias-unknown"),
        (api.client.get("/groups/none"), "group-unknown"),
        (api.client.delete("/groups/none"), "group-unknown"),
        (api.put("/devices/nobody/description", DeviceDescription()), "device-unknown"),
    ]
    for answer, kind in cases:
        assert (answer.status_code, answer.json()["type"]) == (404, f"urn:hope:{kind}")
    assert entries(api) == [("name.version", "classifier:1")]


@pytest.mark.parametrize("name", ["<script>alert(1)</script>", "a\x00b", "x" * 10_240, "a:b", "a@b", "../../etc", " "])
def test_hostile_names_are_refused(api: Api, name: str) -> None:
    """HTML, control characters, ten kilobytes and what divides references: refused in one line, nothing is stored."""
    body = NewModelVersion(model_hash=FIRST.model_hash)
    answer = api.client.post(
        api.client.base_url.copy_with(raw_path=b"/names/" + _quoted(name) + b"/versions"),
        content=body.model_dump_json(),
        headers=JSON,
    )
    assert answer.status_code in (404, 422)
    assert answer.headers["content-type"] == "application/problem+json"
    assert api.client.get("/names").json()["names"] == []
    assert entries(api) == []


def _quoted(name: str) -> bytes:
    return b"".join(b"%%%02X" % byte for byte in name.encode())


def test_racing_admins_never_share_a_number(api: Api) -> None:
    """Eight versions added at once are numbered 1 to 8."""
    with ThreadPoolExecutor(8) as pool:
        numbers = [each.version for each in pool.map(lambda _: version(api, FIRST), range(8))]
    assert sorted(numbers) == list(range(1, 9))
    assert len(entries(api)) == 8


def test_devices_have_names_and_labels(api: Api) -> None:
    """An admin names a device, in any script, which its reports do not undo; control characters are refused."""
    report = DeviceReport(soc=SOC, frequency=FREQUENCY)
    assert api.put("/devices/d%2F1/report", report).status_code == 204
    described = DeviceDescription(name="Anna's ☎ <b>phone</b>", labels={"channel": "beta"})
    assert api.put("/devices/d%2F1/description", described).status_code == 200
    assert api.put("/devices/d%2F1/report", report).status_code == 204
    found = Device.model_validate_json(api.client.get("/devices/d%2F1").content)
    assert (found.name, found.labels) == (described.name, {"channel": "beta"})
    for bad in (b'{"name": "a\\u0000b"}', b'{"name": "' + b"x" * 10_240 + b'"}', b'{"labels": {"<b>": "x"}}'):
        assert api.client.put("/devices/d%2F1/description", content=bad, headers=JSON).status_code == 422
    assert entries(api) == [("device.describe", "d/1")]


def test_groups_choose_by_soc_and_label(api: Api) -> None:
    """A group counts the devices of its SoCs that carry all of its labels, whatever the database."""
    for number, soc in enumerate(("soc-a", "soc-a", "soc-b")):
        api.put(f"/devices/d{number}/report", DeviceReport(soc=soc, frequency=FREQUENCY))
    api.put("/devices/d0/description", DeviceDescription(labels={"channel.name": "beta", "x": "1"}))
    api.put("/devices/d2/description", DeviceDescription(labels={"channel.name": "beta"}))
    for selector, count in (
        (GroupSelector(), 3),
        (GroupSelector(socs=("soc-a",)), 2),
        (GroupSelector(labels={"channel.name": "beta"}), 2),
        (GroupSelector(socs=("soc-a", "soc-c"), labels={"channel.name": "beta", "x": "1"}), 1),
        (GroupSelector(labels={"channel.name": "stable"}), 0),
    ):
        assert Group.model_validate_json(api.put("/groups/some", selector).content).devices == count
    assert [each["name"] for each in api.client.get("/groups").json()["groups"]] == ["some"]
    assert api.client.delete("/groups/some").status_code == 204
    assert api.client.get("/groups").json()["groups"] == []


def test_a_group_that_cannot_be_read_blanks_no_list(api: Api) -> None:
    """The others are listed, by the API and on the console's page."""
    for name in ("broken", "whole"):
        api.put(f"/groups/{name}", GroupSelector())

    async def damage() -> None:
        async with api.app.planner.database.write() as session:
            await session.execute(update(GroupRow).where(GroupRow.name == "broken").values(share=7.0))

    api.await_(damage)
    assert [each["name"] for each in api.client.get("/groups").json()["groups"]] == ["whole"]
    assert api.client.get("/console/groups").status_code == 200


@pytest.mark.parametrize("scanned", [20_000, 50])
def test_a_groups_devices_are_listed_page_by_page(api: Api, monkeypatch: pytest.MonkeyPatch, scanned: int) -> None:
    """However few are looked at for one page, the pages in either direction hold those that the group takes, once."""
    monkeypatch.setattr(grouping, "SCANNED", scanned)
    labels = [{"channel": "beta"} if number % 3 else {} for number in range(400)]
    rows = [
        {"id": f"d{number:03}", "soc": f"soc-{number % 2}", "labels": labels[number], "enrolled_at": datetime.now(UTC)}
        for number in range(400)
    ]

    async def enrol() -> None:
        async with api.app.planner.database.write() as session:
            await session.execute(insert(DeviceRow), rows)

    api.await_(enrol)
    selector = GroupSelector(socs=("soc-1",), labels={"channel": "beta"}, share=0.1)
    api.put("/groups/few", selector)
    expected = [row["id"] for row in rows if takes(selector, "few", row["id"], row["soc"], row["labels"])]
    assert 5 < len(expected) < 30
    seen: list[str] = []
    query = "?group=few&limit=4"
    while query:
        page = DevicePage.model_validate_json(api.client.get(f"/devices{query}").content)
        seen += [device.device_id for device in page.devices]
        query = f"?group=few&limit=4&after={page.next}" if page.next else ""
    assert seen == expected
    assert api.client.get("/devices?group=none").json()["type"] == "urn:hope:group-unknown"

    async def backwards() -> list[str]:
        async with api.app.planner.database.read() as session:
            few, before, found = await session.get(GroupRow, "few"), "z", list[str]()
            while before:
                page = await grouping.find_devices(session, group=few, before=before, limit=4)
                found, before = [*(row.id for row in page.devices), *found], page.before or ""
            return found

    assert api.await_(backwards) == expected


@given(st.text(max_size=40), st.text(max_size=20), st.floats(0.01, 1.0), st.floats(0.01, 1.0))
def test_a_larger_share_keeps_whom_the_smaller_one_had(device: str, salt: str, one: float, other: float) -> None:
    """Stages only ever add devices."""
    small, large = sorted((one, other))
    if takes(GroupSelector(share=small), salt, device, "soc", {}):
        assert takes(GroupSelector(share=large), salt, device, "soc", {})


def test_shares_are_even_and_independent() -> None:
    """Each tenth of the fleet is a tenth of it, and the same device stands elsewhere under another salt."""
    devices = [f"device-{number}" for number in range(20_000)]
    tenths = Counter(int(position(device, "one") * 10) for device in devices)
    assert sorted(tenths) == list(range(10))
    assert all(1850 < count < 2150 for count in tenths.values())
    both = sum(position(device, "one") < 0.1 and position(device, "two") < 0.1 for device in devices)
    assert 140 < both < 260


def test_the_audit_log_says_who_in_pages(database_url: str) -> None:
    """It names the admin and the request, and is read in pages, by actor, by subject and by action."""
    with serving(database_url, tokens_required=True) as api:
        token = admin_token(api)
        api.client.headers.update({"authorization": f"Bearer {token}"})
        api.post("/models", FIRST)
        api.post("/names/a/versions", NewModelVersion(model_hash=FIRST.model_hash), **{"x-request-id": "mine-1"})
        api.post("/names/b/versions", NewModelVersion(model_hash=FIRST.model_hash))
        newest = AuditPage.model_validate_json(api.client.get("/audit?limit=1").content)
        assert (newest.entries[0].subject, newest.next) == ("b:1", newest.entries[0].id)
        (first,) = AuditPage.model_validate_json(api.client.get(f"/audit?before={newest.next}").content).entries
        assert (first.subject, first.request_id.partition("/")[2], first.detail) == (
            "a:1",
            "mine-1",
            {"model_hash": FIRST.model_hash},
        )
        assert first.actor.startswith("admin:")
        assert len(entries(api, f"?actor={first.actor}")) == 2
        assert entries(api, "?subject=b:1&action=name.version") == [("name.version", "b:1")]


def write_entry(api: Api, subject: str, **age: float) -> None:
    """Put an entry of some age into the audit log."""

    async def insert_it() -> None:
        at = datetime.now(UTC) - timedelta(**age)
        row = {"at": at, "actor": "admin:1", "action": "plans.ahead", "subject": subject, "detail": {}}
        async with api.app.planner.database.write() as session:
            await session.execute(insert(AuditRow), row)

    api.await_(insert_it)


def refused(api: Api, statement: str, words: str) -> None:
    """The database refuses a statement by itself, and names the cause."""

    async def tamper() -> None:
        async with api.app.planner.database.write() as session:
            await session.execute(text(statement))

    with pytest.raises(DBAPIError, match=words):
        api.await_(tamper)


def test_an_entry_of_the_audit_log_stays_as_it_is(api: Api) -> None:
    """The database itself refuses to change, to replace and to empty, whoever asks."""
    write_entry(api, "a", hours=1)
    refused(api, "UPDATE audit SET actor = 'nobody'", "append-only")
    if api.app.planner.database.dialect == "sqlite":
        columns = "id, at, actor, action, subject, detail"
        refused(
            api, f"REPLACE INTO audit ({columns}) SELECT id, at, 'nobody', action, subject, detail FROM audit", "only"
        )
    else:
        refused(api, "TRUNCATE audit", "append-only")
    assert [entry["actor"] for entry in api.client.get("/audit").json()["entries"]] == ["admin:1"]


def test_the_audit_log_is_kept_for_as_long_as_the_setting_says(api: Api) -> None:
    """What is older goes; the database itself lets go of nothing younger; a change of the setting is an entry."""
    audit_of = api.app.planner.database
    for subject, days in (("old", 31.0), ("month", 29.9), ("week", 6.9), ("day", 0.9)):
        write_entry(api, subject, days=days)
    refused(api, "DELETE FROM audit", "HOPE_AUDIT_DAYS")  # nobody has said a setting yet: a day
    api.await_(lambda: audit.prune(audit_of, 30))
    assert {subject for _, subject in entries(api)} == {"month", "week", "day"}
    for subject in ("month", "week", "day"):
        refused(api, f"DELETE FROM audit WHERE subject = '{subject}'", "HOPE_AUDIT_DAYS")
    api.await_(lambda: audit.prune(audit_of, 7))
    assert {subject for _, subject in entries(api)} == {"week", "day", "7 days"}
    (entry,) = api.client.get("/audit?action=audit.retention").json()["entries"]
    assert (entry["actor"], entry["detail"]) == ("planner", {"before": "30 days"})
    api.await_(lambda: audit.prune(audit_of, 7))
    assert len(entries(api)) == 3


def test_an_entry_is_there_only_if_the_action_is(api: Api) -> None:
    """What fails after its entry was written takes the entry back with it."""

    async def fail() -> None:
        async with api.app.planner.database.write() as session:
            await audit.record(session, Actor("admin:1"), "name.version", "never:1")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        api.await_(fail)
    assert entries(api) == []


def test_every_action_of_an_admin_is_written_down(
    api: Api, database_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Planning ahead, profiles, SoCs, devices and tokens, over HTTP and at the command line: who did what to what."""
    api.learn(FIRST)
    api.put("/devices/device-1/report", DeviceReport(soc=SOC, frequency=FREQUENCY))
    api.client.post(f"/models/{FIRST.model_hash}/plans")
    profile = {"soc": SOC, "frequency": FREQUENCY}
    api.client.delete("/fleet/profiles/contributions", params={**profile, "device_id": "device-1"})
    api.client.put(f"/fleet/socs/{SOC}")
    api.client.delete("/devices/device-1")
    issue(database_url, "admin", label="me")
    api.post("/claims", NewClaim(uses=3))
    api.client.delete("/tokens/1")
    assert entries(api) == [
        ("soc.establish", SOC),
        ("plans.ahead", FIRST.model_hash),
        ("profile.forget", f"{SOC}/{FREQUENCY}"),
        ("device.revoke", "device-1"),
        ("token.create", "token:1"),
        ("claim.create", "claim:1"),
        ("token.revoke", "token:1"),
    ]
    actors = [entry["actor"] for entry in api.client.get("/audit").json()["entries"]]
    assert actors[2].startswith("cli")
    assert {*actors[:2], *actors[3:]} == {"anonymous"}
