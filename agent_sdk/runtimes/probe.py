"""A network that a runtime has not seen is compiled in a child process first: what crashes there crashes nobody else.

ONNX Runtime is not probed: an application that has it has loaded the file with it before.
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Final

from agent_sdk.errors import ExecutionError
from agent_sdk.records import Records
from hope_schema.base import Contract
from hope_schema.hashing import digest

PROBE_S: Final = 120.0
"""A child that takes longer is ended; what hangs there would hang here."""
MAX_PROBES: Final = 1024
"""Networks of which it is remembered what became of a child."""

log = logging.getLogger(__name__)


class _Ended(Contract):
    """How a child ended, in words; empty where it lived."""

    crash: str


class Probes:
    """What became of runtimes in children, kept in a directory."""

    def __init__(self, directory: Path) -> None:
        self._records = Records(directory, _Ended, MAX_PROBES)

    def crash(self, runtime: str, version: str, network: str, file: Path) -> str:
        """How a child ended that compiled ``file`` with a runtime, in words; empty where it lived.

        ``network`` is by what the network is known again.
        """
        key = digest([runtime, version, network])[:32]
        ended = self._records.get(key)
        if ended is None:
            ended = _Ended(crash=_crash(runtime, file))
            self._records.keep(key, ended)
        return ended.crash


def _crash(runtime: str, file: Path) -> str:
    if not sys.executable or getattr(sys, "frozen", False):  # a program that is no interpreter cannot be its own child
        return ""
    command = [sys.executable, "-m", "agent_sdk.runtimes.probe", runtime, os.fspath(file)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    try:
        ended = subprocess.run(command, env=environment, capture_output=True, timeout=PROBE_S, check=False)
    except subprocess.TimeoutExpired:
        return f"it took more than {PROBE_S:g} s"
    except OSError as error:
        log.info("%s is not probed, because no child can be started: %s", runtime, error)
        return ""
    return signal.strsignal(-ended.returncode) or "a signal" if ended.returncode < 0 else ""


def main(runtime: str, file: str) -> int:
    """In the child: compile. A refusal is no crash; it is told where it is met again."""
    assert runtime == "openvino"
    from agent_sdk.runtimes.openvino.whole import WholeOpenVino

    try:
        WholeOpenVino(file).close()
    except ExecutionError as error:
        print(error, file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
