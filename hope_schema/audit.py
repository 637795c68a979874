"""Who did what to the fleet, and when."""

from __future__ import annotations

from typing import Annotated

from pydantic import AwareDatetime, Field

from hope_schema.base import Contract, Count, Digest


class AuditEntry(Contract):
    """One action of an admin, or one that the planner took by itself (``actor`` is ``planner`` then).

    ``subject`` names what was acted on, ``detail`` how, e.g. ``{"version": "3"}``. ``request_id`` is the planner's
    own, and behind a slash the caller's where it sent one, as in logs; null for what did not come over HTTP.
    """

    id: Annotated[int, Field(ge=1)]
    at: AwareDatetime
    actor: str
    action: str
    subject: str
    detail: dict[str, str]
    request_id: str | None


class AuditPage(Contract):
    """Entries, newest first; ``next`` is the ``before`` of the following page, null on the last."""

    entries: tuple[AuditEntry, ...]
    next: Annotated[int, Field(ge=1)] | None = None


class AuditProof(Contract):
    """An audit log that stands as it was written: how many entries are kept, and the hash of the newest.

    Who writes ``head`` down elsewhere can check later that the log still leads there.
    """

    entries: Count
    head: Digest | None
