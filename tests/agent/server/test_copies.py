"""Tensors as bytes are computed from where they arrived, and sent from where they were computed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import pytest
import tritonclient.grpc as over_grpc
import tritonclient.http as over_http

from agent_sdk.model import Port
from agent_sdk.scheduling.job import Terms
from agent_sdk.server.access import Access, Address
from agent_sdk.server.datatypes import to_bytes
from agent_sdk.server.models import Served
from agent_sdk.server.serving import Server, Settings

SIZE = 5
GIVEN = np.arange(SIZE, dtype=np.float64)
"""Of eight bytes each, so that most addresses would not do."""


class Doubled:
    """A network in the place of a runtime, which remembers what it was given."""

    def __init__(self) -> None:
        self.seen: list[np.ndarray] = []

    def run(self, feed: Mapping[str, np.ndarray], _: Terms) -> dict[str, np.ndarray]:
        """Twice what it is given."""
        self.seen.append(feed["x"])
        return {"y": 2 * feed["x"]}


@pytest.fixture
def doubled() -> Doubled:
    """A network that nobody has asked yet."""
    return Doubled()


@pytest.fixture
def server(doubled: Doubled) -> Iterator[Server]:
    """Serves that network on both transports."""
    ends = ([Port(name, "tensor(double)", (SIZE,))] for name in "xy")
    here, served = Address("127.0.0.1", 0), Served("net", *ends, doubled.run)
    with Server([served], Access([]), Settings(here, here, memory=2**24, requests=8)) as made:
        yield made


@pytest.mark.parametrize("package", [over_http, over_grpc])
def test_tensors_are_not_copied_on_their_way_to_a_network(server: Server, doubled: Doubled, package: object) -> None:
    """Whatever the length of the JSON before them, and in a message."""
    url = next(one for one in server.urls if one.startswith("http" if package is over_http else "grpc"))
    client = package.InferenceServerClient(url.rpartition("/")[2])  # type: ignore[attr-defined]
    for length in range(1, 9):
        given = package.InferInput("x", [SIZE], "FP64")  # type: ignore[attr-defined]
        given.set_data_from_numpy(GIVEN)
        answer = client.infer("net", [given], request_id="i" * length)
        np.testing.assert_array_equal(answer.as_numpy("y"), 2 * GIVEN)
    client.close()
    assert len(doubled.seen) == 8
    assert all(one.flags.aligned and not one.flags.owndata for one in doubled.seen)


def test_outputs_are_sent_from_where_they_were_computed() -> None:
    """What is handed to the socket is the output's own memory."""
    assert np.shares_memory(np.frombuffer(to_bytes(GIVEN), np.uint8), GIVEN)
