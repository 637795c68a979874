"""An inference whose caller has gone is computed no further, wherever it is by then."""

from __future__ import annotations

import re
import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from agent_sdk import Agent, Session
from agent_sdk.protocol.messages import SERVICE, message
from agent_sdk.server.access import Access, Address, Tls
from agent_sdk.server.connection import CONTINUE
from agent_sdk.server.models import Served
from agent_sdk.server.serving import Server, Settings
from tests.agent.scheduling.answers import occupied
from tests.agent.server.certificates import made_certificate
from tests.agent.server.test_bad_input import IMAGE, good, read_answer
from tests.agent.test_session_shapes import until

Gone = Callable[[socket.socket], None]


@contextmanager
def serving(agent: Agent, session: Session, tls: Tls | None = None) -> Iterator[Server]:
    """A server of this process."""
    here = Address("127.0.0.1", 0)
    served = Served.of_plans("branching", session.plans, agent.jobs)
    with Server([served], Access([]), Settings(here, here, memory=2**26, requests=8, tls=tls, grace_s=5)) as made:
        yield made


def port(server: Server, transport: int) -> int:
    """Of HTTP, or of gRPC."""
    return int(server.urls[transport].rpartition(":")[2])


def outcomes(client: socket.socket) -> dict[str, float]:
    """How many inferences had which outcome, as Prometheus is told."""
    client.sendall(b"GET /metrics HTTP/1.1\r\nhost: localhost\r\n\r\n")
    found = re.findall(r'^hope_inference_seconds_count.*outcome="(\w+)".* (\S+)$', read_answer(client)[1], re.MULTILINE)
    return {outcome: float(count) for outcome, count in found}


def killed(client: socket.socket) -> None:
    """As the system ends a client's connections: what it was sent counts no more."""
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    client.close()


@pytest.mark.parametrize("leaves", [socket.socket.close, killed])
@pytest.mark.parametrize("encrypted", [False, True])
def test_what_nobody_waits_for_is_not_computed(
    returning_agent: Agent, returning_session: Session, tmp_path: Path, leaves: Gone, encrypted: bool
) -> None:
    """A request in the queue is taken out, one that runs is ended at its next border, and others are answered."""
    certificate, key = made_certificate(tmp_path)
    stats = returning_agent.jobs.stats(returning_session.plans)
    before = (stats.cancelled, stats.done)
    with serving(returning_agent, returning_session, Tls(certificate, key) if encrypted else None) as server:
        clients = [socket.create_connection(("127.0.0.1", port(server, 0)), 20) for _ in range(3)]
        if encrypted:
            context = ssl.create_default_context(cafile=certificate)
            clients = [context.wrap_socket(client, server_hostname="localhost") for client in clients]
        runs, goes, stays = clients
        with occupied(returning_agent):
            for waiting, client in enumerate(clients, 1):
                client.sendall(good())
                until(lambda waiting=waiting: returning_agent.jobs.waiting == waiting)
            for left, client in ((2, goes), (1, runs)):
                leaves(client)
                until(lambda left=left: returning_agent.jobs.waiting == left)
        assert read_answer(stays)[0] == 200
        until(lambda: outcomes(stays) == {"ok": 1, "cancelled": 2})
        stays.close()
    assert (stats.cancelled, stats.done) == (before[0] + 2, before[1] + 1)


def test_who_closes_only_its_own_side_is_answered(returning_agent: Agent, returning_session: Session) -> None:
    """It is asked whether it is there, by an answer before the answer."""
    with (
        serving(returning_agent, returning_session) as server,
        socket.create_connection(("127.0.0.1", port(server, 0)), 20) as client,
    ):
        with occupied(returning_agent):
            client.sendall(good())
            client.shutdown(socket.SHUT_WR)
            assert client.recv(100) == CONTINUE
        assert read_answer(client)[0] == 200


def test_a_client_of_an_old_protocol_is_sent_nothing_before_its_answer(
    returning_agent: Agent, returning_session: Session
) -> None:
    """HTTP/1.0 has no answer before the answer, whatever its client has closed."""
    with (
        serving(returning_agent, returning_session) as server,
        socket.create_connection(("127.0.0.1", port(server, 0)), 20) as client,
    ):
        with occupied(returning_agent):
            client.sendall(good().replace(b"HTTP/1.1", b"HTTP/1.0"))
            until(lambda: returning_agent.jobs.waiting == 1)
            [connection] = server._listener._all()
            client.shutdown(socket.SHUT_WR)
            until(lambda: connection._half_closed)
        assert client.recv(12) == b"HTTP/1.1 200"


@pytest.mark.parametrize("call", ["ModelInfer", "ModelStreamInfer"])
def test_a_call_that_is_cancelled_is_not_computed(
    returning_agent: Agent, returning_session: Session, call: str
) -> None:
    """Over gRPC, where its client says so, its time is over, or its connection ends."""
    contents = {"fp32_contents": IMAGE.ravel().tolist()}
    described = {"name": "x", "datatype": "FP32", "shape": IMAGE.shape, "contents": contents}
    asked = message("ModelInferRequest")(model_name="branching", inputs=[described]).SerializeToString()
    stats = returning_agent.jobs.stats(returning_session.plans)
    before = (stats.cancelled, stats.done)
    with (
        serving(returning_agent, returning_session) as server,
        grpc.insecure_channel(f"127.0.0.1:{port(server, 1)}") as channel,
        occupied(returning_agent),
    ):
        calls: list[Any] = []
        for waiting in (1, 2):
            if call == "ModelInfer":
                calls.append(channel.unary_unary(f"/{SERVICE}/{call}").future(asked))
            else:
                calls.append(channel.stream_stream(f"/{SERVICE}/{call}")(iter([asked])))
            until(lambda waiting=waiting: returning_agent.jobs.waiting == waiting)
        calls[1].cancel()
        until(lambda: returning_agent.jobs.waiting == 1)
        channel.close()
        until(lambda: not returning_agent.jobs.waiting)
        with socket.create_connection(("127.0.0.1", port(server, 0)), 20) as client:
            until(lambda: outcomes(client) == {"cancelled": 2})
    assert (stats.cancelled, stats.done) == (before[0] + 2, before[1])
