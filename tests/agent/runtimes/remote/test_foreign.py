"""Servers that take files of networks: segments go there by what the protocol has, and by nothing else."""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from agent_sdk import Agent
from agent_sdk.engine import Device, Executor, build_program
from agent_sdk.engine.single import whole_run
from agent_sdk.errors import ExecutionError, ProcessorLost, UnsupportedOp
from agent_sdk.journey.hosts import Hosts
from agent_sdk.machine.soc import read_soc
from agent_sdk.model import read_model
from agent_sdk.model.feeds import draw
from agent_sdk.runtimes.offered import discover
from agent_sdk.runtimes.remote import foreign, processor
from agent_sdk.runtimes.remote.foreign import ForeignHost, host_at
from agent_sdk.runtimes.remote.line import Line
from agent_sdk.runtimes.remote.peer import HttpPeer
from agent_sdk.runtimes.remote.settings import HostSettings
from hope_schema import Missing, MissingLatency, Plan, Transfer, merge
from tests import CAMPAIGN
from tests.agent.engine.generate import random_cuts, random_legal_plan, random_model
from tests.agent.engine.test_executor import Reference, random_inputs
from tests.agent.models import BRANCHING, chain_model, expected
from tests.agent.runtimes.remote.conftest import TOKEN, lent_by
from tests.agent.runtimes.remote.filing import Filing, RefusalError, filing
from tests.agent.server.peers import triton
from tests.agent.server.running import Running


@pytest.fixture
def server() -> Iterator[Filing]:
    """A server that takes files."""
    with filing() as made:
        yield made


def reached(port: int, **settings: object) -> ForeignHost:
    """The server at a port of this machine."""
    found = host_at("cloud", HostSettings.model_validate({"address": f"http://127.0.0.1:{port}", **settings}))
    assert isinstance(found, ForeignHost)
    return found


def computes_segments(
    host: ForeignHost, seed: int, reference: Reference, *, carried: bool, ops: tuple[int, int] = (2, 15)
) -> None:
    """Have random segments of a network computed here and there, and compare with the whole network."""
    rng = random.Random(seed)
    model = random_model(rng, rng.randint(*ops))
    with Device([*discover("ort@0"), lent_by(host)]) as device:
        plan = random_legal_plan(model, [*device.processors.values()], rng, random_cuts(model, rng) if seed % 2 else [])
        program = build_program(plan, model, device.processors)
        if carried:  # by the link's queue, ahead of its reader's turn, where a host keeps it
            far = [one for one in program.segments if one.processor.startswith("cloud:")]
            names = {name for one in far for name in one.segment.inputs if program.memory_of(name) == "host"}
            way = {"source": "host", "target": "cloud:host", "over": "link-cloud", "start_us": 0, "finish_us": 0}
            moves = tuple(Transfer(tensor=name, **way) for name in sorted(names))
            plan = Plan.model_validate(plan.model_copy(update={"transfers": moves}))
            program = build_program(plan, model, device.processors)
        with Executor(program, device) as executor:
            for repeat in range(2):
                feeds = random_inputs(model, seed + repeat)
                outputs, _ = executor.run(feeds)
                for name, right in reference(model, feeds).items():
                    np.testing.assert_allclose(outputs[name], right, atol=1e-4 * max(1.0, np.abs(right).max()))


@pytest.mark.parametrize("seed", range(60 if CAMPAIGN else 6))
def test_random_segments_are_computed_there(seed: int, server: Filing, reference: Reference) -> None:
    """Any placement, order and cuts give the whole network's outputs; all that was loaded is let go of.

    The server asserts that no request says more than the protocol has.
    """
    computes_segments(reached(server.port), seed, reference, carried=seed % 3 > 0)
    assert server.sessions == {}
    assert not [one for one in server.asked if "/v2/hope" in one]


def test_float32_crosses_as_float16_there_too(server: Filing) -> None:
    """What is sent casts by itself, so that any server of the protocol takes it."""
    model = read_model(BRANCHING)
    feed = draw(model, 1)
    host = reached(server.port, precision="fp16")
    with Device([*discover("ort@0"), lent_by(host)]) as device:
        far = device.processors["cloud:onnxruntime"]
        with whole_run(model, device.processors["ort@0"], device) as here, whole_run(model, far, device) as there:
            np.testing.assert_allclose(there.run(feed)[0]["y"], here.run(feed)[0]["y"], rtol=1e-2)


