"""Cores to test with."""

from __future__ import annotations

import os

import pytest

GONE = max(os.sched_getaffinity(0)) + 1 + (os.cpu_count() or 1)
"""A core that this machine does not have (any more)."""
SEVERAL = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="this process may run on one core only")
"""For tests of what two cores do beside each other."""
