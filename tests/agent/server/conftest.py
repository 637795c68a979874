"""One server for the tests that do not end it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.agent.server.running import Running, running, written


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A server without tokens, as its users start it on their own machine."""
    folder = tmp_path_factory.mktemp("serving")
    with running(written(folder), folder, "--memory", "256", "--requests", "32") as found:
        yield found
