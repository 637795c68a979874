"""What the planner refuses, and why. No word of HTTP: ``web/problems.py`` gives each kind its status.

PlannerError
├── InvalidError          it asks for something impossible
├── UnauthorisedError     nobody known asks
├── ForbiddenError        who asks may not
├── NotFoundError         what it names is not there
├── ConflictError         it contradicts what is there
├── TooOftenError         later, after ``retry_after_s``
└── UnavailableError      something it needs is away for the moment
    └── DatabaseAwayError
"""

from __future__ import annotations

from collections.abc import Sequence

MAX_CAUSES = 20
"""Most single causes one error lists."""


class UsageError(Exception):
    """Bad input on the command line: one clear line on stderr, exit status 2."""


class PlannerError(Exception):
    """A request that is refused, with its cause and its cure in ``detail``.

    Args:
        kind: stable short name.
        detail: one sentence for the caller; it never holds internals.
        causes: single causes, e.g. one per invalid field.
        retry_after_s: when asking again makes sense; None: not by itself.
    """

    def __init__(
        self, kind: str, detail: str, *, causes: Sequence[str] = (), retry_after_s: float | None = None
    ) -> None:
        super().__init__(detail)
        self.kind = kind
        self.detail = detail
        self.causes = tuple(causes[:MAX_CAUSES])
        self.retry_after_s = retry_after_s


class InvalidError(PlannerError):
    """It asks for something impossible."""


class UnauthorisedError(PlannerError):
    """The token is missing, unknown, revoked or expired."""

    def __init__(self, detail: str) -> None:
        super().__init__("unauthorised", detail)


class ForbiddenError(PlannerError):
    """Who asks may not."""


class NotFoundError(PlannerError):
    """What it names is not there."""


class ConflictError(PlannerError):
    """It contradicts what is there."""


class TooOftenError(PlannerError):
    """It comes too often; ``retry_after_s`` says when it may come again."""


class UnavailableError(PlannerError):
    """Something it needs is away for the moment."""

    def __init__(self, detail: str, *, retry_after_s: float = 2.0) -> None:
        super().__init__("unavailable", detail, retry_after_s=retry_after_s)


class RefusedError(Exception):
    """A job cannot be done, however often it is tried; the message says why."""


class DatabaseAwayError(UnavailableError):
    """The database does not answer, or takes nothing in; ``reason`` is its own word, for the log."""

    def __init__(self, reason: str) -> None:
        super().__init__("the database is away for the moment; try again")
        self.reason = reason


def model_unknown(model_hash: str) -> NotFoundError:
    cure = "`hope-planner fleet models` lists those there are, `hope-agent run` sends another"
    return NotFoundError("model-unknown", f"no model {model_hash}: {cure}")


def profile_unknown(soc: str, frequency: str) -> NotFoundError:
    cure = "`hope-planner profiles list` lists what is, `hope-agent run` measures on a device"
    return NotFoundError("profile-unknown", f"nothing is known of SoC '{soc}' at frequency '{frequency}': {cure}")


def plan_unknown(plan_id: str) -> NotFoundError:
    cure = "`hope-planner plans list` lists those there are, `hope-agent run` asks for another"
    return NotFoundError("plan-unknown", f"no plan {plan_id}: {cure}")


def version_unknown(plan_id: str, version: int) -> NotFoundError:
    cure = f"`hope-planner plans versions {plan_id}` lists them"
    detail = f"plan {plan_id} has no version {version}, or it is too old: {cure}"
    return NotFoundError("version-unknown", detail)
