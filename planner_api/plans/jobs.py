"""The jobs on plans by name."""

from __future__ import annotations

FIRST, BETTER = "first", "better"
"""The kinds of jobs that make plans, whose keys are plans' ids."""
PLAN = "plan"
"""Topic: a plan has a new version, or failed for good."""
