"""The agent's errors, one tree below ``HopeError``; a class says what is wrong, its message what to do about it."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from hope_schema import ProblemDetails

SESSION_CLOSED: Final = "the session is closed"
"""What a ``DeviceClosedError`` says of a session that its caller, or its agent, has closed."""
MODEL_UNKNOWN: Final = "urn:hope:model-unknown"
"""Problem type by which the planner says that it does not hold the model's graph."""


class HopeError(Exception):
    """Base of all errors of the agent; its text names the cause and, where there is one, the cure."""


def because(error: Exception) -> str:
    """What the system says of a refusal, without its number and the path; else the error's own text.

    ``strerror`` will not do: ``socket.create_server`` writes the address into it once more.
    """
    return os.strerror(error.errno) if isinstance(error, OSError) and error.errno else str(error)


class InputError(HopeError, ValueError):
    """What the caller gave cannot be used."""


class ModelError(InputError):
    """The model cannot be read; the message names the file, and the op where one is to blame."""


class OpenShapeError(ModelError):
    """The shape of an input is open, and none was given; a plan is made for one set of shapes."""


class UnplannableError(ModelError):
    """The model is well formed, but cannot be planned as it is; a runtime may still run it as a whole."""


class UnknownNameError(InputError):
    """A name that does not exist among a known set.

    Args:
        what: the kind of thing named, e.g. ``"processor"``.
        known: the names that exist; the closest are suggested.
    """

    def __init__(self, what: str, name: str, known: Iterable[str]) -> None:
        known = tuple(known)
        close = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
        hint = f"did you mean {' or '.join(close)}?" if close else f"known: {', '.join(known) or 'none'}"
        super().__init__(f"unknown {what} '{name}'; {hint}")


class PlanMismatchError(InputError):
    """A plan that does not belong to this model or this device."""


class IllegalPlanError(InputError):
    """The plan contradicts the model or itself, so no order of execution exists."""


class FeedError(InputError):
    """The arrays given to ``run`` do not match the model's inputs."""


class PlannerError(HopeError):
    """The planner could not help; ``request_id`` is what its logs may know the call by."""

    def __init__(self, message: str, *, request_id: str | None = None) -> None:
        super().__init__(message)
        self.request_id = request_id


class PlannerUnavailableError(PlannerError):
    """No usable answer after every retry."""


class PlannerProtocolError(PlannerError):
    """The planner answered something that the contract does not allow."""


FOREIGN: Final = "not as a planner does; is its address right?"
"""Of an answer that a proxy, a page or another service gave."""


class PlannerStatusError(PlannerError):
    """The planner refused.

    Attributes:
        status: the HTTP status.
        type: the stable problem URN, ``about:blank`` when the body was not problem+json.
        detail: what the planner says went wrong.
        request_id: the id under which the planner logged the request.
    """

    retry_after_s: float | None = None
    """Seconds the planner asked to wait, if it said."""

    def __init__(
        self, status: int, problem: ProblemDetails | None, request_id: str | None, detail: str = FOREIGN
    ) -> None:
        self.status = status
        self.type = problem.type if problem else "about:blank"
        self.detail = problem.detail if problem else detail
        request_id = (problem.request_id if problem else None) or request_id
        errors = f" ({'; '.join(problem.errors[:3])})" if problem and problem.errors else ""
        known_as = f" [request {request_id}]" if request_id else ""
        super().__init__(f"planner answered {status}: {self.detail}{errors}{known_as}", request_id=request_id)


class RedirectedError(PlannerStatusError):
    """3xx: the planner is said to be elsewhere."""


class BadRequestError(PlannerStatusError):
    """400, 413, 415 or 422: the planner does not accept what was sent."""


class AuthenticationError(PlannerStatusError):
    """401: no token, or one the planner does not know."""


class PermissionDeniedError(PlannerStatusError):
    """403: the token may not do this."""


class NotFoundError(PlannerStatusError):
    """404 or 410."""


class ModelUnknownError(NotFoundError):
    """The planner does not hold this model's graph yet."""


class ConflictError(PlannerStatusError):
    """409: something else is stored under this key."""


class RateLimitedError(PlannerStatusError):
    """429 after every retry."""


class ServerError(PlannerStatusError):
    """5xx after every retry."""


