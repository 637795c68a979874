"""Servers that are asked over gRPC: what they answer wrongly, late or not at all is answered by this machine."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tests
from agent_sdk import Agent
from agent_sdk.engine import Device, Executor
from agent_sdk.engine.single import whole_run
from agent_sdk.errors import InputError, OutOfMemory, ProcessorLost, SegmentFailedError
from agent_sdk.journey.prepared import Prepared
from agent_sdk.machine.soc import read_soc
from agent_sdk.model import read_model
from agent_sdk.model.feeds import draw
from agent_sdk.protocol.messages import STATUS
from agent_sdk.runtimes.offered import discover
from agent_sdk.runtimes.remote import channel
from agent_sdk.runtimes.remote.peer import LATE_RUNS
from agent_sdk.runtimes.remote.processor import KNOWN_AFTER
from agent_sdk.runtimes.remote.served import ServedNetworks, server_at
from agent_sdk.runtimes.remote.settings import HostSettings, read_hosts
from tests import ENDING_WITH_TESTS
from tests.agent.models import BRANCHING, expected, prepared_of
from tests.agent.runtimes.remote.relay import Relay
from tests.agent.runtimes.remote.speaking import Lie, Speaking
from tests.agent.server.certificates import made_certificate
from tests.agent.server.peers import mlserver

HERE = read_model(BRANCHING, name="eyes")
FEED = draw(HERE, 1)
SERVES = {"eyes": "branching"}
TOKEN = "a-token-for-the-cloud"


@pytest.fixture
def speaking() -> Iterator[Speaking]:
    """A server of gRPC alone."""
    made = Speaking()
    yield made
    made.close()


def server(port: int, scheme: str = "grpc", **settings: Any) -> ServedNetworks:
    """A server at a port of this machine."""
    made = HostSettings(address=f"{scheme}://127.0.0.1:{port}", serves=SERVES, **settings)
    return ServedNetworks(server_at("cloud", made), SERVES, frozenset(read_soc().cores))


@contextmanager
def both(port: int, runs: int = 1) -> Iterator[tuple[Prepared, Executor]]:
    """The server has answered so many runs, and this machine stands by; and this machine alone."""
    cloud = server(port)
    with ExitStack() as stack:
        device = stack.enter_context(Device([*discover("ort@0"), cloud]))
        contenders = {name: whole_run(HERE, device.processors[name], device) for name in ("ort@0", cloud.id)}
        serving = prepared_of(contenders, {"ort@0": 1e6, cloud.id: 1.0}, pinned=True)
        stack.callback(serving.close)
        for _ in range(runs):
            serving.run(FEED)
        assert serving.answered == {cloud.id: runs}
        yield serving, contenders["ort@0"]


def answered_here(serving: Prepared, here: Executor, why: str, runs: int = 1) -> None:
    """So many more runs are answered by this machine until it alone is asked, and one message says why."""
    right = here.run(FEED)[0]["y"]
    for _ in range(runs):
        assert serving.current != "ort@0"
        np.testing.assert_array_equal(serving.run(FEED)[0]["y"], right)
    assert serving.current == "ort@0"
    assert why in serving.changes[-1]
    assert serving.changes[-1].count("host '") <= 1


def test_mlserver_answers(tmp_path: Path) -> None:
    """The real one, as it is installed, which takes bytes over gRPC only."""
    (tmp_path / "branching.onnx").write_bytes(BRANCHING)
    with mlserver(tmp_path, tmp_path / "branching.onnx") as ports, both(ports["grpc"]) as (serving, here):
        found = serving.run(FEED)[0]["y"]
        assert serving.current == "cloud:server"
        np.testing.assert_allclose(found, here.run(FEED)[0]["y"], rtol=1e-3)


def test_an_agent_takes_it_as_one_more_contender(
    speaking: Speaking, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hasty: None
) -> None:
    """Its answers are judged and timed as any contender's."""
    monkeypatch.setenv("HOPE_CACHE_DIR", str(tmp_path / "own"))
    file = tmp_path / "hosts.toml"
    file.write_text(f'[cloud]\naddress = "grpc://127.0.0.1:{speaking.port}"\nserves = {{ branching = "branching" }}\n')
    feed, right = expected(BRANCHING, 3)
    with (
        Agent(processors="ort@0", hosts=file) as agent,
        agent.load(BRANCHING, background=False, all_rivals=True) as session,
    ):
        serving = session.latest
        assert serving.quiet_us["cloud:server"] > 0
        np.testing.assert_allclose(serving.contenders["cloud:server"].run(feed)[0]["y"], right["y"], rtol=1e-3)
        np.testing.assert_allclose(session.run(feed)["y"], right["y"], rtol=1e-3)


