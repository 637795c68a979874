"""Names a worker process so that others on the same machine can tell at once that it is gone."""

from __future__ import annotations

import os
import socket
from pathlib import Path


def _started(pid: int) -> str | None:
    """The process's start in clock ticks since boot; None when there is no such process (a zombie is none)."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return None
    fields = stat.rsplit(")", 1)[1].split()
    return None if fields[0] in ("Z", "X") else fields[19]


def _place() -> str | None:
    """Which process table a pid belongs to: host and pid namespace; None where /proc does not tell."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()[:8]
        return f"{socket.gethostname()[:60]}/{boot}/{os.readlink('/proc/self/ns/pid')[5:-1]}"
    except OSError:
        return None


def this_process() -> str:
    """The owner label of this process: place, pid and start, which no later process shares."""
    return f"{_place() or socket.gethostname()[:60]}|{os.getpid()}|{_started(os.getpid()) or 0}"


def is_gone(owner: str) -> bool:
    """Whether ``owner`` certainly lives no more. False when in doubt: another machine's leases simply expire."""
    place, _, rest = owner.partition("|")
    pid, _, started = rest.partition("|")
    if place != _place() or not pid.isdigit():
        return False
    return _started(int(pid)) != started
