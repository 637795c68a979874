"""Bad input on the command line."""

from __future__ import annotations


class UsageError(Exception):
    """What was asked for makes no sense: one clear line on stderr, exit status 2."""
