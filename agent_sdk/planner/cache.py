"""Kept on disk: the last plan for every key, for revalidation and for days without a planner."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from agent_sdk.planner.client import ServedPlan, Settled
from agent_sdk.records import Records
from hope_schema import PlanReply, PlanRequest, Processor
from hope_schema.base import Contract
from hope_schema.hashing import digest

MAX_PLANS: Final = 256
"""Plans kept; the ones used longest ago are dropped first."""


class _Entry(Contract):
    etag: str
    reply: PlanReply
    settled: Settled | None = None


class PlanCache:
    """Plans by key in a directory."""

    def __init__(self, directory: Path) -> None:
        self._entries = Records(directory, _Entry, MAX_PLANS)

    @staticmethod
    def key(request: PlanRequest, processors: Sequence[Processor], planner: str) -> str:
        """Return the key of a plan: the request, the kinds of processor it was made for, and who made it.

        The kinds hold runtime versions, so an updated runtime never runs a plan made for the old one.
        """
        kinds = sorted((processor.id, processor.kind, processor.resources) for processor in processors)
        return digest([request.model_dump(mode="json"), kinds, planner])

    def load(self, key: str) -> ServedPlan | None:
        """Return the plan kept under ``key``, or None."""
        entry = self._entries.get(key)
        return None if entry is None else ServedPlan(entry.reply, entry.etag, "unchanged", entry.settled)

    def store(self, key: str, served: ServedPlan) -> None:
        """Keep a plan under ``key``, with what this device found out about it.

        A full or read-only disk is no error: the plan is then asked for again.
        """
        self._entries.keep(key, _Entry(etag=served.etag, reply=served.reply, settled=served.settled))

    def forget(self, key: str) -> None:
        """Drop the plan kept under ``key``, if any."""
        self._entries.drop(key)
