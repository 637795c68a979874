"""A host that lends a processor, in a process of its own."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Literal

import pytest

from agent_sdk.engine import Device
from agent_sdk.machine.soc import read_soc
from agent_sdk.runtimes.offered import discover
from agent_sdk.runtimes.remote.host import RemoteHost
from agent_sdk.runtimes.remote.processor import RemoteProcessor
from agent_sdk.runtimes.remote.settings import HostSettings
from tests.agent.engine.conftest import reference
from tests.agent.runtimes.remote.relay import Relay
from tests.agent.server.running import Running, running

__all__ = ["reference"]

TOKEN = "a-token-for-the-edge"


@pytest.fixture(scope="session")
def edge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A host that lends ``ort@0`` to those that hold its token."""
    folder = tmp_path_factory.mktemp("edge")
    (folder / "tokens").write_text(TOKEN)
    with running([], folder, "--lend", "--soc", "edgebox", "--tokens", str(folder / "tokens")) as found:
        yield found


@pytest.fixture
def relay(edge: Running) -> Iterator[Relay]:
    """The way to the host."""
    made = Relay(edge.http)
    yield made
    made.close()


@pytest.fixture
def host(relay: Relay) -> Iterator[RemoteHost]:
    """The host, as an agent reaches it."""
    with Reached(relay.port) as found:
        yield found


class Reached:
    """A host at a port of this machine, until the block ends."""

    def __init__(self, port: int, token: str = TOKEN, precision: Literal["fp32", "fp16"] = "fp32") -> None:
        settings = HostSettings(address=f"http://127.0.0.1:{port}", token=token, precision=precision)
        self._host = RemoteHost("edge1", settings)

    def __enter__(self) -> RemoteHost:
        return self._host

    def __exit__(self, *_: object) -> None:
        self._host.close()


def lent_by(host: RemoteHost) -> RemoteProcessor:
    """The first processor that a host lends."""
    return RemoteProcessor(host, host.offer.processors[0], frozenset(read_soc().cores))


def device_with(host: RemoteHost) -> Device:
    """The first core of this machine, and what a host lends."""
    return Device([*discover("ort@0"), lent_by(host)])


def networks_on(host: RemoteHost) -> set[str]:
    """The networks that are on the host; those of tests that broke the way to it may be among them."""
    return {one["name"] for one in json.loads(host.say("POST", "/v2/repository/index"))}


@pytest.fixture
def both(host: RemoteHost) -> Iterator[Device]:
    """The first core of this machine, and that of the host."""
    with device_with(host) as device:
        yield device
