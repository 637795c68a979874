"""The planner over HTTP: every call typed, bounded, compressed, and retried only where that is safe.

Every ``POST`` here is idempotent by construction (a graph is known by its hash, an upload by its id, a plan by
its key), so a lost answer is simply asked for again.
"""

from __future__ import annotations

import email.utils
import math
import os
import random
import re
import time
import uuid
from collections.abc import Callable
from concurrent.futures import CancelledError, Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass
from threading import Event
from typing import Annotated, Final, TypeVar
from urllib.parse import quote

import httpx
from pydantic import AfterValidator, BaseModel, ValidationError

from agent_sdk.cancel import Cancel, cancelling, check
from agent_sdk.closing import Closes
from agent_sdk.errors import (
    InputError,
    ModelUnknownError,
    PlannerError,
    PlannerProtocolError,
    PlannerStatusError,
    PlannerUnavailableError,
    ProcessorLost,
    RedirectedError,
    status_error,
)
from agent_sdk.planner import wire
from agent_sdk.pool import begin_thread
from hope_schema import (
    DeviceReport,
    Enrolment,
    EnrolmentReceipt,
    Missing,
    MissingRequest,
    ModelGraph,
    ModelReceipt,
    ModelVersion,
    Observations,
    PlanReply,
    PlanRequest,
    ProblemDetails,
    Proof,
    ProofRequest,
    UploadReceipt,
)
from hope_schema.base import Contract, Microseconds
from hope_schema.hashing import digest

TOKEN_VARIABLE: Final = "HOPE_TOKEN"
"""Environment variable that holds the bearer token when none is given."""
MAX_ATTEMPTS: Final = 4
"""Attempts per call, the first included."""
BACKOFF_S: Final = 0.2
"""Longest wait before the first retry; doubles each time, and the actual wait is a random part of it (full jitter)."""
MAX_WAIT_S: Final = 30.0
"""Longest wait between two attempts; a planner that asks for more than the deadline leaves is not waited for."""
MAX_RESPONSE_BYTES: Final = 64 * 2**20
"""Largest answer accepted, before and after decompression."""
RETRIED_STATUSES: Final = frozenset({408, 425, 429, 502, 503, 504})
"""Answers that say "later"; 500 is a fault that repeating would only repeat."""
LONGEST_WAIT_S: Final = 86_400.0
"""No plan is improved for longer, and no other answer waited for."""
DEADLINE_S: Final = 10.0
"""Seconds that one call may take by default, all its attempts together; a plan may wait longer, see ``plan``."""
CONNECT_S: Final = 5.0
"""Seconds of these that one attempt to connect may take."""

Answer = TypeVar("Answer", bound=BaseModel)
Result = TypeVar("Result")


class Settled(Contract):
    """What this device found out about a plan version: nothing of it is worth finding out at every start.

    Attributes:
        trial_us: what the plan and each of its rivals took when they were tried side by side.
        calm: whether the cores were undisturbed meanwhile; if not, it serves until they are.
    """

    trial_us: dict[str, Microseconds]
    calm: bool = True


def _sendable(tag: str) -> str:
    """A tag, or none where it could not be sent back: then the plan is simply asked for anew."""
    return tag if tag.isascii() and tag.isprintable() else ""


class ServedPlan(Contract):
    """A plan as it came from the planner, and as it is kept on disk.

    Attributes:
        reply: the plan and what stands beside it.
        etag: its ETag; ``""`` where there is none that can be sent back.
        cached: whether the planner had it; else it was solved then.
        settled: what was found out about this very version before.
    """

    reply: PlanReply
    etag: Annotated[str, AfterValidator(_sendable)] = ""
    cached: bool = True
    settled: Settled | None = None


