"""Plain servers of the protocol: they have whole networks, and are one more who may answer."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import closing
from itertools import count
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser

from agent_sdk import Agent
from agent_sdk.engine import Device
from agent_sdk.engine.single import whole_run
from agent_sdk.errors import ExecutionError, InputError, ProcessorError, ProcessorLost, UnsupportedOp
from agent_sdk.machine.soc import read_soc
from agent_sdk.model import read_model
from agent_sdk.model.feeds import draw
from agent_sdk.runtimes.base import Segment
from agent_sdk.runtimes.offered import discover
from agent_sdk.runtimes.remote import peer, processor
from agent_sdk.runtimes.remote.foreign import host_at
from agent_sdk.runtimes.remote.served import ServedExecutable, ServedNetworks, server_at
from agent_sdk.runtimes.remote.settings import HostSettings, read_hosts
from tests.agent.models import BRANCHING, branching_model, expected, prepared_of
from tests.agent.runtimes.remote.relay import Relay, Spoil
from tests.agent.server.peers import mlserver, triton
from tests.agent.server.running import Running, running, written

TWO = {
    "two": "(float[4] x, float[4] i) => (float[4] b, float[4] a) { a = Relu (x) b = Neg (i) }",
    "turned": "(float[4] x, float[4] i) => (float[4] a, float[4] b) { a = Relu (x) b = Neg (i) }",
    "less": "(float[4] x) => (float[4] b, float[4] a) { a = Relu (x) b = Neg (x) }",
    "more": "(float[4] x, float[4] i) => (float[4] b, float[4] c) { c = Relu (x) b = Neg (i) }",
    "free": "(float[4] x) => (float[4] b) { t = Constant <value = float[3] {1, 2, 3}> () "
    "k = Cast <to = 7> (x) b = Gather (t, k) }",
}
"""Networks of two inputs and outputs, of which a server has the first."""


def two(name: str) -> onnx.ModelProto:
    """One of ``TWO``."""
    return parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> two {TWO[name]}')


HERE = read_model(BRANCHING, name="eyes")
LARGER = read_model(branching_model(size=20), name="eyes")


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A server that lends nothing: it has the network ``branching``, and others."""
    folder = tmp_path_factory.mktemp("plain")
    other = branching_model()
    weight = other.graph.initializer[0]
    weight.CopyFrom(numpy_helper.from_array(-numpy_helper.to_array(weight), weight.name))
    onnx.save(other, folder / "weighted.onnx")
    onnx.save(two("two"), folder / "two.onnx")
    with running([*written(folder), folder / "weighted.onnx", folder / "two.onnx"], folder) as found:
        yield found
        found.process.kill()  # it may still be planning: how soon it would end is no matter here


@pytest.fixture
def relay(plain: Running) -> Iterator[Relay]:
    """The way to it."""
    made = Relay(plain.http)
    yield made
    made.close()


def server(port: int, scheme: str = "http", **serves: str) -> ServedNetworks:
    """A server at a port of this machine, and what it has."""
    peer = server_at("cloud", HostSettings(address=f"{scheme}://127.0.0.1:{port}", serves=serves))
    return ServedNetworks(peer, serves, frozenset(read_soc().cores))


def answers(port: int, scheme: str = "http") -> None:
    """Have a server at this port answer as this machine does, again and again."""
    cloud = server(port, scheme, eyes="branching")
    feed = draw(HERE, 1)
    with Device([*discover("ort@0"), cloud]) as device:
        with whole_run(HERE, device.processors["ort@0"], device) as here:
            right = here.run(feed)[0]["y"]
        with whole_run(HERE, cloud, device) as far:
            for _ in range(5):
                np.testing.assert_allclose(far.run(feed)[0]["y"], right, rtol=1e-3)
            assert not far.run({"x": np.full_like(feed["x"], np.nan)})[1].ordinary


@pytest.mark.parametrize("scheme", ["http", "grpc"])
def test_a_plain_server_answers(scheme: str, plain: Running) -> None:
    """Nothing is asked of it but what the protocol has."""
    answers(getattr(plain, scheme), scheme)


def test_triton_answers(tmp_path: Path) -> None:
    """The real one, as it is installed."""
    (tmp_path / "branching.onnx").write_bytes(BRANCHING)
    with triton(tmp_path, tmp_path / "branching.onnx") as ports:
        for scheme, port in ports.items():
            answers(port, scheme)
        with pytest.raises(ProcessorLost, match=r"\(triton .*\) takes no files, .*explicit model load"):
            host_at("cloud", HostSettings(address=f"http://127.0.0.1:{ports['http']}"))


