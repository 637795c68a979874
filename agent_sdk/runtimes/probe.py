"""A network that a compiler has not seen is compiled in a child process first: what crashes there crashes nobody else.

ONNX Runtime is asked for its first answer before its child has ended: the application would have loaded its file with
it in any case. What is made of that file behind the answer, and whatever any other compiler is given, goes to a child.
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Final

from agent_sdk.records import Records
from agent_sdk.runtimes.base import Compiler
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
    """What became of compilers in children, kept in a directory; where that cannot be written, every start probes."""

    def __init__(self, directory: Path) -> None:
        self._records = Records(directory, _Ended, MAX_PROBES)

    def crashes(self, compilers: Collection[Compiler], network: str, file: Path) -> dict[Compiler, str]:
        """The compilers that end the process that gives them ``file``, and how, in words. Each gets one child, once.

        ``network`` is by what the network is known again.
        """
        with ThreadPoolExecutor(max(1, len(compilers))) as pool:
            ends = pool.map(partial(self._end, network=network, file=file), compilers)
            return {compiler: end for compiler, end in zip(compilers, ends, strict=True) if end}

    def _end(self, compiler: Compiler, network: str, file: Path) -> str:
        key = digest([*compiler, network])[:32]
        ended = self._records.get(key)
        if ended is None:
            ended = _Ended(crash=_crash(compiler, file))
            self._records.keep(key, ended)
        return ended.crash


def _crash(compiler: Compiler, file: Path) -> str:
    """How a child ended that compiled a file; empty where it lived."""
    if not sys.executable or getattr(sys, "frozen", False):  # a program that is no interpreter cannot be its own child
        return ""
    command = [sys.executable, "-m", "agent_sdk.compiling", compiler.runtime, compiler.target, os.fspath(file)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    try:
        ended = subprocess.run(command, env=environment, capture_output=True, timeout=PROBE_S, check=False)
    except subprocess.TimeoutExpired:
        return f"it took more than {PROBE_S:g} s"
    except OSError as error:
        log.info("%s is not probed, because no child can be started: %s", compiler.runtime, error)
        return ""
    return signal.strsignal(-ended.returncode) or "a signal" if ended.returncode < 0 else ""
