"""``hope-planner serve`` as a process: what it says, https, and what keeps it from starting."""

from __future__ import annotations

import os
import re
import signal
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from planner_api.cli.commands import main
from tests import ENDING_WITH_TESTS

SERVE = [sys.executable, "-m", "planner_api", "serve", "--port"]


@contextmanager
def served(folder: Path, *arguments: str) -> Iterator[tuple[str, str]]:
    """The address that a server names, and its last line; no worker begins beside it, for nothing here is planned."""
    database = ["--database", f"sqlite:///{folder}/hope.sqlite"]
    process = subprocess.Popen(
        [*ENDING_WITH_TESTS, *SERVE, "0", *database, *arguments],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "HOPE_WORKER_IN_PROCESS": "false"},
    )
    try:
        assert process.stderr is not None
        said = process.stderr.readline()
        address = re.fullmatch(r"hope-planner listens on (\S+)\n", said)
        if not address:
            process.kill()
            pytest.fail(said + process.stderr.read())
        assert process.stderr.readline() == f"hope-planner shows the fleet at {address[1]}/console\n"
        yield address[1], process.stderr.readline()
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == -signal.SIGTERM


def refused(capsys: pytest.CaptureFixture[str], *arguments: object, code: int = 2) -> str:
    """The one line with which it does not start."""
    assert main(["serve", "--port", *map(str, arguments)]) == code
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    return said


@pytest.fixture(scope="module")
def pem(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a certificate of this machine, ``cert.pem`` and ``key.pem``, and another's ``other.pem``."""
    folder = tmp_path_factory.mktemp("tls")
    for key, certificate in (("key", "cert"), ("other", "other-cert")):
        made = f"-newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -keyout {key}.pem -out {certificate}.pem"
        alternative = ["-addext", "subjectAltName=IP:127.0.0.1"]
        command = ["openssl", "req", "-x509", *made.split(), *alternative]
        subprocess.run(command, cwd=folder, capture_output=True, check=True)
    return folder


def test_it_says_where_it_listens_on_which_database_and_who_may_call(tmp_path: Path) -> None:
    """On stderr: the address that answers, the console's, to which ``/`` leads, the database, and who may call."""
    with served(tmp_path) as (address, line):
        assert address.startswith("http://127.0.0.1:")
        assert line.startswith(
            f"hope-planner works on sqlite:///{tmp_path}/hope.sqlite; open to this machine, no tokens; up to "
        )
        assert httpx.get(f"{address}/readyz", timeout=10).status_code == 200
        assert httpx.get(address, timeout=10, follow_redirects=True).url == f"{address}/console"


def test_https_with_a_certificate(tmp_path: Path, pem: Path) -> None:
    """With a certificate and its key the same answers come over TLS, and plain HTTP gets none."""
    with served(tmp_path, "--tls-cert", f"{pem}/cert.pem", "--tls-key", f"{pem}/key.pem") as (address, _):
        assert address.startswith("https://")
        trusted = ssl.create_default_context(cafile=f"{pem}/cert.pem")
        assert httpx.get(f"{address}/readyz", verify=trusted, timeout=10).status_code == 200
        refusal = httpx.post(f"{address}/plans", verify=trusted, timeout=10, content=b"{")
        assert refusal.status_code == 400
        with pytest.raises(httpx.TransportError):
            httpx.get(address.replace("https", "http") + "/readyz", timeout=10)


def test_a_port_that_is_taken_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A taken port, and an address of another machine, are said before anything starts, with what to change."""
    database = ("--database", f"sqlite:///{tmp_path}/hope.sqlite")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        said = refused(capsys, port, *database)
    assert (
        said == f"hope-planner: cannot listen on 127.0.0.1:{port}: Address already in use; choose another with --port\n"
    )
    assert "cannot listen on 192.0.2.1:0" in refused(capsys, 0, "--host", "192.0.2.1", *database)


def test_files_of_tls_that_do_not_fit_are_one_sentence(
    tmp_path: Path, pem: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One file without the other, another's key, and a file that is not there are each refused by name."""
    database = ("--database", f"sqlite:///{tmp_path}/hope.sqlite")
    certificate = ("--tls-cert", pem / "cert.pem")
    assert "go together" in refused(capsys, 0, *database, *certificate)
    for key in ("other.pem", "nowhere.pem"):
        said = refused(capsys, 0, *database, *certificate, "--tls-key", pem / key)
        assert key in said
        assert "no certificate with its key" in said


def test_a_database_that_cannot_be_written_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A file where the database's folder should be ends in one line that names it."""
    (tmp_path / "file").touch()
    said = refused(capsys, 0, "--database", f"sqlite:///{tmp_path}/file/hope.sqlite", code=1)
    assert f"{tmp_path}/file" in said


@pytest.mark.parametrize("command", [["serve", "--port", "0"], ["migrate"], ["backup", "copy.gz"]])
@pytest.mark.parametrize(
    "url", ["sqlite:////proc/hope.sqlite", "postgresql://hope:secret@127.0.0.1:1/hope"], ids=["sqlite", "postgresql"]
)
def test_a_database_that_cannot_be_opened_is_named_in_one_sentence(
    command: list[str], url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whatever was to be done with it: which one and why, without its password and without words of our libraries."""
    assert main([*command, "--database", url]) == 1
    said = capsys.readouterr().err.splitlines()[-1]
    assert url.replace("secret", "***") in said
    assert re.search("unable to open|refused|there is no database", said)
    assert "sqlalche" not in said
    assert "secret" not in said
