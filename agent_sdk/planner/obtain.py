"""Obtaining a plan: what is cached, what must be measured first, and what to do when no planner answers."""

from __future__ import annotations

import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import CancelledError
from dataclasses import dataclass, replace
from typing import Final, Literal, TypeVar

from agent_sdk.engine import DeviceClosedError, IllegalPlanError
from agent_sdk.errors import (
    BadRequestError,
    ConflictError,
    NotFoundError,
    PermissionDeniedError,
    PlanMismatchError,
    PlannerError,
    PlannerProtocolError,
    PlannerUnavailableError,
    RateLimitedError,
    ServerError,
)
from agent_sdk.planner.blocking import BlockingPlanner
from agent_sdk.planner.cache import PlanCache, Settled, Unsent
from agent_sdk.planner.client import PlannerClient, ServedPlan
from hope_schema import DeviceReport, Missing, MissingRequest, ModelGraph, Observations, Plan, PlanRequest, Processor

Result = TypeVar("Result")
PlanSource = Literal["planner", "disk", "single"]
"""Where the executed plan came from: the planner (or its 304), the disk without a planner, or no planner at all."""
Measure = Callable[[Missing], Observations | None]
"""Measures what is missing on this device; None when there was nothing it could add."""
Check = Callable[[Plan], object]
"""Raises ``IllegalPlanError`` for a plan that the engine could not carry out."""

OFFLINE: Final = (PlannerUnavailableError, ServerError, RateLimitedError, PlannerProtocolError)
"""Failures of the planner that a device outlives with what it has; refusals (4xx) are the caller's to mend."""
REFUSED: Final = (BadRequestError, ConflictError, PermissionDeniedError)
"""What the planner answers to figures that it will never take."""


@dataclass(frozen=True)
class Obtained:
    """A plan and how it was come by.

    Attributes:
        plan: None when there is neither a planner nor a cached plan: the caller runs its best single processor.
        served: the planner's reply around the plan, also when it came from disk.
        cached: nobody had to solve for it now.
        settled: what this device found out about this very version before.
        key: the plan's key in the disk cache.
        profiled_signatures: op signatures measured for it in this call.
        planner_ms: milliseconds spent waiting for the planner.
    """

    plan: Plan | None
    served: ServedPlan | None
    source: PlanSource
    cached: bool
    profiled_signatures: int = 0
    profiling_seconds: float = 0.0
    planner_ms: float = 0.0
    settled: Settled | None = None
    key: str = ""
    notes: tuple[str, ...] = ()


@dataclass
class _Profiled:
    """What one call measured, and what became of it; it outlives a planner that goes away afterwards."""

    signatures: int = 0
    seconds: float = 0.0
    notes: tuple[str, ...] = ()


