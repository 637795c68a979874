"""Hosts that cannot be used as they say: one clear message each, and this machine answers."""

from __future__ import annotations

import itertools
import re
import time
from pathlib import Path

import numpy as np
import onnx
import pytest

from agent_sdk.engine import Device
from agent_sdk.engine.single import whole_run
from agent_sdk.errors import OutOfMemory, ProcessorLost, UnsupportedOp
from agent_sdk.model import read_model
from agent_sdk.model.feeds import draw
from agent_sdk.runtimes.remote import host as remote_host
from agent_sdk.runtimes.remote import processor
from agent_sdk.runtimes.remote.host import RemoteHost
from hope_schema import Missing
from tests.agent.models import BRANCHING, chain_model
from tests.agent.runtimes.remote.conftest import TOKEN, Reached, device_with
from tests.agent.runtimes.remote.relay import Relay, Spoil
from tests.agent.server.running import running

OFFERS: dict[str, Spoil] = {
    "a processor of a host behind it, which may be this machine": lambda said: said.replace(b'"host"', b'"edge"'),
    "no offer": lambda said: said.replace(b'"processors"', b'"processers"'),
    "no JSON": lambda said: said.replace(b"{", b"["),
}


@pytest.mark.parametrize("lie", OFFERS)
def test_a_host_that_offers_what_cannot_be_is_not_used(lie: str, relay: Relay) -> None:
    """An offer that is none, or of what is not the host's own, as in a circle of hosts, is refused in one sentence."""
    relay.spoil = OFFERS[lie]
    with pytest.raises(ProcessorLost, match="describes what it lends otherwise than this agent knows it: ") as refused:
        Reached(relay.port)
    assert "\n" not in str(refused.value)


def test_figures_that_are_none_are_not_used(relay: Relay) -> None:
    """What a host measured is refused like what it lends: in one sentence that says what is wrong where."""
    with Reached(relay.port) as host:
        relay.spoil = lambda said: said.replace(b'"soc"', b'"sos"')
        refused = pytest.raises(ProcessorLost, match=r"describes what it measured otherwise than .*: soc: ")
        with refused as error:
            host.measure(read_model(BRANCHING), Missing(profile_version=0), 1.0)
    assert "\n" not in str(error.value)


def test_a_processor_that_the_host_does_not_have_is_found_out_before_a_run(relay: Relay) -> None:
    """A host that offers a processor it has not refuses the first network for it, and says what there is."""
    relay.spoil = lambda said: said.replace(b'"ort@0"', b'"ort@7"')
    with Reached(relay.port) as host:
        relay.spoil = bytes
        refused = pytest.raises(UnsupportedOp, match=r"no processor 'ort@7'; lent are ort@0")
        with device_with(host) as device, refused:
            whole_run(read_model(BRANCHING), device.processors["edge1:ort@7"], device)


def test_a_host_of_another_version_is_known_by_it(relay: Relay) -> None:
    """Its processor is of a kind of its own, so that no figures are mixed up, and it refuses what is too new for it."""
    relay.spoil = lambda said: re.sub(rb'(?<="version":")[^"]+', lambda found: b"0" * len(found[0]), said)
    newer = onnx.load_from_string(BRANCHING)
    newer.opset_import[0].version = 99
    with Reached(relay.port) as host:
        relay.spoil = bytes
        with device_with(host) as device:
            here, there = device.processors["ort@0"].spec, device.processors["edge1:ort@0"].spec
            assert {*there.version} == {"0"}
            assert there.kind != f"edge1:{here.kind}"
        with pytest.raises(UnsupportedOp, match=r"host 'edge1' refuses with 400: .*operator set 99"):
            host.send(newer, "ort@0")


def test_a_network_beyond_what_can_be_sent_is_refused_here(
    both: Device, host: RemoteHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More than 2 GiB are not even written down, which takes minutes: nothing crosses the link."""
    monkeypatch.setattr(remote_host, "MOST_FILE", 1000)
    monkeypatch.setattr(host, "ask", lambda *_: pytest.fail("something was sent"))
    with pytest.raises(OutOfMemory, match=r"a network of \d+ bytes is too large to be sent"):
        whole_run(read_model(chain_model(8, 8)), both.processors["edge1:ort@0"], both)


def test_a_host_that_is_full_says_so(tmp_path: Path) -> None:
    """A network larger than the host's memory is refused by it, and the next one is taken."""
    (tmp_path / "tokens").write_text(TOKEN)
    options = ("--lend", "--soc", "edgebox", "--tokens", str(tmp_path / "tokens"), "--memory", "16")
    with running([], tmp_path, *options) as edge, Reached(edge.http) as host:
        large, small = (chain_model(64, width, size=4) for width in (8000, 80))
        refusal = r"refuses with 413: the request takes \d+ bytes, and this server holds 16777216 at most"
        with pytest.raises(OutOfMemory, match=refusal):
            host.send(large, "ort@0")
        assert host.send(small, "ort@0").encode() in host.say("POST", "/v2/repository/index")


def test_a_link_that_stalls_loses_no_run(both: Device, relay: Relay, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where some answers are held up, as by packets that were lost and sent again, every run is answered right."""
    model = read_model(BRANCHING)
    feed = draw(model, 1)
    turn = itertools.count()
    monkeypatch.setattr(
        processor, "LEAST_S", 30.0
    )  # a busy machine may take longer to wake up than a stall is meant to

    def stalling(said: bytes) -> bytes:
        if next(turn) % 8 == 7:
            time.sleep(0.05)
        return said

    with (
        whole_run(model, both.processors["edge1:ort@0"], both) as far,
        whole_run(model, both.processors["ort@0"], both) as here,
    ):
        right = here.run(feed)[0]["y"]
        relay.spoil = stalling
        for _ in range(24):
            np.testing.assert_array_equal(far.run(feed)[0]["y"], right)
