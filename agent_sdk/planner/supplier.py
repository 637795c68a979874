"""What an agent asks its planner for, one visible step after another, and what it has when no planner answers.

The steps are put together in ``Services.obtain``. A plan counts once ``build_program`` took it: that is the only check.
"""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Literal, TypeVar

from agent_sdk.engine.program import Program
from agent_sdk.errors import (
    BadRequestError,
    ConflictError,
    DeviceClosedError,
    NotFoundError,
    PermissionDeniedError,
    PlannerError,
    PlannerProtocolError,
    PlannerUnavailableError,
    RateLimitedError,
    ServerError,
)
from agent_sdk.forking import FORKED, Forks, keep, watch_forks
from agent_sdk.machine.soc import Soc
from agent_sdk.planner.client import PlannerClient, ServedPlan, Settled
from agent_sdk.planner.identity import versions
from agent_sdk.records import Records
from hope_schema import (
    DeviceReport,
    MeasuredRun,
    Missing,
    MissingRequest,
    ModelGraph,
    ModelVersion,
    Observations,
    Plan,
    PlanRequest,
)
from hope_schema.hashing import digest

Result = TypeVar("Result")
PlanSource = Literal["planner", "disk", "file", "single"]
"""Where the executed plan came from: the planner (or its 304), the disk without a planner, a plan file, or nobody."""

OFFLINE: Final = (PlannerUnavailableError, ServerError, RateLimitedError, PlannerProtocolError)
"""Failures of the planner that a device outlives with what it has; refusals (3xx, 4xx) are the caller's to mend."""
REFUSED: Final = (BadRequestError, ConflictError, PermissionDeniedError)
"""What the planner answers to figures that it will never take."""
MAX_PLANS: Final = 256
"""Plans kept on disk; the ones used longest ago are dropped first."""
MAX_UNSENT: Final = 16
"""Uploads kept until the planner takes them, because measuring again takes long; the oldest are dropped first."""


@dataclass(frozen=True)
class Question:
    """What is asked of the planner for one model: its graph, the plan's key, and what this device could measure."""

    graph: ModelGraph
    request: PlanRequest
    measurable: MissingRequest
    key: str


@dataclass(frozen=True)
class Obtained:
    """A plan and how it was come by.

    Attributes:
        served: the plan as a planner served it, also when it came from disk; None when there is neither a planner nor a
            cached plan: the caller runs its best single processor.
        cached: nobody had to solve for it now.
        key: the plan's key in the disk cache.
        program: the plan as this device carries it out; None where nobody has made that yet.
        profiled_signatures: op signatures measured for it in this call.
        planner_ms: milliseconds spent waiting for the planner.
    """

    served: ServedPlan | None
    source: PlanSource
    cached: bool
    profiled_signatures: int = 0
    profiling_seconds: float = 0.0
    planner_ms: float = 0.0
    key: str = ""
    program: Program | None = None
    notes: tuple[str, ...] = ()

    @property
    def plan(self) -> Plan | None:
        return self.served.reply.plan if self.served is not None else None

    @property
    def settled(self) -> Settled | None:
        return self.served.settled if self.served is not None else None

    @property
    def preliminary(self) -> bool:
        """Whether there may be a better one: nobody was asked for it, or it rests on figures that nobody measured."""
        return self.source == "disk" or (self.plan is not None and bool(self.plan.filled))


