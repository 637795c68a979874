"""A planner proves to its devices, at its own addresses alone, that it is the one that knows their tokens."""

from __future__ import annotations

import ipaddress
import json
import secrets
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from agent_sdk import Agent
from agent_sdk.cli import commands as agent_cli
from agent_sdk.errors import AuthenticationError, NotFoundError, PlannerUnavailableError
from agent_sdk.planner.client import PlannerClient
from agent_sdk.planner.identity import device_id, kept_tokens, stored_token
from agent_sdk.planner.recognise import recognising
from hope_schema import DeviceReport, NewModelVersion, Proof, ProofRequest
from hope_schema.proof import Address, address_of, hash_token, prove
from planner_api.cli.serve import build_config
from planner_api.settings import Settings
from tests.planner.samples import FREQUENCY, SOC, Api, admin_token, bearer, chain, enrolled, issue, serving
from tests.planner.wire import listening

HOME = "https://planner.example"
REPORT = DeviceReport(soc=SOC, frequency=FREQUENCY)


def question(device: str = "device-1", address: str = HOME) -> ProofRequest:
    """What a device asks, with a nonce of its own."""
    return ProofRequest(nonce=secrets.token_hex(32), device_id=device, address=address)


def ask(api: Api, request: ProofRequest) -> Proof:
    """The planner's answer; nobody shows it a token."""
    response = api.post("/devices/proof", request)
    assert response.status_code == 200, response.text
    return Proof.model_validate_json(response.content)


def token_of(header: dict[str, str]) -> str:
    """The token in a header."""
    return header["authorization"].split()[1]


pytestmark = [pytest.mark.above_databases, pytest.mark.planner(tokens_required=True, addresses=HOME)]


def test_who_knows_the_token_proves_it(api: Api) -> None:
    """The answer is checked by the device's token and by no other's."""
    token, other = (token_of(enrolled(api, name)) for name in ("device-1", "device-2"))
    request = question()
    answer = ask(api, request)
    assert answer.proof == prove(hash_token(token), request, answer.salt)
    assert answer.proof != prove(hash_token(other), request, answer.salt)


def test_a_proof_is_for_one_question() -> None:
    """Whatever is changed of what was asked, of the salt or of the token, it is another proof."""
    request, salt, token_hash = question(), "0" * 64, hash_token("token")
    changes: tuple[dict[str, str], ...] = (
        {"nonce": "1" * 64},
        {"device_id": "device-2"},
        {"address": HOME + ":8443"},
    )
    proofs = [prove(token_hash, request.model_copy(update=change), salt) for change in ({}, *changes)]
    proofs += [prove(token_hash, request, "1" * 64), prove(hash_token("other"), request, salt)]
    assert len(set(proofs)) == len(proofs)


def test_who_is_known_is_not_told(api: Api, admin: dict[str, str]) -> None:
    """Known, unknown and revoked devices get answers of one form, new ones each time; only the known one's holds."""
    known, revoked = (token_of(enrolled(api, name)) for name in ("device-1", "device-2"))
    assert api.client.delete("/devices/device-2", headers=admin).status_code == 204
    for name, token in (("device-1", known), ("device-2", revoked), ("device-3", known)):
        request = question(name)
        responses = [api.post("/devices/proof", request) for _ in range(3)]
        assert {response.status_code for response in responses} == {200}
        assert len({len(response.content) for response in responses}) == 1
        assert {name for response in responses for name in response.headers} == set(responses[0].headers)
        answers = [Proof.model_validate_json(response.content) for response in responses]
        assert len({text for answer in answers for text in (answer.salt, answer.proof)}) == 6
        held = {answer.proof == prove(hash_token(token), request, answer.salt) for answer in answers}
        assert held == {name == "device-1"}


def test_it_proves_itself_at_its_own_addresses_alone(api: Api, database_url: str) -> None:
    """Elsewhere the answer is a 404, the same for whoever is known; a planner without addresses proves nothing."""
    enrolled(api, "device-1")
    for address in ("https://planner.example:8443", "http://planner.example", "https://example"):
        refused = [api.post("/devices/proof", question(name, address)) for name in ("device-1", "device-2")]
        assert [response.status_code for response in refused] == [404, 404]
        assert len({response.json()["detail"] for response in refused}) == 1
        assert refused[0].json()["type"] == "urn:hope:address-unknown"
    with serving(database_url, tokens_required=True) as homeless:
        assert homeless.post("/devices/proof", question()).status_code == 404


