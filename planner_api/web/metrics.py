"""Figures for Prometheus, counted as things happen and put into words at a scrape."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from prometheus_client.core import Metric

REQUEST_BUCKETS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
SOLVE_BUCKETS_S = (0.01, 0.05, 0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)


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
        self._requests: defaultdict[tuple[str, str, int], Histogram] = defaultdict(lambda: Histogram(REQUEST_BUCKETS_S))
        self._solves: defaultdict[str, Histogram] = defaultdict(lambda: Histogram(SOLVE_BUCKETS_S))
        self.refused: Mapping[str, int] = {}
        """Requests refused beyond a quota, by its name."""
        self.gauges: dict[str, tuple[str, Mapping[str, float]]] = {}
        """Set at each scrape: name to (label name, value per label)."""

    def request(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count one answered request; ``route`` is one of a few, whatever clients ask for."""
        self._requests[method, route, status].observe(seconds)

    def solved(self, outcome: str, seconds: float) -> None:
        """Count one ended solve."""
        self._solves[outcome].observe(seconds)

    def collect(self) -> Iterable[Metric]:
        """Called by the registry."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

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