def test_a_server_that_takes_no_bytes_is_not_used(tmp_path: Path) -> None:
    """A real MLServer says over HTTP that it has no such extension: one sentence names it."""
    (tmp_path / "branching.onnx").write_bytes(BRANCHING)
    with (
        mlserver(tmp_path, tmp_path / "branching.onnx") as ports,
        pytest.raises(ProcessorLost, match=r"'cloud' \(mlserver [0-9.]+\) takes no tensors as bytes over HTTP"),
    ):
        server(ports["http"], eyes="branching")


def test_a_server_of_ours_that_lends_nothing_is_sent_no_segment(plain: Running) -> None:
    """It is asked like any other server of the protocol, and says so itself."""
    with pytest.raises(ProcessorLost, match=r"takes no files, so that no segment can go there: .* lends nothing"):
        host_at("cloud", HostSettings(address=f"http://127.0.0.1:{plain.http}"))


OTHERS = {
    "another shape": (
        read_model(branching_model(size=20), name="eyes"),
        "branching",
        r"'x' is FP32 .*16, 16\], not FP32",
    ),
    "other tensors": (HERE, "echoes", "has another 'echoes' than 'eyes' is: its input 'x' is missing"),
    "no such model": (HERE, "nothing", "refuses with 404: no network is called 'nothing'"),
    "a third input": (read_model(two("less"), name="eyes"), "two", "it also takes i"),
    "another output": (read_model(two("more"), name="eyes"), "two", "its output 'c' is missing"),
    "an index that nothing bounds": (read_model(two("free"), name="eyes"), "two", "not trusted with op .* its indices"),
    "not named": (read_model(BRANCHING, name="ears"), "branching", "serves no 'ears', but eyes"),
}


@pytest.mark.parametrize("scheme", ["http", "grpc"])
@pytest.mark.parametrize("other", OTHERS)
def test_a_server_with_another_network_is_refused_before_a_run(other: str, scheme: str, plain: Running) -> None:
    """What its metadata says otherwise, or does not say, is told in one sentence."""
    model, there, why = OTHERS[other]
    cloud = server(getattr(plain, scheme), scheme, eyes=there)
    with Device([cloud]) as device, pytest.raises(ProcessorError, match=why):
        whole_run(model, cloud, device)


def test_a_part_of_a_network_is_refused(plain: Running) -> None:
    """The server has it as a whole: no plan may mean a part of it."""
    cloud = server(plain.http, eyes="branching")
    last = HERE.graph.topological_ops[-1]
    with Device([cloud]), pytest.raises(UnsupportedOp, match="has 'eyes' only as a whole"):
        cloud.compile(Segment.plain(HERE, [last], last.inputs, last.outputs))


@pytest.mark.parametrize("scheme", ["http", "grpc"])
def test_outputs_are_asked_for_in_the_server_s_order(scheme: str, plain: Running) -> None:
    """What is read of an answer goes where it belongs, however the network here has its outputs."""
    cloud, turned = server(getattr(plain, scheme), scheme, eyes="two"), read_model(two("turned"), name="eyes")
    with Device([cloud]) as device, whole_run(turned, cloud, device) as far:
        (one,) = far.executables
        assert isinstance(one, ServedExecutable)
        assert one.received == ("b", "a")
        found = far.run({"x": np.full(4, 2, np.float32), "i": np.full(4, 3, np.float32)})[0]
        assert (found["a"].tolist(), found["b"].tolist()) == ([2.0] * 4, [-3.0] * 4)


