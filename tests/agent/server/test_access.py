"""Who is served: whoever holds a token, over TLS too; and where a server without tokens may listen."""

from __future__ import annotations

import signal
import ssl
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc as over_grpc
import tritonclient.http as over_http
from tritonclient.utils import InferenceServerException

from agent_sdk.cli.commands import main
from agent_sdk.errors import InputError, RefusedError
from agent_sdk.server.access import Access, Address
from tests.agent.server.certificates import made_certificate
from tests.agent.server.running import Running, running, written

TOKEN = "a-token-of-this-test"


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A certificate of this machine's own, and its key, as files."""
    return made_certificate(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory, certificate: tuple[Path, Path]) -> Iterator[Running]:
    """A server with a token and a certificate."""
    folder = tmp_path_factory.mktemp("guarded")
    (folder / "tokens").write_text(f"# the edge's\n{TOKEN}\n")
    options = ["--tokens", folder / "tokens", "--tls-cert", certificate[0], "--tls-key", certificate[1]]
    with running(written(folder)[:1], folder, *map(str, options)) as found:
        yield found


def over_tls(server: Running, path: str, certificate: Path, token: str | None) -> int:
    """The status of a request."""
    asked = urllib.request.Request(f"https://localhost:{server.http}{path}")
    if token is not None:
        asked.add_header("Authorization", f"Bearer {token}")
    try:
        with urllib.request.urlopen(asked, context=ssl.create_default_context(cafile=certificate)) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


@pytest.mark.parametrize("path", ["/v2", "/v2/health/ready", "/v2/models/branching", "/metrics", "/nothing"])
def test_nobody_is_served_without_the_token(guarded: Running, certificate: tuple[Path, Path], path: str) -> None:
    """Whatever is asked, no token, a wrong one and a part of it are refused alike."""
    for token in (None, "", "a-token-of-another-test", TOKEN[:-1], TOKEN + "x"):
        assert over_tls(guarded, path, certificate[0], token) == 401
    assert over_tls(guarded, path, certificate[0], TOKEN) == (404 if path == "/nothing" else 200)


def test_triton_s_client_is_served_with_the_token(guarded: Running, certificate: tuple[Path, Path]) -> None:
    """Over both transports the token opens, another or none does not."""
    image = np.zeros((1, 3, 16, 16), np.float32)
    shown = {"authorization": f"Bearer {TOKEN}"}
    context = {"ssl_context_factory": lambda: ssl.create_default_context(cafile=certificate[0]), "ssl": True}
    http = over_http.InferenceServerClient(f"localhost:{guarded.http}", **context)
    grpc = over_grpc.InferenceServerClient(f"localhost:{guarded.grpc}", ssl=True, root_certificates=str(certificate[0]))
    for package, client in ((over_http, http), (over_grpc, grpc)):
        given = package.InferInput("x", [1, 3, 16, 16], "FP32")
        given.set_data_from_numpy(image)
        assert client.infer("branching", [given], headers=dict(shown)).as_numpy("y").shape == (1, 10)
        for wrong in (None, {"authorization": "Bearer another-token-altogether"}, {"authorization": TOKEN}):
            with pytest.raises(InferenceServerException, match="token"):
                client.infer("branching", [given], headers=wrong and dict(wrong))
        client.close()


def test_a_client_without_tls_is_not_served(guarded: Running) -> None:
    """Who speaks plain HTTP to a server with a certificate gets no answer, and the server goes on."""
    with pytest.raises(OSError):  # noqa: PT011  reset or closed, as it comes
        urllib.request.urlopen(f"http://localhost:{guarded.http}/v2", timeout=20)
    assert guarded.process.poll() is None


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (("--listen", "0.0.0.0:0"), "give tokens"),
        (("--grpc", "[::]:0"), "give tokens"),
        (("--listen", "nowhere"), "no address"),
        (("--listen", "127.0.0.1:99999"), "no address"),
        (("--listen", "127.0.0.1:²"), "no address"),
        (("--models", " ,"), "say what to serve"),
        (("--tokens", "/nonexistent"), "cannot be read"),
        (("--tls-cert", "/nonexistent", "--tls-key", "/nonexistent"), "no certificate"),
        (("--tls-cert", "/nonexistent"), "together"),
    ],
)
def test_a_server_that_would_be_open_or_cannot_be_is_refused(
    options: tuple[str, ...],
    reason: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Where others could reach a server without tokens it does not start, and one sentence says why."""
    monkeypatch.setenv("HOPE_CACHE_DIR", str(tmp_path))
    model = written(tmp_path)[0]
    given = ["serve", "--models", str(model), "--listen", "127.0.0.1:0", "--grpc", "off", "--processors", "ort@0"]
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    assert main([*given, *options]) == 2
    assert reason in capsys.readouterr().err
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


@pytest.mark.parametrize("text", ["short", "with a space in between", "with-ünicode-letters"])
def test_a_token_that_is_none_is_refused(text: str) -> None:
    """Tokens that could be guessed, or that no header can hold, are not taken; the reason says what makes one."""
    with pytest.raises(InputError, match=r"a token has at least 16 .* `openssl rand -hex 32` makes one"):
        Access([text])


def test_a_file_of_tokens_from_another_editor_is_read(tmp_path: Path) -> None:
    """A byte order mark and line ends as Windows has them belong to no token."""
    token = "a-token-of-enough-characters"
    (tmp_path / "tokens.txt").write_bytes(b"\xef\xbb\xbf" + token.encode() + b"\r\n")
    Access.read(tmp_path / "tokens.txt").check(f"Bearer {token}", "localhost")


@pytest.mark.parametrize("host", ["localhost", "localhost:80", "127.0.0.1:8000", "127.5.5.5", "[::1]:8000", "[::1]"])
def test_this_machine_is_served_without_tokens(host: str) -> None:
    """Every name that this machine has for itself alone is taken."""
    Access([]).check("", host)


@pytest.mark.parametrize("host", ["", "evil.example", "evil.example:80", "10.0.0.1", "localhost.evil.example", "[::2]"])
def test_other_names_are_not_served_without_tokens(host: str) -> None:
    """A page whose name was made to point here is not served."""
    with pytest.raises(RefusedError):
        Access([]).check("", host)


def test_addresses_are_read() -> None:
    """A port alone means this machine; brackets surround an address with colons."""
    assert Address.parsed("8000") == Address("127.0.0.1", 8000)
    assert str(Address.parsed("[::1]:8000")) == "[::1]:8000"
    assert Address.parsed("0.0.0.0:1") == Address("0.0.0.0", 1)