class PlanSupplier:
    """Obtains plans for one device from one planner, through one disk cache.

    Args:
        connect: opens the planner on first need, raising ``PlannerUnavailableError`` if it cannot; None for no planner.
        address: the planner's name in cache keys.
        cache: where plans are kept.
        unsent: where measured figures wait that the planner did not take yet.
        device_id: this device's id.
    """

    def __init__(
        self,
        connect: Callable[[], BlockingPlanner] | None,
        address: str,
        cache: PlanCache,
        unsent: Unsent,
        device_id: str,
    ) -> None:
        self._connect = connect
        self._address = address
        self._cache = cache
        self._unsent = unsent
        self._device_id = device_id
        self._opening = threading.Lock()
        self._planner: BlockingPlanner | None = None
        self._closed = False
        self._waited_s = 0.0

    def close(self) -> None:
        """Close the connection to the planner; nothing is obtained any more. Idempotent."""
        with self._opening:
            planner, self._planner, self._closed = self._planner, None, True
        if planner is not None:
            planner.close()

    def obtain(
        self,
        graph: ModelGraph,
        processors: Sequence[Processor],
        request: PlanRequest,
        measure: Measure,
        check: Check,
        *,
        wait_s: float | None = None,
        renew: bool = False,
    ) -> Obtained:
        """Return a plan for ``request``: revalidated from disk, or asked for after measuring what is missing.

        ``renew`` skips the revalidation and asks anew, e.g. after measured times drifted from predicted ones. A plan
        that fails ``check`` is none: it is neither kept nor returned.

        Raises:
            PlannerStatusError: the planner refused the request (4xx).
            PlanMismatchError: the planner's plan is for another model or other processors.
            DeviceClosedError: the supplier is closed.
        """
        self._refuse_when_closed()
        self._waited_s = 0.0
        key = PlanCache.key(request, processors, self._address)

        def checked(served: ServedPlan) -> ServedPlan:
            check_belongs(served.reply.plan, graph, processors)
            try:
                check(served.reply.plan)
            except IllegalPlanError as error:
                raise PlannerProtocolError(f"the planner's plan cannot be carried out: {error}") from error
            return served

        copy = self._cached(key, checked)
        if self._connect is None:
            return self._offline(key, copy, "no planner is set up")
        profiled = _Profiled()
        try:
            self._send_earlier(profiled)
            current = None
            if copy is not None and not renew and _may_be_confirmed(copy, wait_s):
                current = self._revalidated(copy)
            if current is not None:
                if current is not copy:
                    self._cache.store(key, checked(current))
                obtained = self._obtained(key, current, cached=True)
            else:
                self._profile(graph, processors, request, measure, profiled)
                served = self._call(
                    lambda client: client.submitting(graph, lambda: client.plan(request, wait_s=wait_s))
                )
                self._cache.store(key, checked(served))
                obtained = self._obtained(key, served, cached=served.source == "hit")
        except OFFLINE as error:
            obtained = self._offline(key, copy, str(error))
        return replace(
            obtained,
            profiled_signatures=profiled.signatures,
            profiling_seconds=profiled.seconds,
            notes=(*obtained.notes, *profiled.notes),
        )

    def upload(self, observations: Observations) -> str | None:
        """Send figures measured while executing; return what went wrong, if anything: it costs the run nothing."""
        if self._connect is None:
            return None
        try:
            self._call(lambda client: client.upload(observations))
        except (PlannerError, DeviceClosedError) as error:
            return f"measured times were not sent: {error}"
        return None

    def report(self, report: DeviceReport) -> str | None:
        """Tell the planner of versions and measured times; return what went wrong, if anything."""
        if self._connect is None:
            return None
        try:
            self._call(lambda client: client.report(self._device_id, report))
        except (PlannerError, DeviceClosedError) as error:
            return f"measured times were not reported: {error}"
        return None

    def _profile(
        self,
        graph: ModelGraph,
        processors: Sequence[Processor],
        request: PlanRequest,
        measure: Measure,
        profiled: _Profiled,
    ) -> None:
        """Measure what the planner lacks and send it."""
        missing_request = MissingRequest(
            model_hash=graph.model_hash,
            soc=request.soc,
            frequency=request.frequency,
            device_id=self._device_id,
            processors=tuple(processors),
        )
        missing = self._call(lambda client: client.submitting(graph, lambda: client.missing(missing_request)))
        if not missing.latencies and not missing.transfers:
            return
        started = time.perf_counter()
        observations = measure(missing)
        profiled.seconds = time.perf_counter() - started
        if observations is None:
            return
        profiled.signatures = len(set(observations.latencies.signature))
        kept = self._unsent.keep(observations)
        try:
            self._send(observations)
        except OFFLINE:
            what = "are kept and sent at the next start" if kept else "could neither be sent nor kept"
            profiled.notes += (f"the figures measured now {what}",)
            raise

    def _send_earlier(self, profiled: _Profiled) -> None:
        """Send what an earlier call measured and could not send."""
        for observations in self._unsent.load():
            try:
                self._send(observations, attempts=1)
            except PlannerError as error:
                # NOTE: they must not keep the planner from answering; what is wrong, the next call says too.
                fate = "dropped" if isinstance(error, REFUSED) else "kept on"
                profiled.notes += (f"figures measured at an earlier start were {fate}: {error}",)
                if isinstance(error, PlannerUnavailableError | RateLimitedError):
                    return

    def _send(self, observations: Observations, attempts: int | None = None) -> None:
        """Upload figures; they are kept until the planner has taken them, or says that it never will."""
        try:
            self._call(lambda client: client.upload(observations, attempts=attempts))
        except REFUSED:
            self._unsent.drop(observations)
            raise
        self._unsent.drop(observations)

    def _revalidated(self, copy: ServedPlan) -> ServedPlan | None:
        try:
            current = self._call(lambda client: client.revalidate(copy))
        except NotFoundError:
            return None
        return copy if current.source == "unchanged" else current

    def _cached(self, key: str, checked: Callable[[ServedPlan], ServedPlan]) -> ServedPlan | None:
        copy = self._cache.load(key)
        try:
            return None if copy is None else checked(copy)
        except (PlanMismatchError, PlannerProtocolError):
            self._cache.forget(key)
            return None

    def settle(self, obtained: Obtained, settled: Settled) -> None:
        """Keep what was found out about the obtained plan for the next start."""
        if obtained.served is not None:
            self._cache.settle(obtained.key, obtained.served, settled)

    def _offline(self, key: str, copy: ServedPlan | None, reason: str) -> Obtained:
        if copy is None:
            note = f"{reason}; running the best single processor instead of a plan"
            return Obtained(None, None, "single", cached=False, planner_ms=self._waited_s * 1e3, notes=(note,))
        age = copy.reply.created_at.date().isoformat()
        note = f"{reason}; using the last plan from the disk cache, made on {age}"
        return replace(self._obtained(key, copy, cached=True), source="disk", notes=(note,))

    def _obtained(self, key: str, served: ServedPlan, *, cached: bool) -> Obtained:
        notes = ("a better plan is still being solved; the next run picks it up",) if served.reply.provisional else ()
        return Obtained(
            served.reply.plan,
            served,
            "planner",
            cached=cached,
            planner_ms=self._waited_s * 1e3,
            settled=self._cache.settled(key, served),
            key=key,
            notes=notes,
        )

    def _call(self, verb: Callable[[PlannerClient], Awaitable[Result]]) -> Result:
        assert self._connect is not None
        with self._opening:
            self._refuse_when_closed()
            self._planner = planner = self._planner or self._connect()
        started = time.perf_counter()
        try:
            return planner.call(verb)
        except (RuntimeError, CancelledError):  # of a client that was closed meanwhile
            self._refuse_when_closed()
            raise
        finally:
            self._waited_s += time.perf_counter() - started

    def _refuse_when_closed(self) -> None:
        if self._closed:
            raise DeviceClosedError("the agent is closed; open a new one")


