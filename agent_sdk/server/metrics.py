"""What the server counts for Prometheus."""

from collections.abc import Callable
from functools import cache

from prometheus_client import CollectorRegistry, Gauge, Histogram, PlatformCollector, ProcessCollector, generate_latest

SECONDS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class Metrics:
    """Histograms of one server, and the gauges that are read at each scrape."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._inferences = Histogram(
            "hope_inference_seconds",
            "Inferences by model, transport and outcome, from the whole request to the answer.",
            ["model", "transport", "outcome"],
            buckets=SECONDS,
            registry=self._registry,
        )
        self._labelled = cache(self._inferences.labels)
        ProcessCollector(registry=self._registry)
        PlatformCollector(registry=self._registry)

    def gauge(self, name: str, what: str, read: Callable[[], float]) -> None:
        Gauge(f"hope_serving_{name}", what, registry=self._registry).set_function(read)

    def inferred(self, model: str, transport: str, outcome: str, seconds: float) -> None:
        """Count one inference; ``model`` is one that is served, whatever was asked for."""
        self._labelled(model, transport, outcome).observe(seconds)

    def render(self) -> bytes:
        return generate_latest(self._registry)