class NotWantedError(HopeError):
    """Nobody waits any more for what was being done: the session is closed, or the program ends."""


class RefusedError(HopeError):
    """A request that this agent's server does not serve.

    Attributes:
        status: the HTTP status that says why.
    """

    def __init__(self, status: int, message: str) -> None:
        self.status = status
        super().__init__(message)


class ExecutionError(HopeError):
    """A plan was being carried out and failed."""


class SegmentFailedError(ExecutionError):
    """A segment raised while it ran; ``__cause__`` is what it raised.

    Attributes:
        processor: id of the processor it ran on.
        segment: index of the segment in its program; -1 where a tensor could not be copied.
        ops: source op ids of the segment.
    """

    def __init__(self, processor: str, segment: int, ops: tuple[str, ...], reason: BaseException) -> None:
        self.processor = processor
        self.segment = segment
        self.ops = ops
        text = f"{type(reason).__name__}: {reason}" if str(reason) else f"{type(reason).__name__}: no further detail"
        if segment < 0:
            super().__init__(f"{ops[0]} failed: {text}")
            return
        shown = f"op '{ops[0]}'" if len(ops) == 1 else f"{len(ops)} ops, '{ops[0]}' to '{ops[-1]}'"
        super().__init__(f"segment {segment} ({shown}) failed on '{processor}': {text}")


class RunTimeoutError(ExecutionError):
    """The run did not finish within its time; the message names what each processor was doing."""


class DroppedError(ExecutionError):
    """The run was given up before it began, because it could not have made its deadline."""


class QueueFullError(ExecutionError):
    """So many runs wait already that no more are taken."""


class DeviceClosedError(ExecutionError):
    """The device takes no runs any more, or a processor still hangs in a run that was given up."""


class ProcessorError(ExecutionError):
    """A processor's runtime refused, died, or ran something elsewhere than asked."""


class UnsupportedOp(ProcessorError):
    """The runtime cannot run an op on this processor."""


class CompilationFailed(ProcessorError):
    """The runtime refused a segment for a reason other than an unsupported op."""


class SilentFallback(ProcessorError):
    """The runtime accepted a segment but would run (part of) it on another device."""


class WrongOutput(ProcessorError):
    """A segment returned a shape or an element type that the graph does not declare."""


class OutOfMemory(ProcessorError):
    """A buffer or a compiled segment did not fit into the processor's memory, or its files on the disk."""


class ProcessorLost(ProcessorError):
    """The runtime failed while running, its device disappeared, or the system refused it a file or a thread."""


class HostLate(ProcessorLost):
    """Another machine did not answer in time; it may answer the next run."""


def forgiven(error: ExecutionError) -> bool:
    """Whether who failed so may be asked again: another machine was late, for which one slow moment is enough."""
    return isinstance(error.__cause__, HostLate)


_BY_STATUS: Final[dict[int, type[PlannerStatusError]]] = {
    400: BadRequestError,
    401: AuthenticationError,
    403: PermissionDeniedError,
    404: NotFoundError,
    409: ConflictError,
    410: NotFoundError,
    413: BadRequestError,
    415: BadRequestError,
    422: BadRequestError,
    429: RateLimitedError,
}


def status_error(status: int, problem: ProblemDetails | None, request_id: str | None) -> PlannerStatusError:
    """Return the most telling error for an HTTP status of 400 or above."""
    if problem is not None and problem.type == MODEL_UNKNOWN:
        return ModelUnknownError(status, problem, request_id)
    kind = _BY_STATUS.get(status, ServerError if status >= 500 else PlannerStatusError)
    return kind(status, problem, request_id)


def printable(text: str) -> str:
    """Return text that files or the planner gave as one line that may be sent to a terminal."""
    return "".join(character if character.isprintable() else "?" for character in " ".join(text.split()))


def said(error: BaseException) -> str:
    """Return what an exception of another package says as one line; its class where it says nothing."""
    return printable(str(error))[:400] or type(error).__name__


def refuse_unless_seconds(name: str, seconds: float) -> None:
    """Raise InputError, which names the parameter, unless it is a time; NaN is none."""
    if not seconds >= 0:
        raise InputError(f"{name} must be a number of seconds, 0 or more, not {seconds}")
