"""One run that was asked for of an agent: how, what became of it, and what became of all of a session."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from agent_sdk.cancel import Cancel
from agent_sdk.errors import InputError, refuse_unless_seconds
from agent_sdk.journey.plans import Feed
from agent_sdk.scheduling.request import ON_LATE, PRIORITY, Late, Request

if TYPE_CHECKING:
    from agent_sdk.scheduling.member import Member


@dataclass
class JobStats:
    """What became of a session's jobs.

    Attributes:
        submitted: how many were asked for.
        done: how many have answered, late ones among them.
        late: how many answered after their deadline.
        dropped: how many were given up before they began.
        cancelled: how many their caller cancelled.
        failed: how many raised.
    """

    submitted: int = 0
    done: int = 0
    late: int = 0
    dropped: int = 0
    cancelled: int = 0
    failed: int = 0

    @property
    def queued(self) -> int:
        """How many wait or run."""
        return self.submitted - self.done - self.dropped - self.cancelled - self.failed

    def count(self, found: dict[str, Any] | BaseException, *, late: bool) -> None:
        """A job is over: what it has answered or raised, and whether after its deadline."""
        if isinstance(found, CancelledError):
            self.cancelled += 1
        elif isinstance(found, BaseException):
            self.failed += 1
        else:
            self.done += 1
            self.late += late


@dataclass(frozen=True)
class Terms:
    """How a run is asked for. Raises InputError where nobody can keep to it.

    Attributes:
        deadline_ms: milliseconds from the call to its outputs, above 0; None where nobody says.
        priority: from -``PRIORITY`` to ``PRIORITY``; the highest goes first.
        on_late: what becomes of it where it cannot make its deadline.
        timeout_s: watchdog; see ``Executor.run``.
    """

    deadline_ms: float | None = None
    priority: int = 0
    on_late: Late = "late"
    timeout_s: float | None = None

    def __post_init__(self) -> None:
        if self.deadline_ms is not None and not 0 < self.deadline_ms < 1e9:
            raise InputError(
                f"deadline_ms is to be milliseconds from now, above 0 and finite, not {self.deadline_ms!r}"
            )
        whole = isinstance(self.priority, int) and not isinstance(self.priority, bool)
        if not whole or not -PRIORITY <= self.priority <= PRIORITY:
            raise InputError(f"priority is to be an integer from -{PRIORITY} to {PRIORITY}, not {self.priority!r}")
        if self.on_late not in ON_LATE:
            raise InputError(f"on_late is {self.on_late!r}; it is one of {', '.join(ON_LATE)}")
        if self.timeout_s is not None:
            refuse_unless_seconds("timeout_s", self.timeout_s)


USUAL: Final = Terms()
"""As soon as possible, behind whoever has a deadline."""


class Job(Future[dict[str, Any]]):
    """A run that was asked for: a future of the outputs by name.

    Callbacks run on the agent's threads, and are to be brief.

    Args:
        request: what policies know of it.
        inputs: what it computes from.
        timeout_s: its watchdog.
        owner: of the session that it was asked of, whoever answers.
        cancel: takes it out, or ends it.

    Attributes:
        wanted: cancelled when nobody waits for it any more.
        started_ns: when it began, nanoseconds of the monotonic clock; 0 before.
        ended_ns: when its outputs were there; 0 before.
        taken_back: whether its caller cancelled it while it ran.
        where: the processor that ran it; empty where whoever answers the session did.
    """

    def __init__(
        self,
        request: Request,
        inputs: Feed,
        timeout_s: float | None,
        owner: Member,
        cancel: Callable[[Job], bool],
    ) -> None:
        super().__init__()
        self.request, self.inputs, self.timeout_s, self.owner = request, inputs, timeout_s, owner
        self._cancel = cancel
        self.wanted = Cancel()
        self.started_ns = self.ended_ns = 0
        self.where = ""
        self.taken_back = False
        self._ended_by_caller = False

    @property
    def release_ns(self) -> int:
        """When it was asked for, nanoseconds of the monotonic clock."""
        return self.request.release_ns

    @property
    def deadline_ns(self) -> int | None:
        """When its outputs were to be there; None where nobody said."""
        return self.request.deadline_ns

    @property
    def is_late(self) -> bool:
        """Whether it has ended after its deadline."""
        due = self.request.deadline_ns
        return due is not None and self.ended_ns > due

    def cancel(self) -> bool:
        """Take it out of the queue, or end it at the next segment's border; False where it is over."""
        return self._cancel(self)

    def cancelled(self) -> bool:
        """Whether it was cancelled, before it began or after."""
        return super().cancelled() or self._ended_by_caller

    def give_up(self) -> None:
        """It was taken out before it began."""
        super().cancel()
        self.set_running_or_notify_cancel()

    def settle(self, found: dict[str, Any] | BaseException) -> None:
        """It is over."""
        self._ended_by_caller = isinstance(found, CancelledError)
        if isinstance(found, BaseException):
            self.set_exception(found)
        else:
            self.set_result(found)
