"""A host that is slow, silent, torn, killed or lies: the run is answered by what is left, soon, and nothing hangs."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from agent_sdk.engine import Device, Executor
from agent_sdk.engine.single import whole_run
from agent_sdk.errors import ProcessorError, ProcessorLost, SegmentFailedError, UnsupportedOp
from agent_sdk.journey.prepared import Prepared
from agent_sdk.journey.trial import PLAN
from agent_sdk.model import read_model
from agent_sdk.model.feeds import draw
from agent_sdk.runtimes.remote import peer, processor
from agent_sdk.runtimes.remote.host import RemoteHost
from agent_sdk.runtimes.remote.processor import KNOWN_AFTER
from tests.agent.models import BRANCHING, branching_model, prepared_of
from tests.agent.runtimes.remote.conftest import TOKEN, Reached, device_with, networks_on
from tests.agent.runtimes.remote.relay import Relay, Spoil
from tests.agent.server.running import running

MODEL = read_model(BRANCHING)
FEED = draw(MODEL, 1)


@contextmanager
def waiting(first_s: float, least_s: float) -> Iterator[None]:
    """How long a host is waited for, whose runs are not known yet, and beyond what they took of late."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(processor, "FIRST_S", first_s)
        patched.setattr(processor, "LEAST_S", least_s)
        yield


@contextmanager
def serving(device: Device) -> Iterator[tuple[Prepared, Executor]]:
    """The host answers, this machine stands by; and the host alone. No run waits for a host of unknown times."""
    remote, local = (whole_run(MODEL, device.processors[name], device) for name in ("edge1:ort@0", "ort@0"))
    made = prepared_of({PLAN: remote, "ort@0": local}, {PLAN: 1.0, "ort@0": 2.0}, pinned=True)
    with waiting(60.0, 60.0):  # a busy machine is no host that is late
        for _ in range(KNOWN_AFTER + 1):
            made.run(FEED)
    with waiting(float("inf"), processor.LEAST_S):
        yield made, local
    made.close()


LIES: dict[str, Spoil] = {
    "another type": lambda said: said.replace(b'"FP32"', b'"FP16"'),
    "another shape": lambda said: re.sub(rb'("shape": *)\[1,', rb"\1[2,", said),
    "another network": lambda said: re.sub(rb'("model_name": *")', rb"\g<1>0", said, count=1)[: len(said)],
    "another name": lambda said: re.sub(rb'("name": *)"y"', rb'\1"z"', said),
    "another length": lambda said: said.replace(b"content-length: ", b"content-length: 1"),
    "no HTTP": lambda said: bytes(len(said)),
    "an endless head": lambda said: b"a" * 200_000,
    "nothing": lambda said: None,
}


@pytest.mark.parametrize("lie", LIES)
def test_a_host_that_lies_is_answered_for_by_this_machine(lie: str, both: Device, relay: Relay) -> None:
    """Whatever arrives instead of the right answer, the caller gets the right one, from here."""
    with serving(both) as (made, local):
        right = local.run(FEED)[0]
        relay.spoil = LIES[lie]
        for _ in range(peer.LATE_RUNS):  # some lies cannot be told from an answer that is late
            relay_answers, _ = made.run(FEED)
            for name, expected in right.items():
                np.testing.assert_array_equal(relay_answers[name], expected)
        assert made.current == "ort@0"


