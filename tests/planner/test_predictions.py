"""A network that nobody measured is planned in the first reply, and its plan gets better as figures come."""

from __future__ import annotations

import time
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest

from hope_schema import Missing, ModelGraph, Op, PlanReply, Profile, Tensor, TensorType, merge
from planner_api.prediction.features import Features, features
from planner_api.profiles import predictions as module
from planner_api.profiles.facts import Facts
from planner_api.profiles.predictions import REMEMBERED_BYTES, Predictions
from tests.planner.samples import EVERY, PROCESSORS, SOC, Api, chain, measure, missing_request, plan_request, serving


def convolutions(*filters: int, size: int = 14, name: str = "convolutions") -> ModelGraph:
    """One convolution behind the other."""
    channels = (16, *filters)
    tensors = tuple(
        Tensor(name=f"t{k}", shape=(1, count, size, size), dtype="float32") for k, count in enumerate(channels)
    )
    ops = tuple(
        Op(
            type="Conv",
            attributes={"kernel_shape": (3, 3), "pads": (1, 1, 1, 1)},
            inputs=(f"t{k}",),
            outputs=(f"t{k + 1}",),
            parameters=(TensorType(shape=(after, before, 3, 3), dtype="float32"),),
        )
        for k, (before, after) in enumerate(pairwise(channels))
    )
    return ModelGraph(name=name, tensors=tensors, ops=ops, inputs=("t0",), outputs=(f"t{len(filters)}",))


LATEST_S = 60.0
"""By when what happens by itself has happened, on a busy machine."""
KNOWN = convolutions(*(8 * k for k in range(1, 25)))
UNSEEN = convolutions(20, 300, 100, 60, size=28, name="unseen")
FEATURES: dict[str, Features] = {
    op.signature: features(op)
    for graph in (KNOWN, UNSEEN, convolutions(16, 32, 24, size=20, name="few"))
    for op in merge(graph)
}


def cost(signature: str, kind: str) -> float:
    """A processor that takes as long as there are products; the little core three times that."""
    us = 5.0 + FEATURES[signature].multiplications / 50_000
    return us if kind.endswith("big") else 3 * us


@pytest.fixture
def api(api: Api) -> Api:
    """A planner that has seen one network."""
    api.learn(KNOWN, cost=cost)
    assert api.missing(KNOWN).latencies == ()
    return api


