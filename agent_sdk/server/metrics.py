"""What the server counts for Prometheus."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from prometheus_client import CollectorRegistry, Histogram, PlatformCollector, ProcessCollector, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

SECONDS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class Metrics(Collector):
    """Histograms of one server, and the gauges that are read at each scrape.

    Args:
        gauges: what each reads, by name and what it is.
    """

    def __init__(self, gauges: Mapping[tuple[str, str], Callable[[], float]]) -> None:
        self._gauges = gauges
        self._registry = CollectorRegistry()
        self._inferences = Histogram(
            "hope_inference_seconds",
            "Inferences by model, transport and outcome, from the whole request to the answer.",
            ["model", "transport", "outcome"],
            buckets=SECONDS,
            registry=self._registry,
        )
        self._registry.register(self)
        ProcessCollector(registry=self._registry)
        PlatformCollector(registry=self._registry)

    def inferred(self, model: str, transport: str, outcome: str, seconds: float) -> None:
        """Count one inference; ``model`` is one that is served, whatever was asked for."""
        self._inferences.labels(model, transport, outcome).observe(seconds)

    def collect(self) -> Iterable[Metric]:
        """The gauges as they are now."""
        for (name, what), read in self._gauges.items():
            yield GaugeMetricFamily(f"hope_serving_{name}", what, value=read())

    def render(self) -> bytes:
        """The page that Prometheus reads."""
        return generate_latest(self._registry)
