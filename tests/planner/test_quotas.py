"""What one device may use: each quota is refused by name, with when to return, and nobody else is shut out."""

from __future__ import annotations

from typing import Any

import pytest

from hope_schema import Observations
from tests.planner.samples import (
    Api,
    chain,
    enrolled,
    measure,
    missing_request,
    plan_request,
    serving,
)

GRAPH = chain()


pytestmark = pytest.mark.planner(
    tokens_required=True, models_per_day=3, plan_keys_per_day=4, profiles_per_device=2, figures_per_device=60
)


def test_an_upload_beyond_a_share_says_so(api: Api) -> None:
    """Junk beyond a device's share is left out, and its next receipt and the device's view say that and why."""
    liar = enrolled(api, "liar")
    api.post("/models", GRAPH, **liar)
    good = measure(api.missing(GRAPH, "liar", liar), "liar")
    rows = 500
    columns = {
        "signature": tuple(f"junk-{n}" for n in range(rows)), "kind": (good.processors[0].kind,) * rows,
        "us": (1.0,) * rows, "spread_us": (0.0,) * rows, "count": (1,) * rows,
    }  # fmt: skip
    junk = Observations(**{**dict(good), "upload_id": "junk", "latencies": type(good.latencies)(**columns)})
    assert api.upload(junk, liar).json()["unused"] is None
    assert "quota figures" in api.upload(junk, liar).json()["unused"], "sent again, it says what became of it"
    assert "quota figures" in api.client.get("/devices/liar", headers=liar).json()["unused"]
    honest = enrolled(api, "honest")
    assert api.upload(measure(api.missing(GRAPH, "honest", honest), "honest"), honest).status_code == 202
    assert set(good.latencies.signature) <= set(api.profile().latencies.signature), "nobody else is shut out"


@pytest.mark.above_databases
def test_quotas_are_named(api: Api, admin: dict[str, str]) -> None:
    """Models, plan keys and SoCs beyond a device's quota: 429 or 403 with its name and when to return; others go on."""
    greedy = enrolled(api, "greedy")
    refused = [api.post("/models", chain(n), **greedy) for n in range(2, 7)]
    assert [answer.status_code for answer in refused] == [201, 201, 201, 429, 429]
    assert "quota models" in refused[-1].json()["detail"]
    assert 0 < int(refused[-1].headers["retry-after"]) <= 86400
    assert api.post("/models", GRAPH, **admin).status_code in (200, 201), "admins have none"
    for soc, status in (("a", 200), ("b", 200), ("a", 200), ("c", 403)):
        answer = api.post(
            "/profiles/missing", missing_request(GRAPH, "greedy").model_copy(update={"soc": soc}), **greedy
        )
        assert answer.status_code == status, answer.text
    assert "quota profiles" in answer.json()["detail"]
    api.upload(measure(api.missing(GRAPH, "honest", enrolled(api, "honest")), "honest"), admin)
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
