"""The API processes: tokenize before the engine, stream after it. Each handles one thing at a time."""

from __future__ import annotations

from bench.simulator.config import EngineConfig
from bench.simulator.request import Request


class Frontend:
    """Delays between a client and the engine; `answers` counts requests that ended."""

    def __init__(self, config: EngineConfig) -> None:
        self.factor = 1.0
        self.answers = 0
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