@pytest.mark.parametrize("scheme", ["http", "grpc"])
def test_a_link_that_loses_packets_gives_right_answers_or_none(
    scheme: str, plain: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every twentieth piece comes a retransmission later: no run hangs, and none takes a late answer for its own."""
    monkeypatch.setattr(peer, "RETRY_S", 0.0)
    relay, pieces, waits = Relay(getattr(plain, scheme)), count(1), threading.Event()

    def lose(said: bytes) -> bytes:
        if next(pieces) % 20 == 0:
            waits.wait(0.2)
        return said

    cloud = server(relay.port, scheme, eyes="branching")
    relay.spoil = lose
    why: list[str] = []
    with Device([*discover("ort@0"), cloud]) as device:
        here, far = (whole_run(HERE, device.processors[name], device) for name in ("ort@0", cloud.id))
        with here, far:
            for run in range(40):
                feed = draw(HERE, run)
                try:
                    found = far.run(feed)[0]["y"]
                except ExecutionError as error:
                    why.append(str(error))
                else:
                    np.testing.assert_allclose(found, here.run(feed)[0]["y"], rtol=1e-3)
    relay.close()
    assert len(why) < 40
    assert all("did not answer within" in one for one in why), why


LIES: dict[str, tuple[Spoil, str]] = {
    "nothing of itself": (
        lambda said: said.replace(b'"version"', b'"virsion"'),
        "describes itself otherwise than this agent knows it",
    ),
    "no bytes": (lambda said: said.replace(b"binary_", b"string_"), "takes no tensors as bytes over HTTP"),
    "no JSON": (lambda said: said.replace(b"{", b"["), "describes itself otherwise than this agent knows it"),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_server_that_is_none_is_not_used(lie: str, relay: Relay) -> None:
    """What it says of itself is looked at before it is believed."""
    relay.spoil, why = LIES[lie]
    with pytest.raises(ProcessorLost, match=why):
        server(relay.port, eyes="branching")


CHANGES: dict[str, tuple[bytes, bytes, str]] = {
    "another version": (rb'("model_version": *)"1"', rb'\1"2"', "version 2 answers now, and 1 was judged"),
    "another model": (rb'("model_name": *)"branching"', rb'\1"blanching"', "the answer is another network's"),
    "another shape": (rb'("shape": *)\[1(, *)10\]', rb"\1[10\g<2>1]", "instead of"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_model_that_changes_there_answers_no_more(change: str, relay: Relay) -> None:
    """Each answer is of the model that was judged, or this machine answers the same request."""
    cloud = server(relay.port, eyes="branching")
    feed = draw(HERE, 1)
    old, new, why = CHANGES[change]
    with Device([*discover("ort@0"), cloud]) as device:
        contenders = {name: whole_run(HERE, device.processors[name], device) for name in ("ort@0", cloud.id)}
        right = contenders["ort@0"].run(feed)[0]["y"]
        with closing(prepared_of(contenders, {"ort@0": 1e6, cloud.id: 1.0})) as serving:
            np.testing.assert_allclose(serving.run(feed)[0]["y"], right, rtol=1e-3)
            assert serving.answered == {cloud.id: 1}
            relay.spoil = lambda said: re.sub(old, new, said)
            np.testing.assert_array_equal(serving.run(feed)[0]["y"], right)
            assert serving.current == "ort@0"
            assert why in serving.changes[-1]


def hosts(folder: Path, port: int, there: str) -> Path:
    """A file that names a server and its network."""
    (folder / "hosts.toml").write_text(
        f'[cloud]\naddress = "http://127.0.0.1:{port}"\nserves = {{ branching = "{there}" }}\n'
    )
    return folder / "hosts.toml"


def test_an_agent_takes_it_as_one_more_contender(
    plain: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hasty: None
) -> None:
    """It is tried beside all others, also where an earlier start knew nothing of it, and its answers are judged."""
    monkeypatch.setattr(processor, "LEAST_S", processor.FIRST_S)  # a stall of a busy machine loses no host here
    monkeypatch.setenv("HOPE_CACHE_DIR", str(tmp_path / "own"))
    feed, right = expected(BRANCHING, 3)
    with Agent(processors="ort@0") as agent, agent.load(BRANCHING, background=False) as session:
        assert "cloud:server" not in session.latest.contenders
    with (
        Agent(processors="ort@0", hosts=hosts(tmp_path, plain.http, "branching")) as agent,
        agent.load(BRANCHING, background=False, all_rivals=True) as session,
    ):
        serving = session.latest
        assert serving.quiet_us["cloud:server"] > 0
        np.testing.assert_allclose(serving.contenders["cloud:server"].run(feed)[0]["y"], right["y"], rtol=1e-3)
        np.testing.assert_allclose(session.run(feed)["y"], right["y"], rtol=1e-3)
    for other, why in (("echoes", "its input 'x' is missing"), ("weighted", "of the largest value")):
        with (
            Agent(processors="ort@0", hosts=hosts(tmp_path, plain.http, other)) as agent,
            agent.load(BRANCHING, background=False, all_rivals=True) as session,
        ):
            assert "cloud:server" not in session.latest.contenders
            assert [note for note in session.notes if "'cloud:server' cannot answer here" in note and why in note], (
                session.notes
            )
            np.testing.assert_allclose(session.run(feed)["y"], right["y"], rtol=1e-3)


def test_a_host_lends_or_serves(tmp_path: Path) -> None:
    """An entry that says what only those have that lend, or names nothing, is refused with its place in the file."""
    for text in ('serves = { a = "b" }\nlink = "wlan0"', "serves = {}", 'serves = { a = "b/c" }'):
        (tmp_path / "hosts.toml").write_text(f'[cloud]\naddress = "http://127.0.0.1:9"\n{text}\n')
        with pytest.raises(InputError, match="cloud"):
            read_hosts(tmp_path / "hosts.toml")
