"""Fixtures of the planner's tests: a migrated database of either kind, fresh for every test."""

from __future__ import annotations

import itertools
import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
import structlog

from planner_api import service
from planner_api.db.migrate import upgrade
from planner_api.devices import guard
from tests import CAMPAIGN
from tests.planner.postgres import Postgres
from tests.planner.samples import Api, admin_token, bearer, serving
from tests.statements import compiled_once

KINDS = ("sqlite", "postgresql")
_numbers = itertools.count()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run what rests on a database once on each kind; outside the campaign on the first alone where it is so marked."""
    if "database_kind" in metafunc.fixturenames:
        above = metafunc.definition.get_closest_marker("above_databases") and not CAMPAIGN
        metafunc.parametrize("database_kind", KINDS[:1] if above else KINDS, scope="module")


@pytest.fixture(scope="session", autouse=True)
def _compiled_once() -> Iterator[None]:
    """One engine knows what the others have compiled to SQL."""
    with compiled_once():
        yield


@pytest.fixture(autouse=True)
def _refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever asks too often hears so at once: what is tested is that, and who else is heard."""
    monkeypatch.setattr(guard, "REFUSED_S", 0.0)


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """A real PostgreSQL server for the whole run.

    NOTE: not under pytest's own directory: as root the server runs as another user, and every other run of pytest
    on this machine takes that user's right to enter away again.
    """
    with tempfile.TemporaryDirectory(prefix="hope-pg-", ignore_cleanup_errors=True) as directory:
        server = Postgres(Path(directory) / "data", durable=False)
        server.start()
        yield server
        server.close()


@pytest.fixture(scope="session")
def postgres_template(postgres: Postgres) -> str:
    """The name of a migrated database that tests copy."""
    upgrade(postgres.create("hope_template"))
    return "hope_template"


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A migrated SQLite file that tests copy."""
    path = tmp_path_factory.mktemp("sqlite") / "template.sqlite"
    upgrade(f"sqlite:///{path}")
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()
    return path


@pytest.fixture
def sqlite_url(sqlite_template: Path, tmp_path: Path) -> str:
    """The URL of a fresh, migrated SQLite file."""
    shutil.copy(sqlite_template, tmp_path / "hope.sqlite")
    return f"sqlite:///{tmp_path / 'hope.sqlite'}"


@pytest.fixture
def postgres_url(postgres: Postgres, postgres_template: str) -> Iterator[str]:
    """The URL of a fresh, migrated PostgreSQL database."""
    name = f"hope_{next(_numbers)}"
    yield postgres.create(name, template=postgres_template)
    postgres.drop(name)


@pytest.fixture(scope="module")
def shared_url(
    request: pytest.FixtureRequest, database_kind: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """The URL of a migrated database that all tests of a file share, once of each kind."""
    if database_kind == "sqlite":
        path = tmp_path_factory.mktemp("shared") / "hope.sqlite"
        shutil.copy(request.getfixturevalue("sqlite_template"), path)
        yield f"sqlite:///{path}"
        return
    postgres: Postgres = request.getfixturevalue("postgres")
    name = f"hope_{next(_numbers)}"
    yield postgres.create(name, template=request.getfixturevalue("postgres_template"))
    postgres.drop(name)


@pytest.fixture(scope="module")
def copied(
    request: pytest.FixtureRequest, database_kind: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[Callable[[str], None]], str]]:
    """The URL of a fresh database as a function left it that is called once, with another's URL; once of each kind."""
    filled: list[str] = []
    names: list[str] = []

    def created(template: str) -> str:
        names.append(f"hope_{next(_numbers)}")
        url: str = request.getfixturevalue("postgres").create(names[-1], template=template)
        return url

    def copy(fill: Callable[[str], None]) -> str:
        if database_kind == "sqlite":
            path = tmp_path_factory.mktemp("copied") / "hope.sqlite"
            if not filled:
                filled.append(str(path.with_name("filled.sqlite")))
                shutil.copy(request.getfixturevalue("sqlite_template"), filled[0])
                fill(f"sqlite:///{filled[0]}")
            # Not as a file: what was written last may stand in the log beside it.
            with closing(sqlite3.connect(filled[0])) as source, closing(sqlite3.connect(path)) as target:
                source.backup(target)
            return f"sqlite:///{path}"
        if not filled:
            fill(created(request.getfixturevalue("postgres_template")))
            filled.append(names[-1])
        return created(filled[0])

    yield copy
    for name in names:
        request.getfixturevalue("postgres").drop(name)


@pytest.fixture(autouse=True)
def logs_as_before() -> Iterator[None]:
    """What captures logs leaves structlog configured, so that an embedded planner would not quieten it."""
    configured = structlog.is_configured()
    yield
    if not configured:
        structlog.reset_defaults()


@pytest.fixture
def looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """The planner looks five times a second whether a release's stage may end, not once."""
    monkeypatch.setattr(service, "LOOK_S", 0.2)


@pytest.fixture
def database_url(request: pytest.FixtureRequest, database_kind: str) -> str:
    """The URL of a fresh, migrated database, once of each kind."""
    url: str = request.getfixturevalue("sqlite_url" if database_kind == "sqlite" else "postgres_url")
    return url


@pytest.fixture
def api(database_url: str, request: pytest.FixtureRequest) -> Iterator[Api]:
    """The application on a fresh database of each kind; plans are found at once and queued, nobody improves them.

    A file that wants other settings says them: ``pytestmark = pytest.mark.planner(tokens_required=True)``.
    """
    marked = request.node.get_closest_marker("planner")
    with serving(database_url, **(marked.kwargs if marked else {})) as running:
        yield running


@pytest.fixture
def admin(api: Api) -> dict[str, str]:
    """The header that an admin of the test's planner sends."""
    return bearer(admin_token(api))
