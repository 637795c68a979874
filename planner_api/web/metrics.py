"""What one process counts for Prometheus."""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache

from prometheus_client import CollectorRegistry, Histogram, PlatformCollector, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from sqlalchemy.ext.asyncio import AsyncSession

REQUEST_BUCKETS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
JOB_BUCKETS_S = (0.01, 0.05, 0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)


@dataclass(frozen=True)
class Gauge:
    """A figure that the database tells at each scrape: ``hope_<name>``, with a value per value of ``label``."""

    name: str
    label: str
    read: Callable[[AsyncSession], Awaitable[Mapping[str, float]]]


class Metrics:
    """The counters and histograms of one process, and the values that its gauges had last."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._requests = Histogram(
            "hope_http_request_seconds",
            "Requests by route and status.",
            ["method", "route", "status"],
            buckets=REQUEST_BUCKETS_S,
            registry=self._registry,
        )
        self._request = cache(self._requests.labels)
        self._jobs = Histogram(
            "hope_job_seconds",
            "Ended jobs by kind and outcome.",
            ["kind", "outcome"],
            buckets=JOB_BUCKETS_S,
            registry=self._registry,
        )
        self.refused: Mapping[str, int] = {}
        """Requests beyond a quota, by its name."""
        self.gauges: dict[str, tuple[str, Mapping[str, float]]] = {}
        """By name: the label, and a value per value of it."""
        self._registry.register(self)
        ProcessCollector(registry=self._registry)
        PlatformCollector(registry=self._registry)

    def request(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count one answered request; ``route`` is one of a few, whatever clients ask for."""
        self._request(method, route, status).observe(seconds)

    def job(self, kind: str, outcome: str, seconds: float) -> None:
        self._jobs.labels(kind, outcome).observe(seconds)

    def collect(self) -> Iterable[Metric]:
        """What the registry cannot know by itself: refusals and gauges."""
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
        return generate_latest(self._registry)
