"""Whether the process that a label names lives, as others see it."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import PosixPath
from typing import Any

import pytest

from planner_api.jobs import workers
from planner_api.jobs.workers import is_gone, this_process

LIVING = "from planner_api.jobs.workers import this_process; print(this_process(), flush=True); input()"


class Emulated(PosixPath):
    """/proc under QEMU, where a process's own file tells of the thread that looks, and with other processes hidden."""

    def read_text(self, *given: Any, **options: Any) -> str:
        """What stands there."""
        process = self.parts[2]
        if process.isdigit() and process != str(os.getpid()):
            raise FileNotFoundError(self)
        if self.parts[3:] == ("stat",):
            return f"1 (python) 0 {'0 ' * 18}{threading.get_native_id()}"
        return super().read_text(*given, **options)


def test_who_lives_is_not_taken_for_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever thread asks, and whatever /proc hides; and who has ended is gone at once."""
    with subprocess.Popen(
        [sys.executable, "-c", LIVING], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        other = child.stdout.readline().strip()
        assert not is_gone(other)
        with monkeypatch.context() as patched, ThreadPoolExecutor(1) as pool:
            patched.setattr(workers, "Path", Emulated)
            mine = this_process()
            assert not pool.submit(is_gone, mine).result()
            assert not is_gone(other), "of what is hidden nothing is known"
        place, pid, started = other.split("|")
        assert is_gone(f"{place}|{pid}|{int(started) - 1}"), "another process has its number now"
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert is_gone(other), "a zombie"
    assert is_gone(other)
