"""Real processors of this machine."""

from __future__ import annotations

import pytest

from agent_sdk.processors import Processor
from agent_sdk.processors.discovery import discover


@pytest.fixture(scope="module")
def processors(tmp_path_factory: pytest.TempPathFactory) -> list[Processor]:
    """All processors of this machine."""
    return discover(cache=tmp_path_factory.mktemp("ort"))