def test_what_ops_take_is_what_its_statistics_say(server: Filing) -> None:
    """However long the way takes; what it refuses is unsupported, what nobody asked for is not measured."""
    server.says_ns = 7_654_000
    model = read_model(BRANCHING)
    host = reached(server.port)
    (one,) = host.offer.processors
    signatures = [each.signature for each in merge(model.graph)]
    rows = tuple(MissingLatency(signature=each, kind=one.kind) for each in dict.fromkeys(signatures[:2]))
    found = host.measure(model, Missing(profile_version=0, latencies=rows), 20.0)
    host.close()
    assert {*found.latencies.signature} == {row.signature for row in rows}
    assert found.latencies.us == (7654.0,) * len(rows)
    assert (found.soc, found.processors) == (f"filing@127.0.0.1:{server.port}", (one,))
    assert server.sessions == {}


def lies(server: Filing, path: str, lie: Callable[[bytes], bytes]) -> None:
    """Have what a server says at such paths spoilt, but for tensors."""
    right = server.answer

    def answer(method: str, asked: str, body: bytes, fields: Any) -> tuple[bytes, bytes]:
        said, tensors = right(method, asked, body, fields)
        return lie(said) if asked.endswith(path) else said, tensors

    server.answer = answer  # type: ignore[method-assign]


def refuse(_: bytes) -> bytes:
    """Say nothing of runs."""
    raise RefusalError(400, "there are no statistics")


COUNTED = itertools.count(10**6, -1)
STATISTICS: dict[str, Callable[[bytes], bytes]] = {
    "go back": lambda said: re.sub(rb'"ns": \d+', b'"ns": %d' % next(COUNTED), said),
    "say that runs take no time": lambda said: re.sub(rb'"ns": \d+', b'"ns": 5', said),
    "say that runs take a day": lambda said: re.sub(rb'"ns": ', b'"ns": 86400000', said),
    "are beyond any number": lambda said: re.sub(rb'"ns": \d+', rb"\g<0>" + b"0" * 400, said),
    "stand still": lambda said: re.sub(rb'"count": \d+', b'"count": 3', said),
    "are of several networks": lambda said: re.sub(rb"\[(.*)\]", rb"[\1, \1]", said),
    "are refused": refuse,
}


@pytest.mark.parametrize("lie", STATISTICS)
def test_statistics_that_cannot_be_are_no_figures(lie: str, server: Filing) -> None:
    """They say neither what an op takes nor that it is unsupported; nothing stays there."""
    server.says_ns = 7_654_321
    lies(server, "/stats", STATISTICS[lie])
    model = read_model(BRANCHING)
    with closing(reached(server.port)) as host:
        (one,) = host.offer.processors
        row = MissingLatency(signature=merge(model.graph)[0].signature, kind=one.kind)
        with pytest.raises(ProcessorLost):
            host.measure(model, Missing(profile_version=0, latencies=(row,)), 20.0)
    assert server.sessions == {}


def test_a_server_whose_name_makes_none_here_is_not_used(server: Filing) -> None:
    """Cut to what a label may have, its name and version can end in what no label ends in."""
    lies(server, "/v2", lambda said: said.replace(b'"filing"', b'"%s"' % (b"a" * 125)).replace(b'"1"', b'"1/2"'))
    with pytest.raises(ProcessorLost, match=r"cannot be described by its name and address: [^\n]+$"):
        reached(server.port)
    assert server.sessions == {}


