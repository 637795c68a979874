"""Attacks that nobody named: streams before a token, keys beyond a quota and figures of liars, drawn; bodies are drawn
in ``test_hostile_bodies.py``. A few in every run, many in a campaign.
"""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner_api.cli.serve import build_config
from planner_api.profiles.folding import Folder, estimate
from planner_api.profiles.statistics import VOTES, Statistics
from planner_api.web.protocol import MAX_HEAD_BYTES, PIECE_BYTES
from tests import CAMPAIGN
from tests.planner.samples import Api, chain, enrolled, plan_request, serving
from tests.planner.test_folding import upload
from tests.planner.test_hostile_bodies import forget_peak, peak
from tests.planner.wire import listening, raw

GRAPH = chain()
STARTED = (
    b"", b"GET / HTTP/1.1\r\n", b"GET /healthz HTTP/1.1\r\nhost: a\r\n", b"POST /devices HTTP/1.1\r\nhost: a\r\n",
    b"POST /plans HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n",
    b"POST /models HTTP/1.1\r\nhost: a\r\ncontent-length: 99999999999\r\n\r\n", b"\x16\x03\x01\x02\x00",
)  # fmt: skip
"""How a stream may begin: nothing, heads, bodies, TLS."""
REPEATED = (
    b"a:\r\n", b"x-a: b\r\n", b"x: " + b"y" * 500 + b"\r\n", b"authorization: Bearer x\r\n", b"\r\n", b"\x00", b" ",
    b"z" * 700, b"1;" + b"e" * 90 + b"\r\nx\r\n", b"0\r\n", b"GET /healthz HTTP/1.1\r\nhost: a\r\n\r\n",
    b"transfer-encoding: chunked\r\n", b"content-length: 5\r\n", b"{}", b"\xff\xfe",
)  # fmt: skip


@pytest.fixture(scope="module")
def planner(shared_url: str) -> Iterator[tuple[Api, int]]:
    """A planner that wants tokens, on a port."""
    with (
        serving(shared_url, tokens_required=True, rate_per_address=0) as api,
        listening(api, build_config(api.app, "127.0.0.1", 0)) as port,
    ):
        yield api, port


@settings(max_examples=300 if CAMPAIGN else 15, deadline=None)
@given(st.sampled_from(STARTED), st.lists(st.sampled_from(REPEATED), min_size=1, max_size=4), st.booleans())
def test_a_stream_before_a_token(planner: tuple[Api, int], begin: bytes, units: list[bytes], in_turn: bool) -> None:
    """Whatever repeats without end before a token was shown: others are answered, memory stays, no 5xx is given."""
    _, port = planner
    unit = b"".join(units) if in_turn else units[0]
    more, held = unit * (PIECE_BYTES // len(unit) + 1), forget_peak()
    with socket.create_connection(("127.0.0.1", port), timeout=5) as hostile:
        hostile.settimeout(0.2)
        with suppress(OSError):
            hostile.sendall(begin)
            for _ in range(4 * MAX_HEAD_BYTES // PIECE_BYTES):
                hostile.sendall(more)
        with socket.create_connection(("127.0.0.1", port), timeout=20) as other:
            other.sendall(raw("GET", "/healthz", connection="close"))
            assert other.recv(100).startswith(b"HTTP/1.1 200")
        with suppress(OSError):
            found = hostile.recv(65536)
            assert not found or (found.startswith(b"HTTP/1.1 ") and int(found[9:12]) < 500)
    assert peak() - held < 64 * 2**20


KEYS = [
    {"processors": processors, "method": method}
    for processors in (("ort@0",), ("ort@1",), ("ort@0", "ort@1"))
    for method in ("auto", "greedy", "ilp")
]


@settings(max_examples=20 if CAMPAIGN else 2, deadline=None)
@given(asked=st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, len(KEYS) - 1)), min_size=8, max_size=30))
def test_a_quota_binds_its_device_alone(
    sqlite_template: object, tmp_path_factory: pytest.TempPathFactory, asked: list[tuple[str, int]]
) -> None:
    """Whoever asks for which keys in what order: a new one counts for who asked first, and nobody pays for others."""
    url = f"sqlite:///{tmp_path_factory.mktemp('quota')}/hope.sqlite"
    with serving(url) as api:
        api.learn(GRAPH)
    with serving(url, tokens_required=True, plan_keys_per_day=2) as api:
        headers = {name: enrolled(api, name) for name in "abc"}
        made: set[int] = set()
        used: Counter[str] = Counter()
        for name, key in asked:
            answer = api.post("/plans", plan_request(GRAPH, **KEYS[key]), **headers[name])
            if key in made or used[name] < 2:
                assert answer.status_code == 200, answer.text
                used[name] += key not in made
                made.add(key)
            else:
                assert answer.status_code == 429
                assert "quota plan_keys" in answer.json()["detail"]
                assert int(answer.headers["retry-after"]) > 0


@settings(max_examples=500 if CAMPAIGN else 40, deadline=None)
@given(data=st.data(), honest=st.integers(5, 40), truth=st.floats(1.0, 1e6))
def test_a_minority_decides_no_figure(data: st.DataObject, honest: int, truth: float) -> None:
    """Fewer liars than a quarter of those who vote, whatever they say, when and how often, move no estimate far."""
    liars = data.draw(st.integers(0, (min(honest, VOTES - 8) - 1) // 3), label="liars")
    lie = st.one_of(st.sampled_from([0.0, 1e-6, 3.6e9, truth * 1.04, truth * 1.2]), st.floats(0.0, 3.6e9))
    said = [(f"honest-{n}", truth * data.draw(st.floats(0.99, 1.01))) for n in range(honest)]
    said += [(f"liar-{n}", data.draw(lie)) for n in range(liars) for _ in range(data.draw(st.integers(1, 3)))]
    folder = Folder(Statistics())
    for name, us in data.draw(st.permutations(said), label="order"):
        folder.fold([(name, upload({"op": us}))])
    votes = folder.statistics.latencies
    kept = votes.device[0] != 0
    # Half of the votes lie within 2 % of each other, so what is accepted lies within 4 · 1.48 · 2 % of their middle.
    if 4 * liars < int(kept.sum()):
        assert abs(float(estimate(votes)[0][0]) / truth - 1) < 0.14
