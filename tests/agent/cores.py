"""Cores to test with."""

from __future__ import annotations

import os

GONE = max(os.sched_getaffinity(0)) + 1 + (os.cpu_count() or 1)
"""A core that this machine does not have (any more)."""