def test_answers_nested_without_end_are_none(server: Filing, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither what says why a request is refused nor what describes outputs breaks more than its own run."""
    model = read_model(BRANCHING)
    host = reached(server.port)
    with Device([lent_by(host)]) as device, whole_run(model, device.processors["cloud:onnxruntime"], device) as far:
        lies(server, "/infer", lambda _: b"[" * 10**5)
        with pytest.raises(ExecutionError, match="the answer is not as the protocol has it"):
            far.run(draw(model, 1))
        monkeypatch.setattr(Line, "ask", lambda *_: (400, "", b"[" * 10**5))
        with pytest.raises(UnsupportedOp, match="refuses with 400: no reason"):
            host.about()
        monkeypatch.undo()
    assert server.sessions == {}


def test_a_server_that_was_started_anew_is_sent_all_again(server: Filing) -> None:
    """What it has forgotten goes there once more within the run, or the look at the link, that finds that out."""
    model = read_model(BRANCHING)
    feed = draw(model, 1)
    host = reached(server.port)
    with Device([lent_by(host)]) as device, whole_run(model, device.processors["cloud:onnxruntime"], device) as far:
        right = far.run(feed)[0]["y"]
        networks = {*server.sessions}
        assert len(networks) == 2  # the network, and what measures the way
        server.sessions.clear()
        np.testing.assert_array_equal(far.run(feed)[0]["y"], right)
        host.look()
        assert server.sessions.keys() == networks
    assert server.sessions == {}


def test_a_file_that_it_cannot_load_is_an_op_that_it_does_not_have(server: Filing) -> None:
    """The server answers with 500 then, as Triton does: the host has not failed."""
    newer = onnx.load_from_string(BRANCHING)
    newer.opset_import[0].version = 99
    host = reached(server.port)
    with pytest.raises(UnsupportedOp, match="refuses with 500: failed to load"):
        host.send(newer, "onnxruntime")
    assert not host.trying.is_down
    host.close()


def listed(folder: Path, port: int, text: str) -> Hosts:
    """The hosts of a file that names the server."""
    file = folder / "hosts.toml"
    file.write_text(f'[cloud]\naddress = "http://127.0.0.1:{port}"\n{text}\n')
    return Hosts.named(file, read_soc().cores)


REFUSING = {
    "no explicit control": ({"explicit": False}, "refuses with 503: explicit model load"),
    "no repository": ({"extensions": ("binary_tensor_data", "statistics")}, "it has no extension model_repository"),
    "no statistics": ({"extensions": ("binary_tensor_data", "model_repository")}, "it has no extension statistics"),
}


@pytest.mark.parametrize("why", REFUSING)
def test_a_server_that_takes_no_files_stays_a_tier_for_whole_networks(why: str, tmp_path: Path) -> None:
    """That is said once, in one sentence."""
    options, reason = REFUSING[why]
    with filing(**options) as server:
        hosts = listed(tmp_path, server.port, 'serves = { a = "b" }\nprocessors = ["onnxruntime"]')
        (note,) = hosts.notes
        assert note.startswith("host 'cloud' (filing 1) takes no files")
        assert note.endswith("; it is used for its own networks alone")
        assert reason in note
        assert ([one.id for one in hosts.processors()], hosts.asked()) == (["cloud:server"], ((), ()))
        for one in hosts.processors():
            one.close()
        with pytest.raises(ProcessorLost, match=reason):
            reached(server.port)


def test_weights_go_only_where_the_owner_lets_processors_be_used(server: Filing, tmp_path: Path) -> None:
    """A server that is named for what it has is asked about itself, and sent no file."""
    for text, files, ids in (
        ('serves = { a = "b" }', 0, ["cloud:server"]),
        ('serves = { a = "b" }\nprocessors = ["onnxruntime"]', 1, ["cloud:onnxruntime", "cloud:server"]),
        ('processors = ["tensorrt"]', 2, []),
    ):
        hosts = listed(tmp_path, server.port, text)
        assert [one.id for one in hosts.processors()] == ids
        for one in hosts.processors():
            one.close()
        assert sum(one.endswith("/load") for one in server.asked) == files
        assert server.sessions == {}


def test_what_a_killed_agent_left_there_is_unloaded_by_the_next(
    server: Filing, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the second day on, and nothing of others; who is still there sends its networks again and goes on."""
    model = read_model(BRANCHING)
    feed, right = expected(BRANCHING, 3)
    today = foreign._today()
    monkeypatch.setattr(foreign, "_today", lambda: today - 2)
    with (
        Device([*discover("ort@0"), lent_by(reached(server.port))]) as device,
        whole_run(model, device.processors["cloud:onnxruntime"], device) as alive,
    ):
        np.testing.assert_allclose(alive.run(feed)[0]["y"], right["y"], rtol=1e-3)
        old = {*server.sessions}
        assert len(old) == 2
        monkeypatch.setattr(foreign, "_today", lambda: today - 1)
        reached(server.port)  # and is killed
        monkeypatch.setattr(foreign, "_today", lambda: today)
        server.sessions["resnet50"] = server.sessions["hope-20000"] = server.sessions[min(old)]
        others = {*server.sessions} - old
        assert len(others) == 3
        with closing(reached(server.port)) as host:
            assert {*server.sessions} == others | {host._probe}
        np.testing.assert_allclose(alive.run(feed)[0]["y"], right["y"], rtol=1e-3)
    assert {*server.sessions} == others


@pytest.mark.parametrize("said", [None, b"", b"[1]", b'{"name": "a"}'])
def test_a_server_that_does_not_say_what_is_loaded_is_used(said: bytes | None, server: Filing) -> None:
    """What is left there then stays."""

    def spoilt(body: bytes) -> bytes:
        if said is None:
            raise RefusalError(404, "Not Found")
        return said

    lies(server, "/v2/repository/index", spoilt)
    reached(server.port).close()


def test_our_own_hosts_are_known_by_what_they_say(edge: Running) -> None:
    """They have an extension of their own: figures, tensors that stay, and what runs took."""
    found = host_at("edge1", HostSettings(address=f"http://127.0.0.1:{edge.http}", token=TOKEN))
    assert not isinstance(found, ForeignHost)
    assert found.keeps
    found.close()


def test_an_agent_plans_over_it(server: Filing, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hasty: None) -> None:
    """Its figures reach the planner, and what it computes is tried beside all others."""
    monkeypatch.setattr(processor, "LEAST_S", processor.FIRST_S)  # a stall of a busy machine loses no host here
    monkeypatch.setenv("HOPE_CACHE_DIR", str(tmp_path / "own"))
    server.says_ns = 1_000  # so fast that plans are made of it
    feed, right = expected(BRANCHING, 3)
    (tmp_path / "hosts.toml").write_text(f'[cloud]\naddress = "http://127.0.0.1:{server.port}"\n')
    with (
        Agent(processors="ort@0", hosts=tmp_path / "hosts.toml") as agent,
        agent.load(BRANCHING, background=False, all_rivals=True) as session,
    ):
        assert not [note for note in session.notes if "cloud" in note], session.notes
        assert session.plan is not None
        assert [host.name for host in session.plan.hosts] == ["cloud"]
        assert session.plan.single_processor_us["cloud:onnxruntime"] is not None
        np.testing.assert_allclose(session.latest.contenders["cloud:onnxruntime"].run(feed)[0]["y"], right["y"], 1e-3)
        np.testing.assert_allclose(session.run(feed)["y"], right["y"], rtol=1e-3)
    assert server.sessions == {}


def test_triton_computes_segments(tmp_path: Path, reference: Reference, monkeypatch: pytest.MonkeyPatch) -> None:
    """The real one, with explicit control of its models and a backend that runs ONNX."""
    (tmp_path / "branching.onnx").write_bytes(BRANCHING)
    with triton(tmp_path, tmp_path / "branching.onnx", explicit=True) as ports:
        monkeypatch.setattr(foreign, "_today", lambda: 1)
        reached(ports["http"])  # and is killed
        monkeypatch.undo()
        host = reached(ports["http"])
        model = read_model(chain_model(1, 4))
        (one,) = host.offer.processors
        signature = merge(model.graph)[0].signature
        missing = Missing(profile_version=0, latencies=(MissingLatency(signature=signature, kind=one.kind),))
        (us,) = host.measure(model, missing, 20.0).latencies.us
        assert us is not None
        assert us > 0
        computes_segments(host, 0, reference, carried=True, ops=(4, 4))
        left = HttpPeer("cloud", HostSettings(address=f"http://127.0.0.1:{ports['http']}"))
        with closing(left):
            assert "READY" not in left.say("POST", "/v2/repository/index").decode().replace("UNREADY", "")
