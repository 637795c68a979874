"""Obtaining a plan: what is cached, what must be measured first, and what to do when no planner answers."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeVar

from agent_sdk.blocking import BlockingPlanner
from agent_sdk.client import PlannerClient, ServedPlan
from agent_sdk.errors import (
    NotFoundError,
    PlanMismatchError,
    PlannerError,
    PlannerProtocolError,
    PlannerUnavailableError,
    RateLimitedError,
    ServerError,
)
from agent_sdk.plan_cache import PlanCache, Settled
from agent_sdk.report import PlanSource
from hope_schema import DeviceReport, Missing, MissingRequest, ModelGraph, Observations, Plan, PlanRequest, Processor

Result = TypeVar("Result")
Measure = Callable[[Missing], Observations | None]
"""Measures what is missing on this device; None when there was nothing it could add."""

OFFLINE: Final = (PlannerUnavailableError, ServerError, RateLimitedError, PlannerProtocolError)
"""Failures of the planner that a device outlives with what it has; refusals (4xx) are the caller's to mend."""


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


class PlanSupplier:
    """Obtains plans for one device from one planner, through one disk cache.

    Args:
        connect: opens the planner on first need, raising ``PlannerUnavailableError`` if it cannot; None for no planner.
        address: the planner's name in cache keys.
        cache: where plans are kept.
        device_id: this device's id.
    """

    def __init__(
        self, connect: Callable[[], BlockingPlanner] | None, address: str, cache: PlanCache, device_id: str
    ) -> None:
        self._connect = connect
        self._address = address
        self._cache = cache
        self._device_id = device_id
        self._planner: BlockingPlanner | None = None
        self._waited_s = 0.0

    def close(self) -> None:
        """Close the connection to the planner."""
        if self._planner is not None:
            self._planner.close()
            self._planner = None

    def obtain(
        self,
        graph: ModelGraph,
        processors: Sequence[Processor],
        request: PlanRequest,
        measure: Measure,
        *,
        wait_s: float | None = None,
        renew: bool = False,
    ) -> Obtained:
        """Return a plan for ``request``: revalidated from disk, or asked for after measuring what is missing.

        ``renew`` skips the revalidation and asks anew, e.g. after measured times drifted from predicted ones.

        Raises:
            PlannerStatusError: the planner refused the request (4xx).
            PlanMismatchError: the planner's plan is for another model or other processors.
        """
        self._waited_s = 0.0
        key = PlanCache.key(request, processors, self._address)
        copy = self._cached(key, graph, processors)
        if self._connect is None:
            return self._offline(key, copy, "no planner is set up")
        try:
            if copy is not None and copy.etag and not copy.reply.plan.filled and not renew:
                current = self._revalidated(copy)
                if current is not None:
                    check_belongs(current.reply.plan, graph, processors)
                    if current is not copy:
                        self._cache.store(key, current)
                    return self._obtained(key, current, cached=True)
            return self._asked(key, graph, processors, request, measure, wait_s)
        except OFFLINE as error:
            return self._offline(key, copy, str(error))

    def upload(self, observations: Observations) -> str | None:
        """Send figures measured while executing; return what went wrong, if anything: it costs the run nothing."""
        if self._connect is None:
            return None
        try:
            self._call(lambda client: client.upload(observations))
        except PlannerError as error:
            return f"measured times were not sent: {error}"
        return None

    def report(self, report: DeviceReport) -> str | None:
        """Tell the planner of versions and measured times; return what went wrong, if anything."""
        if self._connect is None:
            return None
        try:
            self._call(lambda client: client.report(self._device_id, report))
        except PlannerError as error:
            return f"measured times were not reported: {error}"
        return None

    def _asked(
        self,
        key: str,
        graph: ModelGraph,
        processors: Sequence[Processor],
        request: PlanRequest,
        measure: Measure,
        wait_s: float | None,
    ) -> Obtained:
        """Measure what the planner lacks, then ask it for the plan."""
        missing_request = MissingRequest(
            model_hash=graph.model_hash,
            soc=request.soc,
            frequency=request.frequency,
            device_id=self._device_id,
            processors=tuple(processors),
        )
        missing = self._call(lambda client: client.submitting(graph, lambda: client.missing(missing_request)))
        signatures, seconds = 0, 0.0
        if missing.latencies or missing.transfers:
            started = time.perf_counter()
            observations = measure(missing)
            seconds = time.perf_counter() - started
            if observations is not None:
                signatures = len(set(observations.latencies.signature))
                self._call(lambda client: client.upload(observations))
        served = self._call(lambda client: client.submitting(graph, lambda: client.plan(request, wait_s=wait_s)))
        check_belongs(served.reply.plan, graph, processors)
        self._cache.store(key, served)
        obtained = self._obtained(key, served, cached=served.source == "hit")
        return replace(obtained, profiled_signatures=signatures, profiling_seconds=seconds)

    def _revalidated(self, copy: ServedPlan) -> ServedPlan | None:
        try:
            current = self._call(lambda client: client.revalidate(copy))
        except NotFoundError:
            return None
        return copy if current.source == "unchanged" else current

    def _cached(self, key: str, graph: ModelGraph, processors: Sequence[Processor]) -> ServedPlan | None:
        copy = self._cache.load(key)
        if copy is None:
            return None
        try:
            check_belongs(copy.reply.plan, graph, processors)
        except PlanMismatchError:
            self._cache.forget(key)
            return None
        return copy

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
        if self._planner is None:
            assert self._connect is not None
            self._planner = self._connect()
        started = time.perf_counter()
        try:
            return self._planner.call(verb)
        finally:
            self._waited_s += time.perf_counter() - started


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