def _may_be_confirmed(copy: ServedPlan, wait_s: float | None) -> bool:
    """Whether it is enough to ask if a copy is still the newest.

    What was filled in may be measured by now, and who waits for a better plan must say so in a new request.
    """
    return bool(copy.etag) and not copy.reply.plan.filled and not (wait_s and copy.reply.provisional)


def check_belongs(plan: Plan, graph: ModelGraph, processors: Sequence[Processor]) -> None:
    """Raise PlanMismatchError unless ``plan`` places every op of ``graph`` once, on processors of this device."""
    if plan.model_hash != graph.model_hash:
        raise PlanMismatchError(
            f"the plan is for model {plan.model_hash[:12]}, but '{graph.name}' has hash {graph.model_hash[:12]}; "
            "ask the planner for a plan of this model"
        )
    placed = {op for step in plan.steps for op in step.ops}
    if placed != graph.op.keys():
        odd = sorted(placed ^ graph.op.keys())[0]
        raise PlanMismatchError(f"the plan and '{graph.name}' differ in op '{odd}'; ask for a plan of this model")
    own = {processor.id for processor in processors}
    for name in plan.processors_used:
        if name not in own:
            raise PlanMismatchError(
                f"the plan runs ops on '{name}', which this device does not have; it has {', '.join(sorted(own))}"
            )
