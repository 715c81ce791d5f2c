"""What the API server itself adds to the page: counts of HTTP requests, and of operations that pause the engine.

Names, labels and buckets are those of prometheus-fastapi-instrumentator, which vLLM mounts with the handlers /metrics,
/health, /load, /ping, /version and /server_info left out; so `/pause`, which nothing else on the page tells of, counts.
"""

from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

COMPLETIONS: Final = "/v1/completions"
EMBEDDINGS: Final = "/v1/embeddings"
SLEEP_OPERATIONS: Final = ("sleep", "wake")


class Web:
    """The API server's own registry. `counted` says whether this version counts operations (0.32 does)."""

    def __init__(self, *, counted: bool) -> None:
        self._registry = CollectorRegistry()
        self._requests = Counter(
            "http_requests",
            "Total number of requests by method, status and handler.",
            ["method", "status", "handler"],
            registry=self._registry,
        )
        self._seconds = Histogram(
            "http_request_duration_seconds",
            "Latency with only few buckets by handler.",
            ["method", "handler"],
            buckets=(0.1, 0.5, 1),
            registry=self._registry,
        )
        self._asleep = self._operations("vllm:sleep_mode_operations_in_flight", "Sleep-mode operations.", counted)
        self._weights = self._operations("vllm:rl_weight_update_operations_in_flight", "Weight transfers.", counted)

    def _operations(self, name: str, words: str, counted: bool) -> Gauge | None:
        return Gauge(name, words, ["operation"], registry=self._registry) if counted else None

    def answered(self, handler: str, status: int, seconds: float) -> None:
        """One request ended."""
        self._requests.labels("POST", f"{status // 100}xx", handler).inc()
        self._seconds.labels("POST", handler).observe(seconds)

    def under_way(self, operation: str, change: int) -> None:
        """An operation that pauses the engine began (1) or ended (-1)."""
        gauge = self._asleep if operation in SLEEP_OPERATIONS else self._weights
        if gauge is not None:
            gauge.labels(operation).inc(change)

    def page(self) -> str:
        """These families as text."""
        return generate_latest(self._registry).decode()
