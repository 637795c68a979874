"""Figures for Prometheus. Counting costs a note in a list; everything else happens many at a time, or at a scrape."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from prometheus_client.core import Metric

REQUEST_BUCKETS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
COUNTED_AT_ONCE = 100
"""Requests that are noted before they are counted: a loop over many costs each of them a third of one by itself."""
SOLVE_BUCKETS_S = (0.01, 0.05, 0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)


_ROUTES = (
    (re.compile(r"/(models|profiles|plans|devices|fleet|names|groups|releases|audit)"), None),
    (re.compile(r"/(healthz|readyz|metrics|openapi\.json)"), None),
    (re.compile(r"/(profiles/missing|fleet/(profiles|models|plans))"), None),
    (re.compile(r"/profiles/.+/.+"), "/profiles/{soc}/{frequency}"),
    (re.compile(r"/models/[^/]+/plans"), "/models/{model_hash}/plans"),
    (re.compile(r"/models/[^/]+"), "/models/{model_hash}"),
    (re.compile(r"/plans/[^/]+/versions"), "/plans/{plan_id}/versions"),
    (re.compile(r"/plans/[^/]+/diff"), "/plans/{plan_id}/diff"),
    (re.compile(r"/plans/[^/]+"), "/plans/{plan_id}"),
    (re.compile(r"/names/[^/]+/versions"), "/names/{name}/versions"),
    (re.compile(r"/names/[^/]+/versions/[^/]+"), "/names/{name}/versions/{version}"),
    (re.compile(r"/names/[^/]+/versions/[^/]+/labels"), "/names/{name}/versions/{version}/labels"),
    (re.compile(r"/names/[^/]+/aliases/[^/]+"), "/names/{name}/aliases/{alias}"),
    (re.compile(r"/references/[^/]+"), "/references/{reference}"),
    (re.compile(r"/groups/[^/]+"), "/groups/{name}"),
    (re.compile(r"/models/[^/]+/rollout"), "/models/{model_hash}/rollout"),
    (re.compile(r"/releases/[^/]+"), "/releases/{release_id}"),
    (re.compile(r"/releases/[^/]+/[^/]+"), "/releases/{release_id}/{action}"),
    (re.compile(r"/fanouts/[^/]+"), "/fanouts/{fanout_id}"),
    (re.compile(r"/devices/.+/report"), "/devices/{device_id}/report"),
    (re.compile(r"/devices/.+/description"), "/devices/{device_id}/description"),
    (re.compile(r"/devices/.+"), "/devices/{device_id}"),
    (re.compile(r"/console(/.*)?"), "/console"),
)


def route_of(path: str) -> str:
    """The route a path belongs to, as a metric label: a bounded set, whatever clients ask for."""
    for pattern, template in _ROUTES:
        if pattern.fullmatch(path):
            return template or path
    return "other"


class Histogram:
    """Counts and sum of one series."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        """Count one value, in seconds."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    def buckets(self) -> list[tuple[str, float]]:
        """Cumulative counts as Prometheus wants them."""
        total, found = 0.0, []
        for bound, count in zip((*map(str, self.bounds), "+Inf"), self.counts, strict=True):
            total += count
            found.append((bound, total))
        return found


class Metrics:
    """What one process counts. Not thread-safe: everything happens on the event loop."""

    def __init__(self) -> None:
        self._ended: list[tuple[str, str, int, float]] = []
        self._requests: defaultdict[tuple[str, str, int], Histogram] = defaultdict(lambda: Histogram(REQUEST_BUCKETS_S))
        self._solves: defaultdict[str, Histogram] = defaultdict(lambda: Histogram(SOLVE_BUCKETS_S))
        self.refused: Mapping[str, int] = {}
        """Requests refused beyond a quota, by its name."""
        self.gauges: dict[str, tuple[str, Mapping[str, float]]] = {}
        """Set at each scrape: name to (label name, value per label)."""

    def request(self, method: str, path: str, status: int, seconds: float) -> None:
        """Note one answered request."""
        self._ended.append((method, path, status, seconds))
        if len(self._ended) >= COUNTED_AT_ONCE:
            self._count()

    def solved(self, outcome: str, seconds: float) -> None:
        """Count one ended solve."""
        self._solves[outcome].observe(seconds)

    def _count(self) -> None:
        ended, self._ended = self._ended, []
        for method, path, status, seconds in ended:
            self._requests[method, route_of(path), status].observe(seconds)

    def collect(self) -> Iterable[Metric]:
        """Called by the registry."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

        self._count()
        requests = HistogramMetricFamily(
            "hope_http_request_seconds", "Requests by route and status.", labels=["method", "route", "status"]
        )
        for (method, route, status), series in self._requests.items():
            requests.add_metric([method, route, str(status)], series.buckets(), series.sum)
        yield requests
        solves = HistogramMetricFamily("hope_solve_seconds", "Ended solves by outcome.", labels=["outcome"])
        for outcome, solved in self._solves.items():
            solves.add_metric([outcome], solved.buckets(), solved.sum)
        yield solves
        refused = CounterMetricFamily("hope_quota_refusals", "Requests beyond a quota.", labels=["quota"])
        for quota, count in self.refused.items():
            refused.add_metric([quota], count)
        yield refused
        for name, (label, values) in self.gauges.items():
            gauge = GaugeMetricFamily(f"hope_{name}", f"{name.replace('_', ' ').capitalize()}.", labels=[label])
            for key, value in values.items():
                gauge.add_metric([key], value)
            yield gauge

    def render(self) -> bytes:
        """The page that Prometheus reads."""
        # NOTE: imported here, because an agent with the planner inside is never scraped.
        from prometheus_client import CollectorRegistry, PlatformCollector, ProcessCollector, generate_latest

        registry = CollectorRegistry()
        registry.register(self)
        ProcessCollector(registry=registry)
        PlatformCollector(registry=registry)
        return generate_latest(registry)
