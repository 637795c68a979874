"""An agent with a host beside it: it plans with both, answers right, and goes on when the host has gone."""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from agent_sdk import Agent
from agent_sdk.engine import build_program
from agent_sdk.engine.single import single_processor_plan
from agent_sdk.errors import InputError
from agent_sdk.journey import drift
from agent_sdk.journey.planfile import TravellingPlan, write_plan
from agent_sdk.model import read_model
from agent_sdk.scheduling.job import Job
from hope_schema import Plan
from tests.agent.models import BRANCHING, expected
from tests.agent.runtimes.remote.relay import Relay
from tests.agent.runtimes.remote.test_halved import all_halved
from tests.agent.server.running import running


def test_a_plan_is_made_over_hosts_and_outlives_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hasty: None
) -> None:
    """The planner is asked with the host's figures and links; killed, the host is answered for by this machine.

    A plan that lets float32 cross as float16 answers with its error noted, and within it. More runs than the host can
    answer are refused, not queued without end. Hosts of one kind may lend different processors.
    """
    monkeypatch.setenv("HOPE_CACHE_DIR", str(tmp_path / "own"))
    feed, right = expected(BRANCHING, 3)
    most = 2e-3 * np.abs(right["y"]).max()
    alike = "--lend", "--soc", "edgebox"
    with (
        running([], tmp_path / "edge", *alike) as edge,
        running([], tmp_path / "other", *alike, "--processors", "ort@1") as other,
    ):
        hosts = tmp_path / "hosts.toml"
        hosts.write_text(
            f'[edge1]\naddress = "http://127.0.0.1:{edge.http}"\nprecision = "fp16"\n'
            '[edge2]\naddress = "http://127.0.0.1:9"\n'
            f'[edge3]\naddress = "http://127.0.0.1:{other.http}"\nprecision = "fp16"\n'
        )
        with Agent(processors="ort@0", hosts=hosts) as agent, agent.load(BRANCHING, background=False) as session:
            assert "edge1:ort@0" in agent.device.processors
            served = session.latest.obtained.served
            assert served is not None, session.notes
            kinds = [(host.name, host.soc) for host in served.reply.plan.hosts]
            assert kinds == [("edge1", "edgebox"), ("edge3", "edgebox")]
            assert all(link.float16_us_per_byte is not None for link in served.reply.plan.links)
            assert {"edge1:ort@0", "edge3:ort@1"} <= {*served.reply.plan.single_processor_us}
            assert any("edge2" in note for note in session.notes)
            agent.export_plan(session, tmp_path / "plan")
            write_plan(tmp_path / "plan", on_the_edge_alone(tmp_path / "plan", agent))
            with agent.load(BRANCHING, background=False, plan=tmp_path / "plan") as far:
                (note,) = (note for note in far.notes if "float16" in note)
                assert re.search(r"edge1 as float16.* within [0-9.]+e-0[3-6] of", note)
                np.testing.assert_allclose(far.run(feed)["y"], right["y"], atol=most)
                monkeypatch.setattr(agent.jobs, "_most", FEW)
                jobs: list[Job] = []
                waiting: list[int] = []
                with agent.stream(far, dict(feed), every_ms=0.05, told=jobs.append) as stream:
                    until(lambda: stream.refused and len(jobs) > FEW, lambda: waiting.append(len(agent.jobs._jobs)))
                assert max(waiting) <= FEW
                for job in list(jobs):
                    np.testing.assert_allclose(job.result(60)["y"], right["y"], atol=most)
                edge.process.send_signal(signal.SIGKILL)
                for own in (session, far):
                    for _ in range(3):
                        np.testing.assert_allclose(own.run(feed)["y"], right["y"], atol=most)


FEW = 4
"""Runs that may wait."""


def on_the_edge_alone(file: Path, agent: Agent) -> TravellingPlan:
    """What a plan file holds, with a plan that has all of it computed on the host, where float16 crosses to."""
    given = TravellingPlan.model_validate_json(file.read_bytes().partition(b"\n")[2])
    model, far = read_model(BRANCHING), agent.device.processors["edge1:ort@0"]
    plan = single_processor_plan(model.graph, far.id, soc=given.reply.plan.soc, frequency=given.reply.plan.frequency)
    plan = all_halved(plan, build_program(plan, model, agent.device.processors))
    changed = {"kinds": {far.id: far.spec.kind}, "trial_us": {"plan": 1.0, "ort@0": 1e6, "edge3:ort@1": 1e6}}
    return given.model_copy(update={"reply": given.reply.model_copy(update={"plan": plan}), **changed})


def until(holds: Callable[[], object], run: Callable[[], None]) -> None:
    """Run on until something holds."""
    end = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < end
        run()


def test_plans_follow_links_and_hosts_that_come_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hasty: None
) -> None:
    """A link that slows down, a host that goes and comes back: each is planned for anew, and no request is lost.

    A plan that came in a file stays as it is.
    """
    monkeypatch.setattr(drift, "LOOK_S", 0.2)
    monkeypatch.setenv("HOPE_CACHE_DIR", str(tmp_path / "own"))
    with running([], tmp_path / "edge", "--lend", "--soc", "edgebox") as edge:
        relay = Relay(edge.http)
        hosts = tmp_path / "hosts.toml"
        hosts.write_text(f'[edge1]\naddress = "http://127.0.0.1:{relay.port}"\n')
        with Agent(processors="ort@0", hosts=hosts) as agent, agent.load(BRANCHING, background=False) as session:
            feed, right = expected(BRANCHING, 3)

            def run() -> None:
                np.testing.assert_allclose(session.run(feed)["y"], right["y"], rtol=1e-4)

            def plan() -> Plan:
                found = session.latest.obtained.plan
                assert found is not None
                return found

            def slower(than_us: float) -> Callable[[bytes], bytes]:
                def slowly(said: bytes) -> bytes:
                    time.sleep(max(0.02, 4e-6 * than_us))
                    return said

                return slowly

            before = plan().links[0].fixed_us
            relay.spoil = slower(before)
            until(lambda: plan().links[0].fixed_us > 2 * before, run)
            relay.spoil = lambda _: None
            until(lambda: not plan().hosts, run)
            relay.spoil = bytes
            until(lambda: plan().hosts, run)
            agent.export_plan(session, tmp_path / "plan")
            with agent.load(BRANCHING, plan=tmp_path / "plan") as still:
                until(lambda: still.ready, run)
                given, before = still.latest.obtained.plan, plan().links[0].fixed_us
                relay.spoil = slower(before)
                until(lambda: plan().links[0].fixed_us > 2 * before, run)
                assert still.latest.obtained.plan is given
            relay.spoil = bytes
        relay.close()


def test_a_file_that_names_no_hosts_is_refused(tmp_path: Path) -> None:
    """An agent whose file of hosts cannot be read does not begin without them in silence."""
    with pytest.raises(InputError, match=r"nothing\.toml' cannot be read: No such file or directory$"):
        Agent(processors="ort@0", hosts=tmp_path / "nothing.toml", cache=tmp_path)