def changed(**fields: Any) -> Lie:
    """An answer with other fields."""

    def lie(answer: Any) -> Any:
        for field, value in fields.items():
            setattr(answer, field, value)
        return answer

    return lie


def first_output(**fields: Any) -> Lie:
    """An answer with other fields of its first output."""

    def lie(answer: Any) -> Any:
        shape = fields.pop("shape", None)
        if shape is not None:
            answer.outputs[0].shape[:] = shape
        changed(**fields)(answer.outputs[0])
        return answer

    return lie


def contents(*sizes: int) -> Lie:
    """An answer with raw contents of other sizes."""

    def lie(answer: Any) -> Any:
        answer.raw_output_contents[:] = [bytes(size) for size in sizes]
        return answer

    return lie


def typed(answer: Any) -> Any:
    """An answer with numbers instead of bytes."""
    answer.outputs[0].contents.fp32_contents.extend(np.frombuffer(answer.raw_output_contents.pop(), np.float32))
    return answer


def one_more(answer: Any) -> Any:
    """An answer with an output that nobody asked for."""
    answer.outputs.add(name="z", datatype="FP32", shape=[1, 10])
    return answer


LIES: Mapping[str, tuple[Lie, str]] = {
    "another shape": (first_output(shape=[10, 1]), "instead of [('y', 'FP32', [1, 10])]"),
    "another type": (first_output(datatype="INT32"), "the answer has [('y', 'INT32', [1, 10])] instead of"),
    "another output": (first_output(name="z"), "the answer has [('z', 'FP32', [1, 10])] instead of"),
    "another model": (changed(model_name="blanching"), "the answer is another network's"),
    "another version": (changed(model_version="2"), "version 2 answers now, and 1 was judged"),
    "less": (contents(39), "raw contents of [39] bytes instead of [40]"),
    "more": (contents(40, 40), "raw contents of [40, 40] bytes instead of [40]"),
    "too much": (contents(200_000), "refuses with 413"),
    "numbers": (typed, "no raw contents instead of [40]"),
    "one output more": (one_more, "instead of [40]"),
    "no message": (lambda _: b"\xff" * 20, "answers what the protocol does not allow"),
    "half a message": (lambda answer: answer.SerializeToString()[:-7], "answers what the protocol does not allow"),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_lie_is_answered_for_by_this_machine(lie: str, speaking: Speaking, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is answered instead, the caller gets the right answer, and is told why in one message."""
    monkeypatch.setattr(channel, "MOST_SAID", 1000)
    with both(speaking.port) as (serving, here):
        speaking.lies["ModelInfer"], why = LIES[lie]
        answered_here(serving, here, why)


def test_a_late_answer_is_not_waited_for(speaking: Speaking) -> None:
    """A call ends with its deadline, though the connection stands, once it is known how long runs take."""
    go_on = threading.Event()

    def wait(answer: Any) -> Any:
        go_on.wait()
        return answer

    with both(speaking.port, KNOWN_AFTER) as (serving, here):
        speaking.lies["ModelInfer"] = wait
        try:
            answered_here(serving, here, "did not answer within", LATE_RUNS)
        finally:
            go_on.set()


def test_a_torn_connection_is_answered_for_by_this_machine(speaking: Speaking) -> None:
    """The way there breaks in the middle of a call."""
    relay = Relay(speaking.port)
    with both(relay.port) as (serving, here):
        relay.spoil = lambda _: None
        answered_here(serving, here, "cannot be reached, or broke off")
    relay.close()


def test_a_connection_that_was_closed_while_it_was_idle_is_no_failure(speaking: Speaking) -> None:
    """The same run is asked again, on a new one."""
    relay = Relay(speaking.port)
    with both(relay.port) as (serving, _):
        for runs in range(2, KNOWN_AFTER + 1):
            relay.tear()
            serving.run(FEED)
            assert serving.answered == {"cloud:server": runs}
    relay.close()


def test_who_asks_again_does_so_on_a_new_connection(speaking: Speaking) -> None:
    """The one that failed may fail again: what carries calls hands them to it until it has noticed that it broke."""
    cloud = server(speaking.port)
    for failed in range(3):
        assert cloud.host.trying.lost == 0
        assert len(speaking.callers) == failed + 1
        speaking.broken = {*speaking.callers}
        cloud.host.described("branching")
    cloud.close()


def test_a_server_that_is_full_is_asked_once(speaking: Speaking) -> None:
    """What it refuses for lack of room fails at once, as over HTTP, and it is not left alone for that."""
    cloud = server(speaking.port)
    with Device([cloud]) as device, whole_run(HERE, cloud, device) as far:
        far.run(FEED)
        before = speaking.asked["ModelInfer"]
        speaking.refuses = STATUS[503]
        with pytest.raises(SegmentFailedError, match="too many requests are under way"):
            far.run(FEED)
        assert speaking.asked["ModelInfer"] == before + 1
        assert not cloud.host.trying.is_down


def test_a_server_that_dies_in_a_call_is_answered_for_by_this_machine() -> None:
    """A process of its own, killed while it computes."""
    command = [*ENDING_WITH_TESTS, sys.executable, "-m", Speaking.__module__, "1"]
    root = Path(tests.__file__).parents[1]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=root) as process:
        try:
            assert process.stdout is not None
            with both(int(process.stdout.readline())) as (serving, here):
                answered_here(serving, here, "cannot be reached, or broke off")
            assert process.wait(20) != 0
        finally:
            process.kill()


def test_it_is_asked_with_its_token_and_over_tls(tmp_path: Path) -> None:
    """Whose certificate is not the one that the owner names, or who knows another token, is not used."""
    pair = made_certificate(tmp_path)
    (tmp_path / "other").mkdir()
    other, _ = made_certificate(tmp_path / "other")
    speaking = Speaking(TOKEN, pair)
    try:
        cloud = server(speaking.port, "grpcs", token=TOKEN, certificate=pair[0])
        with Device([cloud]) as device, whole_run(HERE, cloud, device) as far:
            feed, right = expected(BRANCHING, 3)
            np.testing.assert_allclose(far.run(feed)[0]["y"], right["y"], rtol=1e-3)
        with pytest.raises(ProcessorLost, match="refuses with 401: this server is for those with its token"):
            server(speaking.port, "grpcs", token="another", certificate=pair[0])
        for wrong in ({"certificate": other}, {}):
            with pytest.raises(ProcessorLost, match="cannot be reached, or broke off"):
                server(speaking.port, "grpcs", token=TOKEN, **wrong)
        with pytest.raises(ProcessorLost, match="cannot be reached, or broke off"):
            server(speaking.port, "grpc", token=TOKEN)
    finally:
        speaking.close()


def test_a_server_that_is_not_ready_is_not_used(speaking: Speaking) -> None:
    """It says so, or describes itself as nobody does, or a network without outputs."""
    speaking.lies["ServerReady"] = changed(ready=False)
    with pytest.raises(ProcessorLost, match="host 'cloud' is not ready"):
        server(speaking.port)
    del speaking.lies["ServerReady"]
    speaking.lies["ServerMetadata"] = changed(version="")
    with pytest.raises(ProcessorLost, match="describes itself otherwise than this agent knows it: version"):
        server(speaking.port)
    del speaking.lies["ServerMetadata"]
    speaking.lies["ModelMetadata"] = lambda answer: type(answer)(name="branching")
    cloud = server(speaking.port)
    with Device([cloud]) as device, pytest.raises(ProcessorLost, match=r"describes a model otherwise than .*: inputs"):
        whole_run(HERE, cloud, device)


def test_inputs_that_no_message_holds_are_refused(speaking: Speaking) -> None:
    """A message of protobuf has at most 2 GiB."""
    there = server_at("cloud", HostSettings(address=f"grpc://127.0.0.1:{speaking.port}", serves=SERVES))
    with pytest.raises(OutOfMemory, match="2147483648 bytes of inputs are too many for one call"):
        there.run_request("branching", {"inputs": [], "outputs": []}, 2**31)
    there.close()


def test_grpc_that_is_not_installed_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only who names such a server needs it."""
    monkeypatch.setitem(sys.modules, channel.__name__, None)
    with pytest.raises(
        InputError, match=r"host 'cloud' .* over gRPC, which is not installed .*hope-inference\[serve\]"
    ):
        server(9)


def test_grpc_is_for_whole_networks(tmp_path: Path) -> None:
    """No processors are lent over it, and nobody on the way may read what crosses."""
    for address, rest, why in (
        ("grpc://127.0.0.1:9", "", "lends no processors over gRPC"),
        ("grpc://192.0.2.1:9", 'serves = { a = "b" }', r"grpcs://, or plain = true"),
        ("grpcs://192.0.2.1:9/path", 'serves = { a = "b" }', "is no address of a host"),
    ):
        (tmp_path / "hosts.toml").write_text(f'[cloud]\naddress = "{address}"\n{rest}\n')
        with pytest.raises(InputError, match=why):
            read_hosts(tmp_path / "hosts.toml")
