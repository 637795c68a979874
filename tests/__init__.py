"""Tests, one folder per package of the house, and the settings that all of them share.

NOTE: here and not in a conftest.py, which pytest-alembic 0.13 cannot stand at this level under pytest 9.
"""

from __future__ import annotations

import ctypes
import gc
import logging
import os
import shutil
import signal
import sys

CAMPAIGN = os.environ.get("HOPE_CAMPAIGN") == "1"
"""Whether everything runs with its full counts (`make campaign`)."""
SOAK_S = float(os.environ.get("HOPE_SOAK_S", 3600 if CAMPAIGN else 1))
"""Seconds of a soak: an hour in a campaign, unless `HOPE_SOAK_S` says otherwise."""

if "_hypothesis_pytestplugin" in sys.modules:  # children that run something of ours draw nothing, and start sooner
    from hypothesis import settings

    # NOTE: what pytest has loaded by the end are 650 000 objects that stay. To look through all of them for cycles
    # takes 0.4 s, and as often as Python does by itself a fifth of the time in which tests are collected.
    gc.set_threshold(*gc.get_threshold()[:2], 200)

    # No deadline per example: it would measure the machine's load, not our code.
    settings.register_profile("steady", deadline=None, print_blob=True, max_examples=50)
    settings.register_profile("campaign", settings.get_profile("steady"), max_examples=1000)
    settings.load_profile("campaign" if CAMPAIGN else "steady")

# NOTE: containers often set PYTHONDONTWRITEBYTECODE. Every worker of pytest then rewrites all assertions anew, and
# every process that a test starts compiles the project anew: nobody who installed it waits for that, pip has done it.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# NOTE: with an arena of the C library for every thread, what different plans leave is different holes in each: 64
# random plans of squeezenet on OpenVINO take 7 to 20 MiB more than the first, and 1.4 MiB with one arena for all. It
# must be the only one from the start: arenas that are there go on being used.
if CAMPAIGN and hasattr(ctypes.CDLL(None), "mallopt"):  # glibc
    M_ARENA_MAX = -8
    ctypes.CDLL(None).mallopt(M_ARENA_MAX, 1)

# NOTE: a shell that starts the suite in the background has SIGINT ignored, and every child inherits that; the tests
# that press Ctrl-C need it handled as in a terminal.
signal.signal(signal.SIGINT, signal.default_int_handler)


class Raised(logging.Handler):
    """Makes what is logged an error of the test."""

    def emit(self, record: logging.LogRecord) -> None:
        """Raise AssertionError."""
        raise AssertionError(record.getMessage())


logging.getLogger("planner_api.planning.optimise").addHandler(Raised())  # a bound that is above a plan


ENDING_WITH_TESTS = ("setpriv", "--pdeathsig", "KILL") if shutil.which("setpriv") else ()
"""Before a server's command: the kernel ends it with who started it, also where that is killed or cut off.

NOTE: ``preexec_fn`` would run in a copy of this process, in which runtimes have threads that hold locks.
"""
