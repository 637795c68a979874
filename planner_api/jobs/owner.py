"""Names a worker process so that others on the same machine can tell at once that it is gone."""

import os
import socket
from pathlib import Path


def _started(pid: int) -> str | None:
    """The process's start in clock ticks since boot; "" for a zombie; None when nothing tells."""
    try:
        # As its main thread's: under QEMU each thread that looks at its own process's file is told its own start there.
        stat = Path(f"/proc/{pid}/task/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return None
    fields = stat.rsplit(")", 1)[1].split()
    return "" if fields[0] in ("Z", "X") else fields[19]


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
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    except PermissionError:  # another user's, of whom /proc may be hiding all
        pass
    return _started(int(pid)) not in (started, None)