class PlanSupplier(Forks):
    """One device's side of the conversation with one planner, and the disk beside it.

    Every call raises PlannerError, and DeviceClosedError once the supplier is closed.

    Args:
        connect: opens the planner on first need, raising ``PlannerUnavailableError`` if it cannot.
        address: the planner's name in cache keys.
        directory: where plans are kept, and figures that the planner did not take yet.
        stands: whether a copy is known to be the newest without asking.

    Attributes:
        measuring: a file that is locked by whoever measures: two processes would disturb each other.
        waited_s: seconds spent waiting for the planner so far.
    """

    def __init__(
        self,
        connect: Callable[[], PlannerClient],
        address: str,
        directory: Path,
        stands: Callable[[ServedPlan], bool] = lambda copy: False,
    ) -> None:
        self._connect, self._address, self._stands = connect, address, stands
        self.plans = Records(directory / "plans", ServedPlan, MAX_PLANS)
        self._unsent = Records(directory / "unsent" / digest(address)[:32], Observations, MAX_UNSENT)
        self.measuring = directory / "profiling.lock"
        self._opening = threading.Lock()
        self._planner: PlannerClient | None = None
        self._closed = ""
        self.waited_s = 0.0
        watch_forks(self)

    def in_child(self) -> None:
        """Closed, and the connection is left to the parent, whose thread it would wait for at its end."""
        super().in_child()
        keep(self._planner)
        self._planner, self._closed = None, FORKED

    def close(self) -> None:
        """Close the connection to the planner; nothing is obtained any more. Idempotent.

        A planner that is being opened is not waited for: whoever opens it finds this closed, and closes it.
        """
        self._closed = self._closed or "the agent is closed; open a new one"
        self.disconnect(wait=False)

    def disconnect(self, *, wait: bool = True) -> None:
        """Close the connection to the planner, unless somebody is at it who is not to be waited for."""
        if not self._opening.acquire(blocking=wait):
            return
        planner, self._planner = self._planner, None
        self._opening.release()
        if planner is not None:
            planner.close()

    def question(self, graph: ModelGraph, request: PlanRequest, measurable: MissingRequest) -> Question:
        """Put a question. Its key covers runtime versions: an updated runtime never runs a plan for the old one."""
        self.refuse_when_closed()
        kinds = sorted((processor.id, processor.kind, processor.resources) for processor in measurable.processors)
        key = digest([request.model_dump(mode="json"), kinds, self._address])
        return Question(graph, request, measurable, key)

    def confirmed(self, copy: ServedPlan, wait_s: float | None) -> ServedPlan | None:
        """The copy if it is still the newest, else the newer one; None where the whole question is to be asked anew.

        Who waits for a better plan must say so in a new request.
        """
        if not copy.etag or (wait_s and copy.reply.provisional):
            return None
        if self._stands(copy):
            return copy
        try:
            return self._call(lambda client: client.revalidate(copy))
        except NotFoundError:
            return None

    def lacking(self, graph: ModelGraph, measurable: MissingRequest) -> Missing:
        return self._call(lambda client: client.submitting(graph, lambda: client.missing(measurable)))

    def plan(self, question: Question, wait_s: float | None) -> ServedPlan:
        return self._call(
            lambda client: client.submitting(question.graph, lambda: client.plan(question.request, wait_s=wait_s))
        )

    def joint(self, request: PlanRequest, wait_s: float | None) -> ServedPlan:
        return self._call(lambda client: client.plan(request, wait_s=wait_s))

    def resolve(self, reference: str) -> ModelVersion:
        return self._call(lambda client: client.resolve(reference))

    def hold(self, observations: Observations) -> bool:
        """Keep figures until they are sent; say whether the disk took them."""
        return self._unsent.keep(digest(observations.upload_id), observations)

    def send(self, observations: Observations, attempts: int | None = None) -> None:
        """Upload figures; they are kept until the planner has taken them, or says that it never will."""
        try:
            self._call(lambda client: client.upload(observations, attempts=attempts))
        except REFUSED:
            self._unsent.drop(digest(observations.upload_id))
            raise
        self._unsent.drop(digest(observations.upload_id))

    def send_earlier(self) -> list[str]:
        """Send what an earlier start measured and could not send; sentences about what became of the rest."""
        notes = []
        for observations in self._unsent.all():
            try:
                self.send(observations, attempts=1)
            except PlannerError as error:
                # NOTE: they must not keep the planner from answering; what is wrong, the next call says too.
                refused = isinstance(error, REFUSED)
                fate = "dropped" if refused else "kept on"
                notes.append(f"figures measured at an earlier start were {fate}: {error}")
                if not refused:
                    break
        return notes

    def upload(self, observations: Observations) -> str:
        """Send figures measured while executing; return what went wrong, if anything: it costs the run nothing."""
        return self._offered(lambda client: client.upload(observations), "sent")

    def tell(self, device_id: str, soc: Soc, measured: Sequence[MeasuredRun]) -> str:
        """Tell the planner of versions and what was measured of plans; return what went wrong, if anything."""
        report = DeviceReport(
            soc=soc.name,
            frequency=soc.frequency,
            versions=versions(),
            sent_at=datetime.now(UTC),
            measured=tuple(measured),
        )
        return self._offered(lambda client: client.report(device_id, report), "reported")

    @contextmanager
    def resting(self) -> Iterator[None]:
        """Have a planner within this process compute nothing meanwhile: it would take a core from what is timed."""
        planner = self._planner
        if planner is None:
            yield
            return
        try:
            planner.rest(True)
            yield
        finally:
            planner.rest(False)

    def _offered(self, verb: Callable[[PlannerClient], object], what: str) -> str:
        try:
            self._call(verb)
        except (PlannerError, DeviceClosedError) as error:
            return f"measured times were not {what}: {error}"
        return ""

    def _call(self, verb: Callable[[PlannerClient], Result]) -> Result:
        try:
            with self._opening:
                self.refuse_when_closed()
                self._planner = planner = self._planner or self._connect()
        finally:
            if self._closed:
                self.disconnect(wait=False)
        started = time.perf_counter()
        try:
            return verb(planner)
        except (RuntimeError, CancelledError):  # of a client that was closed meanwhile
            self.refuse_when_closed()
            raise
        finally:
            self.waited_s += time.perf_counter() - started

    def refuse_when_closed(self) -> None:
        """Raise DeviceClosedError once this is closed."""
        if self._closed:
            raise DeviceClosedError(self._closed)
