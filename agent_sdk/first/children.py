"""Child processes of an agent, in which whatever is new runs first: what crashes there crashes nobody else."""

import logging
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext, suppress
from typing import Final

from pydantic import ValidationError

from agent_sdk.cancel import cancelling, check
from agent_sdk.closing import Closes
from agent_sdk.errors import DeviceClosedError
from agent_sdk.first.bench import Measure, Message, Reply, RunFile, RunPlan, Setting

LIMIT_S: Final = 120.0
"""A child that takes longer for anything is killed; what hangs there would hang here."""

log = logging.getLogger(__name__)


class CrashedError(Exception):
    """A child was ended by what it was asked for.

    Attributes:
        how: by what, in words.
        lasting: whether the same would end the next one.
        step: what it had begun.
    """

    def __init__(self, how: str, lasting: bool, step: str) -> None:
        super().__init__(f"{how} ({step})" if step else how)
        self.how, self.lasting, self.step = how, lasting, step


def possible() -> bool:
    """Whether this program can have such children: one that is no interpreter cannot."""
    return bool(sys.executable) and not getattr(sys, "frozen", False)


class Children(Closes):
    """Children that are started when they are needed, each for one request at a time; idle ones end by themselves.

    Args:
        held: holds the device for a step of what they do: none of them computes before it is held, and others have
            their turns between steps.
    """

    def __init__(self, setting: Setting, held: Callable[[], AbstractContextManager[None]] = nullcontext) -> None:
        self.setting = setting
        self.held = held
        self._lock = threading.Lock()
        self._idle: list[subprocess.Popen[bytes]] = []
        self._busy: set[subprocess.Popen[bytes]] = set()
        self._used_s: dict[subprocess.Popen[bytes], float] = {}
        self._owner, self._closed = os.getpid(), False

    def ask(
        self,
        request: RunFile | RunPlan | Measure,
        *,
        step: Callable[[str], None] = lambda _: None,
        limit_s: float = LIMIT_S,
    ) -> Reply | None:
        """Have a child do something; None where none can be started.

        Raises CrashedError, NotWantedError, DeviceClosedError once this is closed, and what ``step`` raises.
        """
        process, is_new = self._taken()
        if process is None:
            return None
        answered = False
        try:
            with cancelling(process.kill):
                reply = _asked(process, request, step, limit_s, self.held)
            answered = True
            self._used_s[process] = reply.cpu_s
            return reply
        except CrashedError as error:
            check()
            if self._closed:
                raise DeviceClosedError("the agent is closed") from error
            if is_new or error.step or process.poll() != 0:
                raise
            return self.ask(request, step=step, limit_s=limit_s)  # it had waited for too long, and ended
        finally:
            with self._lock:
                self._busy.discard(process)
                kept = answered and not self._closed
                if kept:
                    self._idle.append(process)
            if not kept:
                self._end(process)

    def cpu_s(self) -> float:
        """CPU seconds of the children that live; those of the others count as this process's."""
        with self._lock:
            return sum(self._used_s.values())

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        _end(process)
        self._used_s.pop(process, None)

    def _taken(self) -> tuple[subprocess.Popen[bytes] | None, bool]:
        """A child that waits, else a new one, and whether it is that; None where there can be none."""
        with self._lock:
            if self._closed:
                raise DeviceClosedError("the agent is closed")
            process = None
            while self._idle and process is None:
                process = self._idle.pop()
                if process.poll() is not None:
                    self._end(process)
                    process = None
            is_new = process is None
            process = process or self._started()
            if process is not None:
                self._busy.add(process)
            return process, is_new

    def _started(self) -> subprocess.Popen[bytes] | None:
        if not possible():
            return None
        command = [sys.executable, "-m", "agent_sdk.first.child", self.setting.model_dump_json()]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        pipe = subprocess.PIPE
        try:
            return subprocess.Popen(
                command, env=environment, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, start_new_session=True
            )
        except OSError as error:
            log.info("nothing runs in a child first, because none can be started: %s", error)
            return None

    def close(self) -> None:
        """Kill them, whatever they do. Idempotent; in a forked child it leaves the parent's alone."""
        with self._lock:
            self._closed = True
            processes = [*self._idle, *self._busy] if self._owner == os.getpid() else []
            idle, self._idle = self._idle, []
        for process in processes:
            process.kill()
        for process in idle if processes else ():
            self._end(process)


def _asked(
    process: subprocess.Popen[bytes],
    request: RunFile | RunPlan | Measure,
    step: Callable[[str], None],
    limit_s: float,
    held: Callable[[], AbstractContextManager[None]],
) -> Reply:
    """What a child answers; each of its steps is ``held``. Raises CrashedError and what ``step`` and ``held`` raise."""
    assert process.stdin is not None
    assert process.stdout is not None
    until, begun, unread = time.monotonic() + limit_s, "", b""
    _write(process, request.model_dump_json().encode())
    readable = select.poll()
    readable.register(process.stdout, select.POLLIN)
    with Steps(held) as steps:
        while True:
            ready = readable.poll(1e3 * max(0.0, until - time.monotonic()))
            part = os.read(process.stdout.fileno(), 1 << 20) if ready else b""
            if ready and not part:
                raise CrashedError(*_ending(process), step=begun)
            if time.monotonic() > until:
                raise CrashedError(f"it took more than {limit_s:g} s", lasting=True, step=begun)
            *lines, unread = (unread + part).split(b"\n")
            for line in lines:
                try:
                    message = Message.model_validate_json(line)
                except ValidationError:
                    raise CrashedError("what it answered made no sense", lasting=False, step=begun) from None
                if message.reply is not None:
                    return message.reply
                if message.step != begun:
                    begun = message.step
                    step(begun)
                waiting = time.monotonic()
                steps.begin()
                until += time.monotonic() - waiting
                _write(process, b"go")


def _write(process: subprocess.Popen[bytes], line: bytes) -> None:
    assert process.stdin is not None
    with suppress(OSError):  # it has ended, as is found when it is read from
        process.stdin.write(line + b"\n")
        process.stdin.flush()


class Steps(Closes):
    """Something is held for one step after the other; between two steps others may have it."""

    def __init__(self, held: Callable[[], AbstractContextManager[None]]) -> None:
        self._hold, self._holding = held, ExitStack()

    def begin(self, _: str = "") -> None:
        """The step before is over, if there was one; this one begins once it is held. Raises what holding raises."""
        self._holding.close()
        self._holding.enter_context(self._hold())

    def close(self) -> None:
        self._holding.close()


def _ending(process: subprocess.Popen[bytes]) -> tuple[str, bool]:
    """How a child ended, and whether it would do so again; one that was killed for its memory may not."""
    try:
        status = process.wait(1.0)
    except subprocess.TimeoutExpired:
        return "it closed its output", False
    if status >= 0:
        return f"exit status {status}", False
    return signal.strsignal(-status) or f"signal {-status}", -status != signal.SIGKILL


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    for stream in (process.stdin, process.stdout):
        with suppress(OSError):  # what it did not read is lost
            if stream is not None:
                stream.close()
    process.wait()
