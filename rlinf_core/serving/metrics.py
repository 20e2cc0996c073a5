"""What a server has done so far, in a line for people and as Prometheus reads it."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence

import numpy as np

QUANTILES = (0.5, 0.99)


class Metrics:
    """Counts since the start, and of the newest thousand requests how long each took."""

    def __init__(self) -> None:
        self.requests = self.refused = self.swaps = self.clients = self.version = 0
        self.batches: Counter[int] = Counter()  # by their size
        self.latencies_s: deque[float] = deque(maxlen=1000)
        self._said = 0

    def answered(self, latency_s: float, batch: int) -> None:
        """A request was answered; a batch is seen once by each of its requests."""
        self.requests += 1
        self.batches[batch] += 1
        self.latencies_s.append(latency_s)

    @property
    def batch(self) -> float:
        """Requests of a batch, on average."""
        count = sum(seen / size for size, seen in self.batches.items())
        return self.requests / count if count else 0.0

    def line(self, seconds: float) -> str:
        """What was done in the ``seconds`` since the last line; empty for nothing."""
        done, self._said = self.requests - self._said, self.requests
        p50, p99 = 1e3 * self._quantiles()
        return "" if not done else (
            f"version {self.version}: {self.clients} clients, {done / seconds:.1f} requests/s, batches of "
            f"{self.batch:.1f}, p50 {p50:.1f} ms, p99 {p99:.1f} ms, {self.refused} refused")

    def text(self) -> str:
        """Prometheus' text format."""
        rows: list[tuple[str, str, list[tuple[str, float]]]] = [
                ("requests_total", "counter", [("", self.requests)]), ("refused_total", "counter", [("", self.refused)]),
                ("swaps_total", "counter", [("", self.swaps)]), ("clients", "gauge", [("", self.clients)]),
                ("version", "gauge", [("", self.version)]),
                ("batches_total", "counter", [(f'{{size="{size}"}}', seen // size)
                                              for size, seen in sorted(self.batches.items())]),
                ("latency_seconds", "summary", [(f'{{quantile="{quantile}"}}', float(value)) for quantile, value in
                                                zip(QUANTILES, self._quantiles(), strict=True)])]
        return "".join(_family(f"rlinf_serve_{name}", kind, values) for name, kind, values in rows)

    def _quantiles(self) -> np.ndarray:
        return np.quantile(self.latencies_s, QUANTILES) if self.latencies_s else np.zeros(len(QUANTILES))


def _family(name: str, kind: str, values: Sequence[tuple[str, float]]) -> str:
    return f"# TYPE {name} {kind}\n" + "".join(f"{name}{labels} {value:g}\n" for labels, value in values)