ODD: tuple[dict[str, Any], ...] = (
    {"nonce": "0" * 63},
    {"nonce": "0" * 65},
    {"nonce": "G" * 64},
    {"nonce": 0},
    {"nonce": None},
    {"device_id": ""},
    {"device_id": "d" * 129},
    {"device_id": "a b"},
    {"address": ""},
    {"address": "planner.example"},
    {"address": "ftp://planner.example"},
    {"address": "https://PLANNER.example"},
    {"address": "https://planner.example/"},
    {"address": "https://planner.example\n"},
    {"address": "https://user@planner.example"},
    {"address": "https://planner.example:0"},
    {"address": "https://" + "a" * 300},
    {"token": "hope_d_"},
)


def test_odd_questions_are_refused(api: Api) -> None:
    """What is not the contract's is a 422, what is no JSON a 400, what is too long a 413; none costs a query."""
    whole = question().model_dump()
    for change in ODD:
        assert api.post("/devices/proof", json.dumps({**whole, **change}).encode()).status_code == 422, change
    for gone in whole:
        body = {name: value for name, value in whole.items() if name != gone}
        assert api.post("/devices/proof", json.dumps(body).encode()).status_code == 422
    assert api.post("/devices/proof", b"{").status_code == 400
    assert api.post("/devices/proof", question().model_dump_json().encode() + b" " * 2048).status_code == 413


def test_questions_count_against_their_address(sqlite_url: str) -> None:
    """Beyond what an address may ask without a token it is refused, whatever is sent with the question."""
    with serving(sqlite_url, tokens_required=True, addresses=HOME, rate_per_address=0.001, burst_per_address=3) as api:
        mine = enrolled(api, "device-1")
        assert api.client.get("/devices/device-1", headers=mine).status_code == 200
        codes = [api.post("/devices/proof", question(), **mine).status_code for _ in range(4)]
        assert codes == [200, 200, 200, 429]
        assert api.client.get("/devices/device-1", headers=mine).status_code == 200


class Relay(NamedTuple):
    """Somebody at another address who passes on what is asked there; ``heard`` are the headers of it."""

    url: str
    heard: list[tuple[str, dict[str, str]]]


