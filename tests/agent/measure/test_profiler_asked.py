"""The profiler measures for the model it was given, whatever the planner asks for."""

from __future__ import annotations

from typing import Any

import pytest

from agent_sdk import Agent
from agent_sdk.measure.profiler import profile
from agent_sdk.model import read_model
from agent_sdk.runtimes.base import Processor, segment_of
from agent_sdk.runtimes.ort.processor import OrtProcessor
from hope_schema import HOST, Missing, MissingLatency, MissingTransfer, TensorType, merge
from tests.agent.models import one_op_model
from tests.agent.runtimes.networks import of, random_model


def test_transfers_of_other_models_are_not_measured(agent: Agent) -> None:
    """A tensor type that the model does not have, which may be of any size, is not even allocated."""
    processor = next(iter(agent.device.processors.values()))
    own, foreign = (TensorType(shape=shape, dtype="float32") for shape in ((1, 4), (1, 5)))
    asked = tuple(MissingTransfer(tensor=t, source=HOST, target=processor.spec.place) for t in (foreign, own))
    found = profile(
        read_model(one_op_model().SerializeToString()), [processor], Missing(profile_version=0, transfers=asked),
        soc="soc", frequency="fixed", device_id="device", budget_s=10.0,
    )  # fmt: skip
    assert found.transfers.tensor == (own,)


def test_an_op_alone_finds_its_gang_awake(processors: list[Processor], monkeypatch: pytest.MonkeyPatch) -> None:
    """Waking the workers is a part of a launch, which is measured apart; where an op is a segment they sleep."""
    model, gang = random_model(11), max(of(processors, "ort"), key=lambda own: own.spec.threads)
    super_op = merge(model.graph)[1]
    stop = list[str]()
    opened = OrtProcessor._opened

    def spied(self: OrtProcessor, proto: bytes, own: Any) -> Any:
        stop.append(own.get_session_config_entry("session.force_spinning_stop"))
        return opened(self, proto, own)

    monkeypatch.setattr(OrtProcessor, "_opened", spied)
    asked = Missing(profile_version=0, latencies=(MissingLatency(signature=super_op.signature, kind=gang.spec.kind),))
    profile(model, [gang], asked, soc="soc", frequency="fixed", device_id="device", budget_s=5.0)
    gang.compile(segment_of(super_op, model)).close()
    assert stop == ["0", "1"]