def test_an_answer_that_stops_half_way_is_given_up(both: Device, relay: Relay) -> None:
    """A host that says one half and then nothing is answered for as soon as it is later than it ever was."""
    _given_up(both, relay, lambda said: said[: len(said) // 2])


def test_a_silent_host_is_given_up(both: Device, relay: Relay) -> None:
    """A host that says nothing any more, as behind a cable that was pulled, is answered for in bounded time."""
    _given_up(both, relay, lambda said: b"")


def _given_up(both: Device, relay: Relay, spoil: Spoil) -> None:
    """Each run is answered soon, and after a few the host is asked no more."""
    with serving(both) as (made, _):
        relay.spoil = spoil
        for late in range(peer.LATE_RUNS):
            assert made.current == PLAN, late
            made.run(FEED)
        assert made.current == "ort@0"


def test_a_host_that_is_late_once_goes_on(both: Device, relay: Relay) -> None:
    """A slow moment costs the runs that fall into it, which this machine answers, and nothing else."""
    with serving(both) as (made, local):
        right = local.run(FEED)[0]
        for _ in range(2):
            for late in range(peer.LATE_RUNS - 1):
                relay.spoil = lambda said: b""
                np.testing.assert_array_equal(made.run(FEED)[0]["y"], right["y"])
                assert made.answered["ort@0"] > late
            relay.spoil = bytes
            before = made.answered[PLAN]
            with waiting(60.0, 60.0):
                np.testing.assert_array_equal(made.run(FEED)[0]["y"], right["y"])
            assert (made.current, made.answered[PLAN]) == (PLAN, before + 1)


def test_a_connection_that_was_idle_is_opened_anew(both: Device, relay: Relay) -> None:
    """A host that closes idle connections is asked again on a new one: no run fails for that."""
    with whole_run(MODEL, both.processors["edge1:ort@0"], both) as executor:
        right = executor.run(FEED)[0]
        for _ in range(3):
            relay.tear()
            time.sleep(0.05)
            found = executor.run(FEED)[0]
            for name, expected in right.items():
                np.testing.assert_array_equal(found[name], expected)


def test_a_link_that_comes_back_is_used_again(both: Device, relay: Relay, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a failure the host is left alone for a while, and then answers again."""
    now = [time.monotonic()]
    monkeypatch.setattr(peer, "time", SimpleNamespace(monotonic=lambda: now[0], perf_counter=time.perf_counter))
    with whole_run(MODEL, both.processors["edge1:ort@0"], both) as executor:
        right = executor.run(FEED)[0]
        relay.spoil = lambda said: None
        with pytest.raises(SegmentFailedError):
            executor.run(FEED)
        relay.spoil = bytes
        with pytest.raises(SegmentFailedError, match="left alone"):
            executor.run(FEED)
        now[0] += peer.RETRY_S
        np.testing.assert_array_equal(executor.run(FEED)[0]["y"], right["y"])


@pytest.mark.parametrize("sign", [signal.SIGKILL, signal.SIGSTOP])
def test_a_host_that_dies_or_stops_is_answered_for(sign: signal.Signals, tmp_path: Path) -> None:
    """Killed or frozen between two runs, the host costs its caller a bounded time, and no answer."""
    (tmp_path / "tokens").write_text(TOKEN)
    with (
        running([], tmp_path, "--lend", "--soc", "edgebox", "--tokens", str(tmp_path / "tokens")) as edge,
        Reached(edge.http) as host,
        device_with(host) as two,
        serving(two) as (made, local),
    ):
        right = local.run(FEED)[0]
        edge.process.send_signal(sign)
        try:
            found, _ = made.run(FEED)
            np.testing.assert_array_equal(found["y"], right["y"])
        finally:
            edge.process.send_signal(signal.SIGCONT)
            edge.process.kill()


def test_a_host_that_has_forgotten_a_network_is_sent_it_again(both: Device, host: RemoteHost) -> None:
    """A host that was started anew, or needed the room, gets the segment again within the run that finds that out."""
    model, before = read_model(branching_model(channels=5)), networks_on(host)
    feed = draw(model, 1)
    with whole_run(model, both.processors["edge1:ort@0"], both) as executor:
        right = executor.run(feed)[0]
        [name] = networks_on(host) - before
        host.say("POST", f"/v2/repository/models/{name}/unload")
        assert networks_on(host) == before
        np.testing.assert_array_equal(executor.run(feed)[0]["y"], right["y"])
        assert networks_on(host) - before == {name}


def test_what_two_agents_have_sent_stays_until_both_let_go(both: Device, host: RemoteHost, relay: Relay) -> None:
    """One agent that ends takes nothing away from another one that uses the same network."""
    model, before = read_model(branching_model(channels=6)), networks_on(host)
    with whole_run(model, both.processors["edge1:ort@0"], both):
        with Reached(relay.port) as other, device_with(other) as second:
            whole_run(model, second.processors["edge1:ort@0"], second).close()
        assert len(networks_on(host) - before) == 1
    assert networks_on(host) == before


def load(host: RemoteHost, name: str, file: bytes, backend: str = "ort@0") -> bytes:
    """Send a file under a name."""
    parameters = {"config": json.dumps({"backend": backend}), "file:1/model.onnx": base64.b64encode(file).decode()}
    body = json.dumps({"parameters": parameters}).encode()
    return host.say("POST", f"/v2/repository/models/{name}/load", body, 20.0)


def test_a_host_takes_no_file_under_another_s_name(host: RemoteHost) -> None:
    """A file has to be what its name says, a network, and for a processor that is lent."""
    right = hashlib.sha256(BRANCHING).hexdigest()
    wrong = hashlib.sha256(b"no network").hexdigest()
    for name, file, backend, reason in (
        (f"{wrong}.ort@0", BRANCHING, "ort@0", "by its digest it is"),
        (f"{right}.ov@0", BRANCHING, "ort@0", "by its digest it is"),
        (f"{right}.cuda:0", BRANCHING, "cuda:0", "there is no processor"),
        (f"{wrong}.ort@0", b"no network", "ort@0", "ONNX|protobuf|model"),
    ):
        with pytest.raises(UnsupportedOp, match=reason):
            load(host, name, file, backend)
    with pytest.raises(UnsupportedOp, match="names its backend in JSON, as the parameter 'config'"):
        load(host, f"{right}.ort@0", BRANCHING, backend=3)  # type: ignore[arg-type]
    for body in (b"{}", b'{"parameters": {"file:1/model.onnx": "???"}}', b'{"parameters": 3}', b"["):
        with pytest.raises(UnsupportedOp):
            host.say("POST", f"/v2/repository/models/{right}.ort@0/load", body)


def test_a_network_that_is_gone_is_an_error_that_names_it(host: RemoteHost) -> None:
    """A run of what the host does not have is refused, as is measuring it."""
    body = json.dumps({"missing": {"profile_version": 0}, "budget_s": 1.0}).encode()
    with pytest.raises(ProcessorLost, match="404"):
        host.say("POST", "/v2/hope/models/nothing.ort@0/measure", body)
    with pytest.raises(ProcessorError, match="404"):
        host.say("POST", "/v2/models/nothing.ort@0/infer", b'{"inputs": []}')