@pytest.mark.parametrize(("each", "trained_again"), [(REMEMBERED_BYTES // 100, 0), (REMEMBERED_BYTES // 16, 40)])
def test_predictors_of_many_socs_are_kept_while_they_are_small(
    each: int, trained_again: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A release comes by every SoC once per model: small predictors are trained once, large ones do not pile up."""
    trained = []

    def train(profile: Profile, _facts: Facts) -> dict[str, SimpleNamespace]:
        trained.append(profile.soc)
        return {"big": SimpleNamespace(bytes=each)}

    monkeypatch.setattr(module, "_train", train)
    predictions, nothing = Predictions(), Facts(lambda _question: b"")
    for soc in [f"soc-{number}" for number in range(40)] * 2:
        predictions._of(Profile(soc=soc, frequency="max", processors=PROCESSORS, version=1), nothing)
    kept = predictions._trained
    assert len(trained) == 40 + trained_again
    assert len(kept) == (16 if trained_again else 40)


@pytest.mark.above_databases
def test_an_unseen_network_is_planned_in_the_first_reply(api: Api):
    """Before anything of it is measured its plan says what it rests on; later it rests on what was measured."""
    assert api.post("/models", UNSEEN).status_code == 201
    first = api.plan(UNSEEN)
    assert first.provisional
    assert all(step.predicted_spread for step in first.plan.steps)
    assert any("predicted" in sentence for sentence in first.plan.filled)
    true = sum(cost(op.signature, "big") for op in merge(UNSEEN))
    assert first.plan.makespan_us == pytest.approx(true, rel=0.25)
    api.learn(UNSEEN, cost=cost)
    with serving(str(api.app.planner.settings.database_url), embedded=True, solve_budget_s=0.1) as embedded:
        better = embedded.plan(UNSEEN).plan
    assert not any(step.predicted_spread for step in better.steps)
    assert all("parts" in sentence for sentence in better.filled)  # nobody measures a part before a plan cuts there
    assert better.single_processor_us["ort@0"] == pytest.approx(true, rel=1e-3)


def test_its_plan_gets_better_without_anybody_asking(tmp_path: Path):
    """Planned from predictions in the first reply, then solved, then made anew of what a device measured: one POST."""
    url = f"sqlite:///{tmp_path / 'planner.sqlite'}"
    with serving(url, works=EVERY, fold_interval_s=0.2, solve_budget_s=0.2) as planner:
        planner.learn(KNOWN, cost=cost)
        end = time.monotonic() + LATEST_S
        while planner.missing(KNOWN).latencies and time.monotonic() < end:
            time.sleep(0.05)
        assert planner.post("/models", UNSEEN).status_code == 201
        first = planner.plan(UNSEEN)
        assert first.provisional
        assert all(step.predicted_spread for step in first.plan.steps)
        versions = [first]
        planner.learn(UNSEEN, cost=cost)
        while any(step.predicted_spread for step in versions[-1].plan.steps) or versions[-1].provisional:
            assert time.monotonic() < end, "the plan still rests on predictions"
            reply = PlanReply.model_validate_json(planner.client.get(f"/plans/{first.plan_id}").content)
            if reply.version > versions[-1].version:
                versions.append(reply)
            time.sleep(0.05)
        true = sum(min(cost(op.signature, kind) for kind in ("big", "little")) for op in merge(UNSEEN))
        assert versions[-1].plan.makespan_us <= true * 1.05


def test_what_would_tell_the_most_is_asked_first(api: Api):
    """Of an unseen network the op whose guess is least certain and that takes longest comes first; nothing is lost."""
    assert api.post("/models", UNSEEN).status_code == 201
    asked = api.missing(UNSEEN, max_items=2).latencies
    signatures = [op.signature for op in merge(UNSEEN)]
    assert {item.signature for item in asked} == {max(signatures, key=lambda one: cost(one, "big"))}
    every = api.missing(UNSEEN, "device-2").latencies
    assert {(item.signature, item.kind) for item in every} > {(item.signature, item.kind) for item in asked}
    assert len(every) == 8


def test_a_soc_of_which_little_is_known_borrows_from_another(api: Api):
    """A handful of figures beside a SoC that has many of the same runtime make a plan of an unseen network."""
    few = convolutions(16, 32, 24, 16, 32, 48, size=14, name="few")
    assert api.post("/models", few).status_code in (200, 201)
    FEATURES.update({op.signature: features(op) for op in merge(few)})
    reply = api.post("/profiles/missing", missing_request(few).model_copy(update={"soc": "other"}))
    upload = measure(Missing.model_validate_json(reply.content), cost=lambda s, kind: 2 * cost(s, kind), soc="other")
    assert api.post("/profiles", upload).status_code == 202
    assert api.post("/models", UNSEEN).status_code == 201
    plan = api.plan(UNSEEN, soc="other").plan
    true = 2 * sum(cost(op.signature, "big") for op in merge(UNSEEN))
    assert plan.makespan_us == pytest.approx(true, rel=0.3)


def test_too_little_is_not_predicted_from(database_url: str):
    """With a few figures and no other SoC, an unseen network has no plan: a guess would be worth nothing."""
    with serving(database_url) as running:
        running.learn(chain(6))
        assert running.post("/models", UNSEEN).status_code == 201
        reply = running.post("/plans", plan_request(UNSEEN))
        assert (reply.status_code, reply.json()["type"]) == (422, "urn:hope:unplannable")


def test_what_a_processor_refused_is_not_predicted_for_it(database_url: str):
    """A kind that said of such ops that it cannot run them is not given more of them."""
    with serving(database_url) as running:
        running.learn(KNOWN, cost=lambda s, kind: cost(s, kind) if kind.endswith("big") else None)
        assert running.post("/models", UNSEEN).status_code == 201
        plan = running.plan(UNSEEN).plan
        assert {step.processor for step in plan.steps} == {"ort@0"}
        assert set(plan.single_processor_us) == {"ort@0"}
        assert plan.soc == SOC
