"""The API processes: tokenize before the engine, stream after it. Each handles one thing at a time."""

from __future__ import annotations

from bench.simulator.config import EngineConfig
from bench.simulator.histograms import HTTP_FINE_SECONDS, HTTP_SECONDS, Histogram
from bench.simulator.request import Request


class Frontend:
    """Delays between a client and the engine, and the HTTP statistics of the answers."""

    def __init__(self, config: EngineConfig) -> None:
        self.factor = 1.0
        self.answers = 0
        self.request_bytes = 0
        self.response_bytes = 0
        self.fine_seconds = Histogram(HTTP_FINE_SECONDS)
        self.coarse_seconds = Histogram(HTTP_SECONDS)
        self._config = config
        self._free_at = [0.0] * config.api_servers
        self._streamed = [0.0] * config.api_servers

    def ready(self, request: Request, t: float, generated: float) -> float:
        """When a request that arrives at `t` reaches the engine; `generated` is the tokens streamed so far in total."""
        config, api = self._config, request.api
        streaming = (generated - self._streamed[api]) / config.api_servers * config.frontend_seconds_per_output_token
        self._streamed[api] = generated
        tokenizing = config.frontend_seconds_per_request + config.frontend_seconds_per_prompt_token * request.prompt
        self._free_at[api] = max(t, self._free_at[api] + streaming * self.factor) + tokenizing * self.factor
        return self._free_at[api]

    def answered(self, request: Request, t: float) -> None:
        """Count a finished request; sizes as in the recordings: some 4 bytes a prompt token, 5 a generated one."""
        self.answers += 1
        self.request_bytes += 300 + 4 * request.prompt
        self.response_bytes += 500 + 5 * request.generated
        self.fine_seconds.observe(t - request.arrived)
        self.coarse_seconds.observe(t - request.arrived)
