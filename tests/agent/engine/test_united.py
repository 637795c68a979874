"""Several networks as one program: each answers as it does alone, whatever the plan says of all."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from agent_sdk.engine import Device, Executor, build_program
from agent_sdk.model import Model
from agent_sdk.model.cutting import cut_model
from agent_sdk.model.united import united
from agent_sdk.runtimes.offered import discover
from agent_sdk.scheduling.parts import part_of, plan_of_all
from hope_schema import Plan
from tests import CAMPAIGN
from tests.agent.engine.conftest import Reference
from tests.agent.engine.generate import random_cuts, random_inputs, random_legal_plan, random_model

ROUNDING = 1e-4
"""A part's kernel may add up in another order than the whole's."""


@pytest.fixture
def device(frozen: Path) -> Iterator[Device]:
    """Two lanes of ONNX Runtime, its gang over both, and another runtime on one of them."""
    pytest.importorskip("openvino")
    with Device(discover("ort@0,ort@1,ort@0-1,ov@0", cache=frozen)) as opened:
        yield opened


def side_by_side(plans: list[Plan], rng: random.Random) -> Plan:
    """Plans of one network each as one of all, their orders shuffled into each other."""
    left = [[(job, step) for step in plan.order] for job, plan in enumerate(plans)]
    ids: dict[tuple[int, int], int] = {}
    while any(left):
        ids[rng.choice([own for own in left if own]).pop(0)] = len(ids)
    steps = [
        plans[job].step[step].model_copy(update={"id": new, "job": job, "start_us": float(new), "finish_us": new + 1.0})
        for (job, step), new in ids.items()
    ]
    jobs = tuple(plan.jobs[0] for plan in plans)
    return plans[0].model_copy(update={"jobs": jobs, "steps": tuple(steps), "order": tuple(ids.values())})


@pytest.mark.parametrize("seed", range(100 if CAMPAIGN else 6))
def test_networks_as_one_answer_as_each_does_alone(seed: int, device: Device, reference: Reference) -> None:
    """Any cuts, placement and order, one network twice; segments are of one network, and follow the plan in a lane."""
    rng = random.Random(seed)
    models = [random_model(rng, rng.randint(2, 10)) for _ in range(2)]
    models.append(models[0])
    chosen = rng.sample(list(device.processors.values()), rng.randint(1, 4))
    plan = side_by_side([random_legal_plan(one, chosen, rng, random_cuts(one, rng)) for one in models], rng)
    members = [cut_model(one, job.cuts) if job.cuts else one for one, job in zip(models, plan.jobs, strict=True)]
    whole = united(members)
    program = build_program(plan_of_all(plan, range(3), whole), whole, device.processors)
    place = {step: index for index, step in enumerate(plan.order)}
    for row in program.by_lane:
        steps = [place[step] for work in row if work.index >= 0 for step in program.segments[work.index].steps]
        assert steps == sorted(steps)
    for segment in program.segments:
        assert len({whole.member(op)[0] for op in segment.ops}) == 1
    with Executor(program, device) as executor:
        for turn in range(2):
            feeds = [random_inputs(one, 3 * turn + index) for index, one in enumerate(models)]
            outputs, _ = executor.run(whole.feed(feeds), timeout_s=60.0)
            for model, feed, found in zip(models, feeds, whole.answers(outputs), strict=True):
                assert_close(found, reference(model, feed))


def assert_close(found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    """The same names, and values as near as rounding leaves them."""
    assert found.keys() == expected.keys()
    for name, right in expected.items():
        assert np.abs(found[name] - right).max() <= ROUNDING * max(1.0, np.abs(right).max())


def test_some_runs_of_a_round_are_a_plan_of_their_own(device: Device) -> None:
    """The steps and the order of those runs are kept, and nothing of the others."""
    rng = random.Random(0)
    models: list[Model] = [random_model(rng, 5) for _ in range(3)]
    chosen = list(device.processors.values())
    plan = side_by_side([random_legal_plan(one, chosen, rng) for one in models], rng)
    two = plan_of_all(plan, [2, 0], united([models[2], models[0]]))
    kept = {step.id for job in (0, 2) for step in part_of(plan, job).steps}
    assert {step.id for step in two.steps} == kept
    assert list(two.order) == [step for step in plan.order if step in kept]
    assert {op.partition("/")[0] for step in two.steps for op in step.ops} == {"0", "1"}
