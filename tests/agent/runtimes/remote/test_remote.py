"""Segments on another host: they are sent once, compute what they compute here, and are let go of."""

from __future__ import annotations

import itertools
import json
import random
import re
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Literal

import numpy as np
import onnx
import pytest
from onnx import parser
from prometheus_client.parser import text_string_to_metric_families

from agent_sdk.cli import commands as cli
from agent_sdk.engine import Device, Executor, build_program
from agent_sdk.engine.program import Program
from agent_sdk.engine.single import whole_run
from agent_sdk.errors import (
    IllegalPlanError,
    InputError,
    ProcessorError,
    ProcessorLost,
    SegmentFailedError,
    UnsupportedOp,
)
from agent_sdk.model import read_model
from agent_sdk.model.feeds import draw
from agent_sdk.runtimes.offered import discover
from agent_sdk.runtimes.remote.host import RemoteHost
from agent_sdk.runtimes.remote.link import Way
from agent_sdk.runtimes.remote.processor import RemoteExecutable
from agent_sdk.runtimes.remote.settings import HostSettings, read_hosts
from agent_sdk.server.access import Access, Address, Tls
from agent_sdk.server.serving import Server, Settings
from hope_schema import Cut, Host, Plan, PlanRequest, SuperOp, Transfer, merge
from hope_schema.cutgraph import cut_graph
from tests import CAMPAIGN
from tests.agent.engine.generate import plan_of, random_cuts, random_legal_plan, random_model
from tests.agent.engine.test_executor import Reference, random_inputs
from tests.agent.models import BRANCHING, branching_model, chain_model
from tests.agent.runtimes.remote.conftest import TOKEN, Reached, device_with, lent_by, networks_on
from tests.agent.runtimes.remote.relay import Relay
from tests.agent.server.certificates import made_certificate
from tests.agent.server.running import Running, running


def carried_by_link(plan: Plan, program: Program) -> Plan:
    """The plan, with the link carrying whatever goes to the host, as soon as it is there."""
    moves = {
        name: Transfer(tensor=name, source="host", target="edge1:host", over="link-edge1", start_us=0, finish_us=0)
        for one in program.segments
        for name in one.segment.inputs
        if one.processor.startswith("edge1:") and program.memory_of(name) == "host"
    }
    return plan.model_copy(update={"transfers": tuple(moves.values())})


@pytest.mark.parametrize("seed", range(100 if CAMPAIGN else 6))
def test_random_plans_over_two_hosts_are_exact(seed: int, both: Device, reference: Reference) -> None:
    """Any placement, order and cuts on this machine and the other give the whole model's outputs, run after run.

    Bit for bit where nothing is cut: kernels may add up parts in another order.
    """
    rng = random.Random(seed)
    model = random_model(rng, rng.randint(2, 15))
    cuts = random_cuts(model, rng) if seed % 2 else []
    plan = random_legal_plan(model, list(both.processors.values()), rng, cuts)
    program = build_program(plan, model, both.processors)
    if seed % 3:
        program = build_program(carried_by_link(plan, program), model, both.processors)
    with Executor(program, both) as executor:
        for repeat in range(3):
            feeds = random_inputs(model, seed + repeat)
            outputs, _ = executor.run(feeds)
            for name, expected in reference(model, feeds).items():
                most = 1e-4 * max(1.0, np.abs(expected).max()) if cuts else 0.0
                np.testing.assert_allclose(outputs[name], expected, rtol=0.0, atol=most, err_msg=name)


def test_a_hosts_runtime_is_trusted_with_what_it_is_trusted_with_here(tmp_path: Path) -> None:
    """A host that lends OpenVINO: odd floats are seen, an op of no row and an index beyond its tensor are refused."""
    (tmp_path / "tokens").write_text(TOKEN)
    options = ("--lend", "--soc", "edgebox", "--tokens", str(tmp_path / "tokens"), "--processors", "ov@0")
    picking, adding = (
        read_model(
            parser.parse_model(
                '<ir_version: 8, opset_import: ["" : 17]> g (float[4] x, int64[2] i) => '
                f"(float[4] y, {kind}[2] z) {{ t = Constant <value = float[3] {{1, 2, 3}}> () y = Relu (x) {body} }}"
            )
        )
        for kind, body in (("float", "z = Gather (t, i)"), ("int64", "z = Add (i, i)"))
    )
    with running([], tmp_path, *options) as edge, Reached(edge.http) as host:
        remote = lent_by(host)
        with Device([remote]) as device:
            with pytest.raises(UnsupportedOp, match="not trusted"):
                whole_run(adding, remote, device)
            with whole_run(picking, remote, device) as executor:
                feed = {"x": np.arange(4, dtype=np.float32), "i": np.array([2, -1])}
                outputs, trace = executor.run(feed)
                assert outputs["z"].tolist() == [3, 3]
                assert trace.ordinary
                assert not executor.run(feed | {"x": np.full(4, np.nan, np.float32)})[1].ordinary
                with pytest.raises(
                    SegmentFailedError,
                    match="400: an input holds whole numbers beyond",
                ):
                    executor.run(feed | {"i": np.array([0, 2**40])})


