"""Metrics of a process for Prometheus, read at the moment of the request."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator

import numpy as np
from prometheus_client import (
    CollectorRegistry,
    ProcessCollector,
    generate_latest,
    start_http_server,
)
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from rlinf_core.core.errors import RlinfError

QUANTILES = (0.5, 0.99)
Values = Iterable[tuple[dict[str, str], float]]  # (labels, value)
Families = Callable[[], Iterable[Metric]]


def family(name: str, kind: str, help_text: str, values: Values | float) -> Metric:
    """Return a metric: ``gauge``, ``counter`` (its samples end in _total) or ``summary``.

    A number instead of values has no labels.
    """
    metric = Metric(name, help_text, kind)
    for labels, value in [({}, values)] if isinstance(values, int | float) else values:
        metric.add_sample(f"{name}_total" if kind == "counter" else name, labels, value)
    return metric


class Durations:
    """Durations: their count and sum, and the newest thousand."""

    def __init__(self) -> None:
        self.newest: deque[float] = deque(maxlen=1000)
        self.count = 0
        self.total_s = 0.0

    def note(self, seconds: float) -> None:
        """Add a duration."""
        self.newest.append(seconds)
        self.count, self.total_s = self.count + 1, self.total_s + seconds

    def quantiles(self) -> np.ndarray:
        """Return quantiles of the newest thousand values [s]; zero without any."""
        return np.quantile(self.newest, QUANTILES) if self.newest else np.zeros(len(QUANTILES))

    def family(self, name: str, help_text: str) -> Metric:
        """Return the durations as a summary."""
        metric = family(
            name,
            "summary",
            help_text,
            (
                ({"quantile": str(of)}, float(value))
                for of, value in zip(QUANTILES, self.quantiles(), strict=True)
            ),
        )
        metric.add_sample(f"{name}_count", {}, self.count)
        metric.add_sample(f"{name}_sum", {}, self.total_s)
        return metric


class _Families(Collector):
    def __init__(self, families: Families) -> None:
        self.families = families

    def collect(self) -> Iterator[Metric]:
        yield from self.families()


def _registry(families: Families) -> CollectorRegistry:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Families(families))
    return registry


def prometheus_text(families: Families) -> str:
    """Return the metrics in Prometheus' text format."""
    return generate_latest(_registry(families)).decode()


def serve(families: Families, port: int) -> Callable[[], None]:
    """Serve the metrics at http://127.0.0.1:port/metrics; return a function that ends it.

    The process's own memory and time are included.
    """
    registry = _registry(families)
    ProcessCollector(registry=registry)
    try:
        server, thread = start_http_server(port, "127.0.0.1", registry)
    except OSError as error:
        raise RlinfError(
            f"metrics: cannot listen on 127.0.0.1:{port}: {error.strerror}. Choose another port"
        ) from error

    def end() -> None:
        server.shutdown()
        server.server_close()
        thread.join()

    return end
