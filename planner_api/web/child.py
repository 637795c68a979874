"""What the reader's child does: reads one body, within the processor time that it may take."""

import signal

import msgspec

from planner_api.jobs.computing import Ask, named
from planner_api.web.errors import HttpError
from planner_api.web.inflate import Body, inflate


class BodyToRead(msgspec.Struct):
    """A body, the name of its reading, its limit when inflated, and the processor time that it may take."""

    reading: str
    body: Body
    limit: int
    seconds: float


def answer_to(task: BodyToRead, _ask: Ask) -> bytes:
    """Return what the child answers: a byte that says whether it went well, and the result or the refusal."""
    signal.signal(signal.SIGPROF, signal.SIG_DFL)  # ends the process, in the middle of whatever it computes
    signal.setitimer(signal.ITIMER_PROF, task.seconds)
    try:
        text = inflate(task.body, limit=task.limit)
        return b"\x01" + msgspec.msgpack.encode(named(task.reading)(text))
    except HttpError as error:
        return refusal(error)
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def refusal(error: HttpError) -> bytes:
    return b"\x00" + msgspec.msgpack.encode((error.status, error.kind, error.detail, error.causes))
