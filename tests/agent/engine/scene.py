"""Four simulated processors on one device, and a session in which all of them take part."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np
import pytest

from agent_sdk.engine import Device, Executor, build_program
from agent_sdk.engine.flight import Flight
from agent_sdk.model import Model
from tests.agent.engine.generate import dealt_plan, random_inputs
from tests.agent.engine.simulated import four_processors

NATIVE = pytest.mark.parametrize("lanes", ["native"], indirect=True)
"""For what only lanes outside the interpreter do: overlap, hang, be left behind."""

if TYPE_CHECKING:
    from tests.agent.engine.conftest import Reference


@contextmanager
def held(device: Device, *resources: str) -> Iterator[None]:
    """Occupy resources that nobody has, as a run does."""
    with device.arbiter.held(resources, timeout_s=0):
        yield


def until(condition: Callable[[], object]) -> None:
    """Return once a condition holds, within the time of a test."""
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def flight_of(executor: Executor) -> Flight:
    """What the next run of a session writes into."""
    return executor._turns._free[0]


class Scene:
    """Four simulated processors that all take part in one session."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.processors = four_processors()
        self.by_id = {p.id: p for p in self.processors}
        self.device = Device(self.processors)
        self.executor = self.open()
        self.feeds = random_inputs(model, 1)

    def open(self) -> Executor:
        """Another session."""
        plan = dealt_plan(self.model, list(self.by_id), seed=5)
        return Executor(build_program(plan, self.model, self.device.processors), self.device)

    def works(self, reference: Reference) -> None:
        """The next run is right."""
        for processor in self.processors:
            processor.hook = None
        outputs, _ = self.executor.run(self.feeds, timeout_s=30)
        for name, expected in reference(self.model, self.feeds).items():
            np.testing.assert_array_equal(outputs[name], expected)
