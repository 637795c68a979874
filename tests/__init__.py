"""Tests, one folder per package of the house, and the settings that all of them share.

NOTE: here and not in a conftest.py, which pytest-alembic 0.13 cannot stand at this level under pytest 9.
"""

from __future__ import annotations

import os
import signal

from hypothesis import settings

CAMPAIGN = os.environ.get("HOPE_CAMPAIGN") == "1"
"""Whether everything runs with its full counts (`make campaign`)."""

# No deadline per example: it would measure the machine's load, not our code.
settings.register_profile("steady", deadline=None, print_blob=True)
settings.register_profile("campaign", settings.get_profile("steady"), max_examples=1000)
settings.load_profile("campaign" if CAMPAIGN else "steady")

# NOTE: a shell that starts the suite in the background has SIGINT ignored, and every child inherits that; the tests
# that press Ctrl-C need it handled as in a terminal.
signal.signal(signal.SIGINT, signal.default_int_handler)
