"""Real processors of this machine."""

from __future__ import annotations

import pytest

from agent_sdk.device.discovery import discover
from agent_sdk.runtimes import Processor


@pytest.fixture(scope="module")
def processors(tmp_path_factory: pytest.TempPathFactory) -> list[Processor]:
    """All processors of this machine."""
    return discover(cache=tmp_path_factory.mktemp("ort"))