def held(host: RemoteHost) -> float:
    """How many tensors stand on the host."""
    return next(
        family.samples[0].value
        for family in text_string_to_metric_families(host.say("GET", "/metrics").decode())
        if family.name.endswith("held_tensors")
    )


def test_tiles_of_a_stack_are_computed_on_several_hosts(host: RemoteHost, relay: Relay) -> None:
    """D3's lossless tiles are chained cuts: each host takes rows of the input, gives rows of the output, no others."""
    model = read_model(chain_model(8, 8, 8, 8, size=30))
    cuts = [Cut(op=f"t{k}", axes=(2,), at=((10, 20),), chained=k > 1) for k in range(1, 5)]
    other = RemoteHost("edge2", HostSettings(address=f"http://127.0.0.1:{relay.port}", token=TOKEN))
    far = [lent_by(one) for one in (host, other)]
    with Device([*discover("ort@0"), *far]) as device:
        supers = merge(cut_graph(model.graph, cuts))
        hands = ("ort@0", "edge1:ort@0", "edge2:ort@0")
        rows: dict[str, list[int]] = {}
        for one in supers:
            if one.ops[0].type == "Conv":
                op, _, region = one.id.partition("[")
                rows.setdefault(op, []).append(int(region.split(":")[1]))

        def where(one: SuperOp) -> str:
            if one.ops[0].type != "Conv":
                return hands[0]
            op, _, region = one.id.partition("[")
            return hands[sorted(rows[op]).index(int(region.split(":")[1]))]

        homes = {k: where(one) for k, one in enumerate(supers)}
        plan = plan_of(model, supers, range(len(supers)), homes, hands, cuts)
        with Executor(build_program(plan, model, device.processors), device) as executor:
            tiles = [one for one in executor.executables if isinstance(one, RemoteExecutable)]
            assert [(len(one.sent), len(one.received)) for one in tiles] == [(1, 1), (1, 1)]
            taken = sorted(one.input_types[one.sent[0]].shape[2] for one in tiles)
            assert taken == [10 + 4, 10 + 4 + 4]  # a row more for each convolution, but not at the border
            assert {one.output_types[one.received[0]].shape[2] for one in tiles} == {10}
            with whole_run(model, device.processors["ort@0"], device) as whole:
                for seed in range(2):
                    feed = draw(model, seed)
                    right = whole.run(feed)[0]["t4"]
                    np.testing.assert_allclose(executor.run(feed)[0]["t4"], right, rtol=1e-4, atol=1e-5)
    other.close()


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_a_band_is_sent_while_the_tile_before_it_is_computed(
    precision: Literal["fp32", "fp16"], edge: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One host takes two tiles in turns, and no answer of a tile is taken before both bands are there.

    The link carries the bands, each once; the answers are those of requests that take them along, bit for bit.
    """
    model = read_model(chain_model(8, 8, size=30))
    cuts = [Cut(op=f"t{k}", axes=(2,), at=((14 if k else 16,),), chained=k > 1) for k in range(3)]
    turns = [{"t0[2:0:16]", "t0[2:16:30]"}, {"t1[2:0:15]", "t2[2:0:14]"}]
    supers = sorted(
        merge(cut_graph(model.graph, cuts)), key=lambda one: [*(one.id in ids for ids in turns)], reverse=True
    )
    where = {k: "ort@0" if one.id in turns[0] else "edge1:ort@0" for k, one in enumerate(supers)}
    with Reached(edge.http, precision=precision) as host, device_with(host) as both:
        plan = plan_of(model, supers, range(len(supers)), where, list(both.processors), cuts)
        common = {"source": "host", "target": "edge1:host", "start_us": 0.0, "finish_us": 0.0}
        dtype = "float16" if precision == "fp16" else None

        def executor(over: str | None) -> Executor:
            moves = tuple(Transfer(tensor=band, over=over, dtype=dtype, **common) for band in sorted(turns[0]))
            return Executor(build_program(plan.model_copy(update={"transfers": moves}), model, both.processors), both)

        feeds = [draw(model, seed) for seed in range(3)]
        with executor(None) as along:
            right = [along.run(feed)[0]["t2"] for feed in feeds]
        both_there, taken, ask = threading.Event(), itertools.count(1), host.ask

        def watched(
            parts: Sequence[bytes | memoryview], into: Sequence[memoryview], within_s: float
        ) -> tuple[Mapping[str, str], bytes]:
            answer = ask(parts, into, within_s)
            request = bytes(parts[0])
            if b'"ahead"' not in request:
                assert both_there.wait(30), "a tile is computed, and the next band is not under way"
            elif not next(taken) % len(turns[0]):
                both_there.set()
            return answer

        with executor("link-edge1") as ahead:
            far = [one for one in ahead.executables if isinstance(one, RemoteExecutable)]
            assert [one.sent for one in far] == [(), ()]
            monkeypatch.setattr(host, "ask", watched)
            for feed, expected in zip(feeds, right, strict=True):
                both_there.clear()
                outputs, trace = ahead.run(feed)
                np.testing.assert_array_equal(outputs["t2"], expected)
                carried = [one for one in trace.spans if one.lane == "link-edge1" and one.kind == "transfer"]
                tiles = [one for one in trace.segments if one.processor == "edge1:ort@0"]
                assert len(carried) == len(tiles) == len(turns[0])
                assert carried[-1].start_us < tiles[0].end_us
            monkeypatch.undo()
        assert held(host) == 0


@pytest.mark.parametrize(
    ("tensor", "source", "target"),
    [("left_r", "edge1:host", "host"), ("stem", "edge1:host", "host"), ("right", "host", "edge1:host")],
)
def test_what_nobody_reads_is_not_carried(tensor: str, source: str, target: str, edge: Running) -> None:
    """A plan may have the link carry what only ops read there that no output depends on, or none."""
    model = read_model(branching_model(channels=9))
    supers = merge(model.graph)
    where = {k: "ort@0" if {"right", "right_s"} & {*one.outputs} else "edge1:ort@0" for k, one in enumerate(supers)}
    with Reached(edge.http) as host, device_with(host) as both:
        plan = plan_of(model, supers, sorted(where), where, list(both.processors))
        plain = build_program(plan, model, both.processors)
        move = Transfer(tensor=tensor, source=source, target=target, over="link-edge1", start_us=0.0, finish_us=0.0)
        program = build_program(plan.model_copy(update={"transfers": (move,)}), model, both.processors)
        assert [one.ops for one in program.work] == [one.ops for one in plain.work]


def test_what_goes_from_one_host_to_another_passes_through_this_one(host: RemoteHost, relay: Relay) -> None:
    """A plan that relays a tensor over both links is carried out, though nothing here reads it."""
    model = read_model(chain_model(4, 4))
    other = RemoteHost("edge2", HostSettings(address=f"http://127.0.0.1:{relay.port}", token=TOKEN))
    far = [lent_by(one) for one in (host, other)]
    supers = merge(model.graph)
    plan = plan_of(model, supers, range(2), {0: "edge1:ort@0", 1: "edge2:ort@0"}, ("edge1:ort@0", "edge2:ort@0"))
    passing = supers[0].outputs[0]
    moves = tuple(
        Transfer(tensor=passing, source=source, target=target, over=over, start_us=0, finish_us=0)
        for source, target, over in (("edge1:host", "host", "link-edge1"), ("host", "edge2:host", "link-edge2"))
    )
    plan = plan.model_copy(update={"transfers": moves})
    with Device([*discover("ort@0"), *far]) as device:
        with (
            Executor(build_program(plan, model, device.processors), device) as executor,
            whole_run(model, device.processors["ort@0"], device) as whole,
        ):
            feed = draw(model, 1)
            (name,) = model.graph.outputs
            np.testing.assert_array_equal(executor.run(feed)[0][name], whole.run(feed)[0][name])
        illegal = plan.model_copy(update={"transfers": moves[1:]})
        with pytest.raises(IllegalPlanError, match="but it is not there"):
            build_program(illegal, model, device.processors)
    other.close()


def test_what_only_the_host_reads_stays_there(both: Device, host: RemoteHost, relay: Relay) -> None:
    """Over four segments no tensor crosses the link twice, nor one that this machine does not read; then all go."""
    model = read_model(branching_model(channels=9))
    supers = merge(model.graph)
    here = {"right", "right_s"}
    where = {k: "ort@0" if here & set(one.outputs) else "edge1:ort@0" for k, one in enumerate(supers)}
    plan = plan_of(model, supers, range(len(supers)), where, list(both.processors))
    with Executor(build_program(plan, model, both.processors), both) as executor:
        far = [one for one in executor.executables if isinstance(one, RemoteExecutable)]
        assert sorted(name for one in far for name in one.sent) == ["right_s", "x"]
        assert sorted(name for one in far for name in one.received) == ["stem_r", "y"]
        with whole_run(model, both.processors["ort@0"], both) as whole:
            for seed in range(3):
                feed = draw(model, seed)
                np.testing.assert_allclose(executor.run(feed)[0]["y"], whole.run(feed)[0]["y"], rtol=1e-5)
        assert held(host) > 0
        relay.tear()
        while held(host):  # until the host has noticed that the connection ended
            time.sleep(0.01)
        executor.run(draw(model, 1))
        assert held(host) > 0
    assert held(host) == 0


def test_who_is_freed_late_takes_no_tensor_of_another_one(both: Device, host: RemoteHost) -> None:
    """Names of tensors come from their buffers: one that was given anew keeps its tensor when its first user ends."""
    model = read_model(branching_model(channels=5))
    supers = merge(model.graph)
    where = {k: "ort@0" if {"stem_r", "right_s"} & set(one.outputs) else "edge1:ort@0" for k, one in enumerate(supers)}
    plan = plan_of(model, supers, range(len(supers)), where, list(both.processors))
    with Executor(build_program(plan, model, both.processors), both) as executor:
        far = [one for one in executor.executables if isinstance(one, RemoteExecutable)]
        stays = next(one for one in far if len(one.received) < len(one.output_types) and one.sent == one.segment.inputs)
        freed = stays.processor.compile(stays.segment)
        types = {**stays.input_types, **stays.output_types}
        buffers = {name: np.zeros(kind.shape, kind.dtype) for name, kind in types.items()}
        inputs, outputs = ({name: buffers[name] for name in names} for names in (stays.input_types, stays.output_types))
        freed.bind(inputs, outputs)
        stays.bind(inputs, outputs)()
        before = held(host)
        freed.close()
        assert held(host) == before > 0
    assert held(host) == 0


def test_a_tensor_that_has_gone_is_an_error_that_names_it(host: RemoteHost) -> None:
    """A run that wants a tensor which does not stand there is refused, as is a name that is none."""
    model = read_model(BRANCHING)
    name = host.send(onnx.load_from_string(BRANCHING), "ort@0")
    for parameters, reason in (({"held": "nothing"}, "409"), ({"held": 3}, "400"), ({"hold": "x" * 200}, "400")):
        [port] = model.graph.inputs
        given = {"name": port, "datatype": "FP32", "shape": list(model.graph.tensor[port].shape)}
        head = json.dumps({"inputs": [given | {"parameters": parameters}]}).encode()
        with pytest.raises(ProcessorError, match=reason):
            host.say("POST", f"/v2/models/{name}/infer", head)
    host.forget(name)


def test_what_is_sent_ahead_is_what_the_network_takes(host: RemoteHost) -> None:
    """An input of another shape, or shorter than it says, is refused before its turn, and does not stay there."""
    model = read_model(BRANCHING)
    name, before = host.send(onnx.load_from_string(BRANCHING), "ort@0"), held(host)
    [port] = model.graph.inputs
    kind = model.graph.tensor[port].type
    for shape, size, reason in (([1], 4, "has shape"), (list(kind.shape), kind.bytes, "the body ends within")):
        told = {"hold": "ahead-of-its-turn", "binary_data_size": size}
        given = {"name": port, "datatype": "FP32", "shape": shape, "parameters": told}
        head = json.dumps({"parameters": {"ahead": True}, "inputs": [given]}).encode()
        with pytest.raises(UnsupportedOp, match=reason):
            host.say("POST", f"/v2/models/{name}/infer", head)
    assert held(host) == before
    host.forget(name)


def test_a_network_is_sent_once_and_let_go_of(both: Device, host: RemoteHost) -> None:
    """Two executors of one network share what was sent; it leaves the host with the second of them."""
    model = read_model(branching_model(channels=7))
    remote = both.processors["edge1:ort@0"]
    before = networks_on(host)
    first = whole_run(model, remote, both)
    sent = networks_on(host) - before
    assert len(sent) == 1
    with whole_run(model, remote, both):
        assert networks_on(host) - before == sent
        first.close()
        assert networks_on(host) - before == sent
    assert networks_on(host) == before


def test_runs_under_way_at_once_answer_their_own_inputs(both: Device) -> None:
    """Several flights of one network over one host do not mix up their tensors."""
    model = read_model(BRANCHING)
    local = whole_run(model, both.processors["ort@0"], both)
    with whole_run(model, both.processors["edge1:ort@0"], both, in_flight=4) as executor, ThreadPoolExecutor(4) as pool:
        feeds = [draw(model, seed) for seed in range(24)]
        found = list(pool.map(lambda feed: executor.run(feed)[0], feeds))
    for feed, outputs in zip(feeds, found, strict=True):
        for name, expected in local.run(feed)[0].items():
            np.testing.assert_array_equal(outputs[name], expected)


def test_one_run_is_sent_while_another_one_is_computed(both: Device, relay: Relay) -> None:
    """Of two runs in flight the second one is at the host before the first one's answer is here."""
    model = read_model(BRANCHING)
    feeds = [draw(model, seed) for seed in range(2)]
    with whole_run(model, both.processors["edge1:ort@0"], both, in_flight=2) as executor, ThreadPoolExecutor(2) as pool:
        right = [executor.run(feed)[0]["y"] for feed in feeds]
        together = threading.Barrier(2)

        def held_back(said: bytes) -> bytes:
            together.wait(30)
            return said

        relay.spoil = held_back
        for found, expected in zip(pool.map(lambda feed: executor.run(feed)[0]["y"], feeds), right, strict=True):
            np.testing.assert_array_equal(found, expected)
        relay.spoil = bytes


def test_the_host_is_described_for_the_planner(host: RemoteHost) -> None:
    """What it offers and the ways there make a request that the planner's contract takes."""
    assert host.offer.soc == "edgebox"
    assert [one.id for one in host.offer.processors] == ["ort@0"]
    asked = Host(name=host.name, soc=host.offer.soc, frequency=host.offer.frequency, processors=("ort@0",))
    links = host.way.links()
    request = PlanRequest(jobs=({"model_hash": "0" * 64},), soc="x", frequency="y", hosts=(asked,), links=links)
    assert {(link.source, link.target) for link in request.links} == {("host", "edge1"), ("edge1", "host")}
    assert all(link.fixed_us > 0 for link in links)


def test_the_command_lists_what_hosts_lend_and_how_far_they_are(
    relay: Relay, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each processor under its host's name, with the way there and what is lost on it: a line a host."""
    monkeypatch.setenv("COLUMNS", "70")
    file = tmp_path / "hosts.toml"
    file.write_text(f'[edge1]\naddress = "http://127.0.0.1:{relay.port}"\ntoken = "{TOKEN}"\n')
    assert cli.main(["devices", "--json", "--hosts", str(file)]) == cli.OK
    listed = {one["id"]: one for one in json.loads(capsys.readouterr().out)["processors"]}
    told = r"edge1: edgebox; \d+\.\d\d ms there and back, \d+ Mbit/s there, \d+ back, \d+\.\d % lost"
    assert re.fullmatch(told, listed["edge1:ort@0"]["details"])
    assert not any("edge1" in one["details"] for name, one in listed.items() if not name.startswith("edge1:"))
    assert cli.main(["devices", "--hosts", str(file)]) == cli.OK
    shown = capsys.readouterr().out
    assert "edge1:ort@0" in shown
    assert len(re.findall(told, shown)) == 1


def test_hosts_behind_one_radio_share_its_link(relay: Relay) -> None:
    """Hosts whose owner names one link keep it busy for one another; without a name each has its own."""
    address = f"http://127.0.0.1:{relay.port}"
    busy = {}
    for name, link in (("edge1", "wlan0"), ("edge2", "wlan0"), ("edge3", None)):
        found = RemoteHost(name, HostSettings(address=address, token=TOKEN, link=link))
        busy[name] = {link.busy for link in found.way.links()}
        found.close()
    assert busy == {"edge1": {"link-wlan0"}, "edge2": {"link-wlan0"}, "edge3": {"link-edge3"}}


def test_a_link_is_followed() -> None:
    """One outlier moves a link's figures little; of small and large messages each figure comes to be what it is."""
    way = Way("edge1", 1000.0, 0.01, 0.02)
    truth = Way("edge1", 3000.0, 0.03, 0.06)
    way.learn(10**5, 10**5, 100 * way.us(10**5, 10**5))
    assert way.fixed_us < 1300.0
    for _ in range(100):
        way.learn(10**5, 10**4, truth.us(10**5, 10**4))
    assert way.us(10**5, 10**4) == pytest.approx(truth.us(10**5, 10**4), rel=0.02)
    rng = random.Random(0)
    for _ in range(1000):
        sent, received = (int(10 ** rng.uniform(2, 6)) for _ in range(2))
        way.learn(sent, received, rng.uniform(0.9, 1.1) * truth.us(sent, received))
    for link, per_byte in zip(way.links(), (truth.there, truth.back), strict=True):
        assert link.us_per_byte == pytest.approx(per_byte, rel=0.15)
        assert link.fixed_us == pytest.approx(truth.fixed_us / 2, rel=0.15)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[edge1]\n", "address"),
        ('[edge1]\naddress = "edge:80"\n', "no address"),
        ('[edge1]\naddress = "http://edge:80"\n', "plain = true"),
        ('[edge1]\naddress = "https://edge/path"\n', "no address"),
        ('[edge1]\naddress = "http://localhost:8"\nprocessors = []\n', "processors"),
        ('[edge1]\naddress = "http://localhost:8"\npasword = "x"\n', "edge1: unknown key 'pasword'; known: address, "),
        ('["edge 1"]\naddress = "http://localhost:8"\n', "edge 1"),
        ("[edge1\n", "cannot be read"),
    ],
)
def test_a_file_of_hosts_that_says_nothing_right_is_refused(text: str, reason: str, tmp_path: Path) -> None:
    """What is missing, unknown, or would be readable on the way is refused in one sentence."""
    (tmp_path / "hosts.toml").write_text(text)
    with pytest.raises(InputError, match=reason):
        read_hosts(tmp_path / "hosts.toml")