@contextmanager
def relaying(home: str, change: Callable[[bytes], bytes]) -> Iterator[Relay]:
    """Pass requests on to the planner at ``home``, with their bodies changed, and its answers back."""
    heard: list[tuple[str, dict[str, str]]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            heard.append((self.path, {name.lower(): value for name, value in self.headers.items()}))
            body = self.rfile.read(int(self.headers["content-length"]))
            answer = httpx.post(home + self.path, content=change(body), headers={"content-type": "application/json"})
            self.send_response(answer.status_code)
            self.send_header("content-type", answer.headers["content-type"])
            self.end_headers()
            self.wfile.write(answer.content)

        def do_PUT(self) -> None:
            self.do_POST()

        def log_message(self, *_: Any) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield Relay(f"http://127.0.0.1:{server.server_port}", heard)
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class Home(NamedTuple):
    """A planner behind two real addresses, and a device's directory with its token for the first of them."""

    api: Api
    first: str
    second: str
    state: Path

    def report(self, url: str) -> None:
        """Do what takes the device's token, as an agent at this URL does it."""
        opening = partial(PlannerClient, attempts=1)
        name = device_id(self.state)
        with recognising(opening, url, self.state, name) as planner:
            planner.report(name, REPORT)


@pytest.fixture
def home(database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Home]:
    """A planner on two ports, both of which are its addresses, where a device enrolled by the command line."""
    monkeypatch.setenv("HOPE_CACHE_DIR", str(tmp_path / "state"))
    monkeypatch.delenv("HOPE_TOKEN", raising=False)
    claim = issue(database_url, "claim", uses=1)
    with serving(database_url, tokens_required=True) as api, ExitStack() as open_:
        ports = [open_.enter_context(listening(api, build_config(api.app, "127.0.0.1", 0))) for _ in range(2)]
        first, second = (f"http://127.0.0.1:{port}" for port in ports)
        api.app.planner.settings.addresses = Settings(addresses=f"{first}, {second}/").addresses
        assert agent_cli.main(["enrol", "--planner", first, "--claim", claim]) == agent_cli.OK
        yield Home(api, first, second, tmp_path / "state")


def test_a_planner_that_moved_is_recognised(home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    """At its other address the agent uses the token it has, keeps it for there, and needs no claim to enrol."""
    token = stored_token(home.state, home.first)
    assert token is not None
    assert stored_token(home.state, home.second) is None
    home.report(home.second)
    assert stored_token(home.state, home.second) == token
    name = device_id(home.state)
    capsys.readouterr()
    assert agent_cli.main(["enrol", "--planner", home.second]) == agent_cli.OK
    assert f"{name} is enrolled there already" in capsys.readouterr().out


def test_who_is_enrolled_already_is_told_so(home: Home, database_url: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Where the planner cannot prove itself, the token kept for its address says it; without one that is a refusal."""
    home.api.app.planner.settings.addresses = frozenset()
    enrol = ["enrol", "--planner", home.first, "--claim", issue(database_url, "claim")]
    assert agent_cli.main(enrol) == agent_cli.OK
    assert "is enrolled there already" in capsys.readouterr().out
    shutil.rmtree(home.state / "tokens")
    assert agent_cli.main(enrol) == agent_cli.FAILED
    assert "an admin can revoke it" in capsys.readouterr().err


def test_an_agent_recognises_its_planner(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing but the URL changes, whatever token the shell holds: ``Agent`` speaks as the device that it is."""
    monkeypatch.setenv("HOPE_TOKEN", admin_token(home.api))
    with Agent(home.second, processors="ort@0", cache=home.state) as agent:
        assert agent._supplier.tell(agent.device_id, agent.soc, []) == ""
    assert stored_token(home.state, home.second) == stored_token(home.state, home.first)


def test_an_application_enrols_without_the_command_line(home: Home, database_url: str, tmp_path: Path) -> None:
    """``Agent.enrol`` keeps the token where agents of that cache find it; an admin's in its place is told of."""
    state = tmp_path / "application"
    name = Agent.enrol(home.first, issue(database_url, "claim"), cache=state)
    assert Agent.enrol(home.first, "", cache=state) == name
    with Agent(home.first, processors="ort@0", cache=state) as agent:
        assert (agent.device_id, agent._services.notes) == (name, ())
    with Agent(home.first, token=admin_token(home.api), processors="ort@0", cache=state) as agent:
        (note,) = agent._services.notes
        assert "as an admin, not as this device" in note


def test_an_application_asks_which_version_it_gets(home: Home) -> None:
    """With its device's token it resolves an alias, a number and a name; what has no such name is not found."""
    admin = bearer(admin_token(home.api))
    for graph in (chain(3, "first"), chain(4, "second")):
        assert home.api.post("/models", graph, **admin).status_code == 201
        added = NewModelVersion(model_hash=graph.model_hash)
        assert home.api.post("/names/detector/versions", added, **admin).status_code == 201
    home.api.client.put("/names/detector/aliases/live", json={"version": 1}, headers=admin)
    with Agent(home.first, processors="ort@0", cache=home.state) as agent:
        live = agent.resolve("detector@live")
        assert (live.version, live.model_hash) == (1, chain(3, "first").model_hash)
        assert [agent.resolve(name).version for name in ("detector:1", "detector")] == [1, 2]
        with pytest.raises(NotFoundError, match="has no alias 'none'"):
            agent.resolve("detector@none")


def test_a_relay_gets_nothing(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether it passes the question on as it is or as if it came from home, it proves nothing and sees no token."""

    def as_if_at_home(body: bytes) -> bytes:
        asked = json.loads(body)
        return json.dumps({**asked, "address": home.first} if "address" in asked else asked).encode()

    token = stored_token(home.state, home.first)
    for change in (bytes, as_if_at_home):
        with relaying(home.first, change) as relay:
            with pytest.raises(AuthenticationError, match=f"enrolled at {home.first}: ask there, or name .*HOPE_ADDR"):
                home.report(relay.url)
            assert stored_token(home.state, relay.url) is None
            with monkeypatch.context() as changed:
                changed.setenv("HOPE_TOKEN", "an-admin-s")
                assert agent_cli.main(["enrol", "--planner", relay.url]) == agent_cli.BAD_INPUT
        assert [path for path, _ in relay.heard].count("/devices/proof") == 2
        assert not [headers for _, headers in relay.heard if "authorization" in headers]
    assert set(kept_tokens(home.state)) == {token}


def test_a_device_that_was_revoked_is_told_what_to_do(home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    """Its token proves nothing any more: it is asked for a claim, and enrols with one."""
    admin = bearer(admin_token(home.api))
    name = device_id(home.state)
    assert home.api.client.delete(f"/devices/{name}", headers=admin).status_code == 204
    with pytest.raises(AuthenticationError):
        home.report(home.second)
    assert agent_cli.main(["enrol", "--planner", home.second]) == agent_cli.BAD_INPUT
    assert "an enrolment needs a claim" in capsys.readouterr().err
    claim = issue(home.api.app.planner.settings.database_url, "claim")
    assert agent_cli.main(["enrol", "--planner", home.second, "--claim", claim]) == agent_cli.OK
    home.report(home.second)


def test_a_planner_that_is_away_is_asked_again(home: Home) -> None:
    """Nobody answers: that is no refusal, so nothing is sent without a token meanwhile."""
    with pytest.raises(PlannerUnavailableError):
        home.report("http://127.0.0.1:9")
    home.report(home.second)


PORTS = {"http": 80, "https": 443}
HOSTS = st.from_regex(r"[a-z0-9]([a-z0-9.\-]{0,20}[a-z0-9])?", fullmatch=True) | st.ip_addresses()
PLACES = st.tuples(st.sampled_from(sorted(PORTS)), HOSTS, st.integers(1, 65535) | st.sampled_from([80, 443]))
Place = tuple[str, str | ipaddress.IPv4Address | ipaddress.IPv6Address, int]


def spellings(place: Place) -> Iterator[str]:
    """Ways to write where a planner is."""
    scheme, host, port = place
    names = [str(host)]
    if isinstance(host, ipaddress.IPv6Address):
        names = [f"[{host.compressed}]", f"[{host.exploded}]"]
    for name in names:
        for url in [f"{scheme}://{name}:{port}"] + [f"{scheme}://{name}"] * (port == PORTS[scheme]):
            yield from (url, url + "/", url.upper())


@given(PLACES)
def test_an_address_has_one_spelling(place: Place) -> None:
    """However it is written, it comes out the same, once more too, and is the contract's."""
    (address,) = {address_of(url) for url in spellings(place)}
    assert address_of(address) == TypeAdapter(Address).validate_python(address) == address


@given(one=PLACES, other=PLACES)
def test_two_places_have_two_addresses(one: Place, other: Place) -> None:
    """Another scheme, host or port is another address."""
    assert (address_of(next(spellings(one))) == address_of(next(spellings(other)))) == (
        (one[0], str(one[1]), one[2]) == (other[0], str(other[1]), other[2])
    )


@given(st.text(alphabet=st.sampled_from("htps:/[]@?#%\\.a1Kſ \n\t-_0"), max_size=30) | st.text(max_size=20))
def test_what_is_more_than_an_address_is_none(tail: str) -> None:
    """Users, paths, blanks, letters beyond ASCII: what is taken for an address names the host that is called."""
    try:
        address = address_of(f"https://{tail}")
    except ValueError:
        return
    called, named = httpx.URL(f"https://{tail}"), httpx.URL(address)
    assert (called.raw_host, called.port, called.userinfo) == (named.raw_host, named.port, b"")
    assert called.raw_path == b"/"


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ("https://planner.example/api", "is not an address"),
        ("planner.example", "is not an address"),
        ("https://a.example,http://b.example", "http://b.example must begin with https://"),
        ("http://[::1]:99999", "port from 1 to 65535"),
    ],
)
def test_addresses_that_prove_nothing_are_refused(value: str, why: str) -> None:
    """What is no address, or one that anybody on the way could pass on from, is refused with the reason."""
    with pytest.raises(ValidationError, match=why):
        Settings(addresses=value)


def test_addresses_are_read_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Separated by commas, in any spelling; none by default."""
    monkeypatch.delenv("HOPE_ADDRESSES", raising=False)
    assert Settings().addresses == frozenset()
    monkeypatch.setenv("HOPE_ADDRESSES", " HTTPS://Planner.example:443/ ,http://127.0.0.1:8000,")
    assert Settings().addresses == {HOME, "http://127.0.0.1:8000"}


def test_a_host_is_as_long_as_a_name_may_be() -> None:
    """Of 253 characters at most, as names on the network are."""
    assert address_of(f"https://{'a' * 253}") == f"https://{'a' * 253}"
    with pytest.raises(ValueError, match="at most 253"):
        address_of(f"https://{'a' * 254}")