class PlannerClient(Closes):
    """A client of one planner, for any number of threads. Use as ``with PlannerClient(url) as planner``.

    A call that its caller no longer waits for (the deadline, a ``Cancel``, Ctrl-C, ``close``) is left to itself: what
    the planner has begun to do it ends, and nobody reads the answer.

    Args:
        url: the planner's address, ``http://`` or ``https://``.
        token: bearer token; by default ``HOPE_TOKEN``, if that is set; ``""`` sends none.
        device_id: which device asks, for a planner that takes no tokens to know it by.
        transport: replaces the network, e.g. by an in-process ASGI app (see ``agent_sdk.planner.embedded``).
        attempts: attempts per call, the first included.
        deadline_s: seconds that a call may take in all, whatever drips in meanwhile; None for no limit.
        rest: has a planner within this process stand still, or go on.

    Raises:
        InputError: the address is not an HTTP URL.
    """

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        device_id: str | None = None,
        transport: httpx.BaseTransport | None = None,
        attempts: int = MAX_ATTEMPTS,
        deadline_s: float | None = DEADLINE_S,
        rest: Callable[[bool], None] = lambda _: None,
    ) -> None:
        try:
            parsed = httpx.URL(url)
        except (httpx.InvalidURL, ValueError) as error:
            raise InputError(f"'{_shown(url)}' is not a planner address: {error}") from error
        if parsed.scheme not in ("http", "https") or not parsed.host:
            raise InputError(f"'{_shown(url)}' is not a planner address; expected something like http://127.0.0.1:8000")
        self.url = _shown(url)
        self.enrolled_at = ""
        """Where else this device has a token from, for who is told that it has none here."""
        self._attempts = max(1, attempts)
        self._closed = Cancel()
        headers = {"Accept": "application/json, application/problem+json", "Accept-Encoding": "zstd"}
        if token := os.environ.get(TOKEN_VARIABLE) if token is None else token:
            headers["Authorization"] = _bearer(token)
        if device_id is not None:
            headers["Hope-Device"] = device_id
        self._deadline_s = None if deadline_s is None else min(deadline_s, LONGEST_WAIT_S)  # no socket waits for ever
        self.rest = rest
        self._http = httpx.Client(base_url=url, headers=headers, transport=transport, follow_redirects=False)

    def close(self) -> None:
        """Close the connections; who still waits for an answer is told by a CancelledError. Idempotent."""
        self._closed.cancel()
        self._http.close()

    def submit_model(self, graph: ModelGraph) -> ModelReceipt:
        """``POST /models``: make the graph known. Repeating it is harmless."""
        return _parse(self._call("POST", "/models", graph, key=graph.model_hash), ModelReceipt)

    def model(self, model_hash: str) -> ModelGraph:
        """``GET /models/{hash}``: the graph the planner holds. Raises ``NotFoundError`` when it holds none."""
        return _parse(self._call("GET", f"/models/{model_hash}"), ModelGraph)

    def resolve(self, reference: str) -> ModelVersion:
        """``GET /references/{reference}``: the version that this device gets. Raises ``NotFoundError``."""
        return _parse(self._call("GET", f"/references/{quote(reference, safe='')}"), ModelVersion)

    def missing(self, request: MissingRequest) -> Missing:
        """``POST /profiles/missing``: what this device should measure. Raises ``ModelUnknownError``."""
        return _parse(self._call("POST", "/profiles/missing", request), Missing)

    def upload(self, observations: Observations, *, attempts: int | None = None) -> UploadReceipt:
        """``POST /profiles``: send measured figures, at most ``attempts`` times. The upload id makes that harmless."""
        answer = self._call("POST", "/profiles", observations, key=observations.upload_id, attempts=attempts)
        return _parse(answer, UploadReceipt)

    def plan(self, request: PlanRequest, *, wait_s: float | None = None) -> ServedPlan:
        """``POST /plans``: the plan for a key, solved now if need be. Raises ``ModelUnknownError``.

        ``wait_s`` asks the planner to hold the answer up to that many seconds for an improved plan.
        """
        patience_s = min(max(wait_s or 0.0, 0.0), LONGEST_WAIT_S)
        headers = {} if wait_s is None else {"Prefer": f"wait={round(patience_s)}"}
        key = digest(request.model_dump(mode="json"))
        return _served(self._call("POST", "/plans", request, key=key, headers=headers, patience_s=patience_s))

    def revalidate(self, copy: ServedPlan) -> ServedPlan:
        """``GET /plans/{id}`` with ``If-None-Match``: the copy itself if it is still the newest, else the newer one.

        Raises ``NotFoundError`` when the planner no longer holds the plan.
        """
        headers = {"If-None-Match": copy.etag} if copy.etag else {}
        answer = self._call("GET", f"/plans/{copy.reply.plan_id}", headers=headers)
        if answer.status == httpx.codes.NOT_MODIFIED:
            return copy
        return _served(answer)

    def enrol(self, claim: str, request: Enrolment) -> EnrolmentReceipt:
        """``POST /devices``: exchange a claim token for a token of this device's own, shown this once.

        Raises ``AuthenticationError`` for a claim that is unknown, spent or expired, ``ConflictError`` when the device
        is enrolled already. NOTE: not retried, because a claim is spent by the first attempt that arrives.
        """
        headers = {"Authorization": _bearer(claim)}
        return _parse(self._call("POST", "/devices", request, headers=headers, attempts=1), EnrolmentReceipt)

    def prove(self, request: ProofRequest) -> Proof:
        """``POST /devices/proof``: what proves that it knows the device's token. Raises ``NotFoundError`` elsewhere."""
        return _parse(self._call("POST", "/devices/proof", request), Proof)

    def report(self, device_id: str, report: DeviceReport) -> None:
        """``PUT /devices/{id}/report``: versions, and measured against predicted times; the newest report stands."""
        self._call("PUT", f"/devices/{quote(device_id, safe='')}/report", report)

    def submitting(self, graph: ModelGraph, call: Callable[[], Result]) -> Result:
        """Call ``call()``; if the planner does not know the model, send its graph once and try again."""
        try:
            return call()
        except ModelUnknownError:
            self.submit_model(graph)
            return call()

    def _call(
        self,
        method: str,
        path: str,
        message: BaseModel | None = None,
        *,
        key: str | None = None,
        headers: dict[str, str] | None = None,
        patience_s: float = 0.0,
        attempts: int | None = None,
    ) -> _Answer:
        """Send one request, again where that may help, and return the answer, of below 300 or a 304 asked for."""
        request_id = uuid.uuid4().hex
        headers = {**(headers or {}), "X-Request-ID": request_id}
        body = None
        if key is not None:
            headers["Idempotency-Key"] = key
        if message is not None:
            body, headers["Content-Type"] = message.model_dump_json().encode(), "application/json"
            if len(body) >= wire.SMALL:
                body, headers["Content-Encoding"] = wire.compress(body), "zstd"
        left_s = None if self._deadline_s is None else self._deadline_s + patience_s
        until = math.inf if left_s is None else time.monotonic() + left_s
        limits = httpx.Timeout(left_s, connect=CONNECT_S if left_s is None else min(CONNECT_S, left_s))
        most, tries = attempts or self._attempts, 0

        def call(over: Event) -> _Answer:
            nonlocal tries
            while True:
                tries += 1
                request = self._http.build_request(method, path, content=body, headers=headers, timeout=limits)
                try:
                    return self._once(request, over)
                except httpx.TransportError as error:
                    failure: PlannerError = self._no_answer(tries, str(error) or type(error).__name__, request_id)
                    failure.__cause__ = error
                except PlannerStatusError as error:
                    failure = error
                pause_s = _pause_s(failure, tries)
                if tries >= most or time.monotonic() + pause_s >= until or over.wait(pause_s):
                    raise failure

        try:
            return _waited_for(call, left_s, self._closed)
        except TimeoutError:
            raise self._no_answer(tries, f"the answer was not whole after {left_s:g} s", request_id) from None
        except ProcessorLost as error:
            raise self._no_answer(tries, str(error), request_id) from error

    def _no_answer(self, tries: int, reason: str, request_id: str) -> PlannerUnavailableError:
        attempts = "1 attempt" if tries == 1 else f"{tries} attempts"
        return PlannerUnavailableError(
            f"no answer from the planner at {self.url} after {attempts}: {reason}", request_id=request_id
        )

    def _once(self, request: httpx.Request, over: Event) -> _Answer:
        """Send one request and read its answer within the limits, unless nobody waits any more. Raises its refusal."""
        response = self._http.send(request, stream=True)
        request_id = response.headers.get("X-Request-ID") or request.headers["X-Request-ID"]
        try:
            raw = bytearray()
            for chunk in response.iter_raw():
                raw += chunk
                if over.is_set():
                    raise httpx.ReadTimeout("nobody waits any more")
                if len(raw) > MAX_RESPONSE_BYTES:
                    raise wire.TooLargeError(f"the answer exceeds the limit of {MAX_RESPONSE_BYTES} bytes")
            # NOTE: an answer without a body, such as a 304, may still name the encoding that a body would have had.
            encoding = response.headers.get("Content-Encoding", "") if raw else ""
            body = wire.decompress(bytes(raw), encoding, MAX_RESPONSE_BYTES)
        except ValueError as error:
            raise PlannerProtocolError(
                f"unusable answer from {_shown(request.url)}: {error}", request_id=request_id
            ) from error
        finally:
            response.close()
        answer = _Answer(response.status_code, response.headers, body, request_id)
        if answer.status < 300 or (answer.status == httpx.codes.NOT_MODIFIED and "If-None-Match" in request.headers):
            return answer
        raise self._refusal(answer)

    def _refusal(self, answer: _Answer) -> PlannerError:
        if answer.status == httpx.codes.NOT_MODIFIED:
            return PlannerProtocolError(f"the planner at {self.url} answered 304 unasked", request_id=answer.request_id)
        if answer.status < 400:  # followed, it could carry the token to a stranger
            where = _shown(answer.headers.get("Location", ""))
            cure = f"it points to {where}; if that is your planner, give its address instead" if where else "no address"
            return RedirectedError(answer.status, None, answer.request_id, f"{self.url} is not the planner: {cure}")
        problem = None
        if "json" in answer.headers.get("Content-Type", ""):
            with suppress(ValidationError):  # somebody else's error, a proxy's perhaps; its status says enough
                problem = ProblemDetails.model_validate_json(answer.body)
        if answer.status == httpx.codes.UNAUTHORIZED and problem is not None and self.enrolled_at:
            cure = f"this device is enrolled at {self.enrolled_at}: ask there, or name {self.url} in HOPE_ADDRESSES"
            problem = problem.model_copy(update={"detail": f"{problem.detail}; {cure} of that planner"})
        error = status_error(answer.status, problem, answer.request_id)
        error.retry_after_s = answer.retry_after_s
        return error