def test_a_file_of_hosts_from_another_editor_is_read(tmp_path: Path) -> None:
    """A byte order mark and line ends as Windows has them mean nothing."""
    (tmp_path / "hosts.toml").write_bytes(b'\xef\xbb\xbf[edge1]\r\naddress = "http://localhost:8"\r\n')
    assert read_hosts(tmp_path / "hosts.toml") == {"edge1": HostSettings(address="http://localhost:8")}


def test_a_wrong_token_and_a_host_that_is_not_there_are_told_apart(relay: Relay) -> None:
    """Who has no token is refused with the reason; where nobody listens that is said."""
    with pytest.raises(ProcessorLost, match="401: no token"):
        Reached(relay.port, token="another-token-of-somebody")
    relay.close()
    with pytest.raises(ProcessorLost, match="cannot be reached"):
        RemoteHost("edge1", HostSettings(address=f"http://127.0.0.1:{relay.port}"))


def test_a_processor_that_is_not_lent_is_named(relay: Relay) -> None:
    """Where the owner names processors that the host does not have, it says what there is."""
    settings = HostSettings(address=f"http://127.0.0.1:{relay.port}", token=TOKEN, processors=("cuda:0",))
    with pytest.raises(ProcessorLost, match="lends none of cuda:0, but ort@0"):
        RemoteHost("edge1", settings)


@pytest.mark.parametrize(
    ("days", "trusted", "reason"),
    [(1, True, "lends nothing"), (-1, True, "certificate has expired"), (1, False, "file of hosts: certificate")],
)
def test_a_certificate_is_checked(days: int, trusted: bool, reason: str, tmp_path: Path) -> None:
    """A host is talked to where its certificate is valid and of whom the owner trusts; else that is said."""
    certificate, key = made_certificate(tmp_path, days)
    settings = Settings(Address("127.0.0.1", 0), None, 2**20, 4, Tls(certificate, key))
    with Server([], Access([]), settings) as server:
        address = server.urls[0]
        with pytest.raises(ProcessorError, match=reason):
            RemoteHost("edge1", HostSettings(address=address, certificate=certificate if trusted else None))
