"""A network of finite bandwidth between two engines: every transfer under way gets an equal share of it.

As NIXL does it, a read is posted as soon as its blocks are there; how many are under way at once is not limited.
"""

import importlib
from collections.abc import Callable
from typing import Any, Final

from tests.lab.clock import Clock
from tests.lab.config import BYTES_PER_TOKEN, MODEL

STATS: Final = "vllm.distributed.kv_transfer.kv_connector.v1.nixl.stats"
REAL: Final = frozenset({"vllm.distributed.kv_transfer.kv_connector.v1.metrics", STATS})
"""vLLM's own modules that publish what NIXL measures."""


class Link:
    """`arrived` is called with the name of each request whose KV has all come, `observe` with its seconds and tokens.

    Without `tokens_per_second` as much comes at once as is sent; `latency_seconds` a transfer takes in any case.
    """

    def __init__(self, clock: Clock, tokens_per_second: float, latency_seconds: float) -> None:
        self._clock, self._rate, self._latency = clock, tokens_per_second, latency_seconds
        self._left: dict[str, float] = {}
        self._begun: dict[str, tuple[float, int]] = {}
        self._at = clock.now
        self.arrived: Callable[[str], None] = lambda _: None
        self.observe: Callable[[float, int], None] = lambda *_: None

    @property
    def busy(self) -> bool:
        """Whether anything is under way."""
        return bool(self._left)

    def begin(self, name: str, tokens: int) -> None:
        """A read is posted."""
        self._move()
        self._left[name] = float(tokens)
        self._begun[name] = (self._clock.now, tokens)

    def take(self) -> set[str]:
        """Return the requests whose KV has come since the last time."""
        self._move()
        now = self._clock.now
        done = {name for name, left in self._left.items() if left <= 0 and now - self._begun[name][0] >= self._latency}
        for name in done:
            del self._left[name]
            begun, tokens = self._begun.pop(name)
            self.observe(now - begun, tokens)
            self.arrived(name)
        return done

    def _move(self) -> None:
        """Let what is under way share the bandwidth up to now, the shortest first to be through."""
        tokens, self._at = (self._clock.now - self._at) * self._rate, self._clock.now
        while tokens > 0 and (going := {name: left for name, left in self._left.items() if left > 0}):
            each = min(tokens / len(going), *going.values())
            for name in going:
                self._left[name] -= each
                if self._left[name] < 1e-6:
                    self._left[name] = 0.0
            tokens -= each * len(going)
            if each < 1e-9:
                break


def nixl_metrics(config: Any) -> Callable[[float, int], None]:
    """Register vLLM's own metrics of NIXL; return what observes one transfer of so many seconds and tokens."""
    import prometheus_client as prometheus  # noqa: PLC0415 - as vLLM's module has them

    stats = importlib.import_module(STATS)
    kinds = {kind: kind for kind in (prometheus.Gauge, prometheus.Counter, prometheus.Histogram)}
    metrics = stats.NixlPromMetrics(config, kinds, ["model_name", "engine"], {0: [MODEL, "0"]})

    def observe(seconds: float, tokens: int) -> None:
        data = stats.NixlKVConnectorStats().data
        for key, value in (
            ("transfer_duration", seconds),
            ("post_duration", 0.001),
            ("bytes_transferred", tokens * BYTES_PER_TOKEN),
            ("num_descriptors", 100),
        ):
            data[key].append(value)
        metrics.observe(data)

    return observe