@dataclass(frozen=True)
class _Answer:
    status: int
    headers: httpx.Headers
    body: bytes
    request_id: str

    @property
    def retry_after_s(self) -> float | None:
        """``Retry-After`` in seconds, whether it was sent as seconds or as a date."""
        text = self.headers.get("Retry-After")
        if text is None:
            return None
        try:
            if text.strip().isdecimal():
                return float(text)
            when = email.utils.parsedate_tz(text)
            return None if when is None else max(0.0, email.utils.mktime_tz(when) - time.time())
        except (ValueError, OverflowError):  # no time at all: as if none had been sent
            return None


def _shown(url: str | httpx.URL) -> str:
    """Return an address as it may stand in messages: without the user and password it may hold, however spelt."""
    return re.sub(r"(^|//)[^?#]*@", r"\1***@", str(url))


def _bearer(token: str) -> str:
    if not (token.isascii() and token.isprintable()):
        raise InputError("the token holds characters that cannot stand in an HTTP header")
    return f"Bearer {token}"


def _parse(answer: _Answer, kind: type[Answer]) -> Answer:
    try:
        return kind.model_validate_json(answer.body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "body"
        raise PlannerProtocolError(
            f"the planner's answer is not a {kind.__name__}: {where}: {first['msg']} [request {answer.request_id}]",
            request_id=answer.request_id,
        ) from error


def _served(answer: _Answer) -> ServedPlan:
    cached = answer.headers.get("Hope-Plan-Cache", "").lower() == "hit"
    return ServedPlan(reply=_parse(answer, PlanReply), etag=answer.headers.get("ETag", ""), cached=cached)


def _pause_s(failure: PlannerError, tries: int) -> float:
    """How long to wait before another attempt; infinite where none would help."""
    if isinstance(failure, PlannerStatusError):
        if failure.status not in RETRIED_STATUSES:
            return math.inf
        if failure.retry_after_s:
            return failure.retry_after_s
    elif isinstance(failure.__cause__, httpx.UnsupportedProtocol):
        return math.inf
    # Full jitter, so that a fleet does not return in step.
    return random.uniform(0.0, min(MAX_WAIT_S, BACKOFF_S * 2 ** (tries - 1)))


def _waited_for(call: Callable[[Event], Result], most_s: float | None, closed: Cancel) -> Result:
    """Wait for a call, which is handed an event that is set once nobody waits any more.

    Raises what it raises, TimeoutError after ``most_s`` seconds, NotWantedError where what this thread works under is
    cancelled, CancelledError where ``closed`` is, or ProcessorLost where no thread can be started.
    """
    future: Future[Result] = Future()
    over = Event()

    def run() -> None:
        with suppress(InvalidStateError):  # nobody waits any more
            try:
                future.set_result(call(over))
            except BaseException as error:  # noqa: BLE001  it is raised where the answer is waited for
                future.set_exception(error)

    begin_thread(run, "hope-planner-call")
    try:
        with cancelling(future.cancel), closed.calling(future.cancel):
            return future.result(most_s)
    except CancelledError:
        check()
        raise
    finally:
        over.set()
        future.cancel()
