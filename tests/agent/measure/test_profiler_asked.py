"""The profiler measures for the model it was given, whatever the planner asks for."""

from __future__ import annotations

from agent_sdk import Agent
from agent_sdk.measure.profiler import profile
from agent_sdk.model import read_model
from hope_schema import HOST, Missing, MissingTransfer, TensorType
from tests.agent.models import one_op_model


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
