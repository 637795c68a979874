"""What the planner refuses, and why. No word of HTTP: ``web/problems.py`` gives each kind its status."""

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
    """The database does not answer, or takes nothing in; ``reason`` is its own word, for the log, and the ``cure``."""

    def __init__(self, reason: str, cure: str | None = None) -> None:
        super().__init__(cure or "the database is away for the moment; try again")
        self.cure = cure
        self.reason = f"{reason} ({cure})" if cure else reason


UNKNOWN = {
    "address": "this planner has no address '{}'; see HOPE_ADDRESSES",
    "alias": "'{0}' has no alias '{1}': `hope-planner models show {0}` lists them",
    "alias to release": "'{0}' has no alias '{1}': make it with `hope-planner models alias {0} {1} VERSION`",
    "claim": "there is no claim {} to revoke: `hope-planner claims list` lists those there are",
    "device": "no device '{}': `hope-planner devices list` lists those there are",
    "fanout": "no {}: `hope-planner models plan HASH` plans ahead",
    "group": "no group '{0}': `hope-planner groups list` lists them, `hope-planner groups set {0}` makes it",
    "model": "no model {}: `hope-planner fleet models` lists those there are, `hope-agent run` sends another",
    "name": "no model is called '{0}': give it a version with `hope-planner models add {0} HASH`",
    "plan": "no plan {}: `hope-planner plans list` lists those there are, `hope-agent run` asks for another",
    "profile": "nothing is known of {}: `hope-planner profiles list` lists what is, `hope-agent run` measures on a "
    "device",
    "release": "no release {}: `hope-planner releases list` lists them",
    "session": "There is no such session, or it has ended already.",
    "soc": "nothing is known of SoC '{}': `hope-planner profiles list` lists those that there are",
    "token": "there is no token {} to revoke: `hope-planner tokens list` lists those there are",
    "version of model": "'{0}' has no version {1}: `hope-planner models show {0}` lists them",
    "version of plan": "plan {0} has no version {1}, or it is too old: `hope-planner plans versions {0}` lists them",
}
"""What is said of something by its names where it is not there; its first word is the error's."""


def unknown(what: str, *names: object) -> NotFoundError:
    return NotFoundError(f"{what.partition(' ')[0]}-unknown", UNKNOWN[what].format(*names))


def unknown_profiles(*pairs: tuple[str, str]) -> NotFoundError:
    """Of each SoC and frequency that nothing is known of."""
    return unknown("profile", " and ".join(f"SoC '{soc}' at frequency '{frequency}'" for soc, frequency in pairs))
