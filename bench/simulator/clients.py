"""Who sends what, when: traffic shapes, closed and open loops, phases that know the truth, and clients that send it.

Clients of one server turn the loads of the current phase into requests at moments in time. Between them and the engine
are API processes, which tokenize before the engine and stream after it. Each handles one thing at a time.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from bench.simulator.config import EngineConfig
from bench.simulator.stats import Request

Label = Literal[
    "idle",
    "healthy",
    "kv_cache_pressure",
    "concurrency_bound",
    "compute_bound",
    "host_bound",
    "stuck",
    "restarting",
]
Fault = Literal["", "stuck", "restart"]


@dataclass(frozen=True, slots=True)
class Lengths:
    """A distribution of token counts. `spread_ratio`: half width or deviation over the mean, or sigma of the log."""

    mean: float
    kind: Literal["fixed", "uniform", "normal", "lognormal"] = "fixed"
    spread_ratio: float = 0.0

    def draw(self, rng: random.Random) -> int:
        """One length, at least 1 token; the lognormal keeps `mean` as its mean."""
        match self.kind:
            case "uniform":
                value = self.mean * rng.uniform(1 - self.spread_ratio, 1 + self.spread_ratio)
            case "normal":
                value = rng.gauss(self.mean, self.mean * self.spread_ratio)
            case "lognormal":
                value = self.mean * rng.lognormvariate(-(self.spread_ratio**2) / 2, self.spread_ratio)
            case _:
                value = self.mean
        return max(1, round(value))


@dataclass(frozen=True, slots=True)
class Traffic:
    """The shape of requests.

    A `prefix_share` of them starts with the same `prefix_tokens` tokens (part of the prompt, if that is longer); a
    `stop_share` ends by itself after `output` tokens, having asked for twice as many.
    """

    prompt: Lengths
    output: Lengths
    prefix_tokens: int = 0
    prefix_share: float = 0.0
    stop_share: float = 0.0


@dataclass(frozen=True, slots=True)
class ClosedLoop:
    """`clients` that each send, wait for the answer, think (exponential, mean in seconds) and send again.

    Each client starts at a random moment within `start_seconds`.
    """

    traffic: Traffic
    clients: int
    think_seconds: float = 0.0
    start_seconds: float = 0.05


@dataclass(frozen=True, slots=True)
class OpenLoop:
    """Poisson arrivals, from `rate` to `rate_end` requests/s over the phase, plus `burst` at once every so often."""

    traffic: Traffic
    rate: float
    rate_end: float | None = None
    burst: int = 0
    burst_every_seconds: float = 60.0

    def rate_at(self, progress: float) -> float:
        """Requests per second when that share of the phase is over."""
        end = self.rate if self.rate_end is None else self.rate_end
        return self.rate + (end - self.rate) * progress

    def next_gap(self, progress: float, rng: random.Random) -> float:
        """Seconds until the next arrival, or until to ask again when nothing arrives soon."""
        rate = self.rate_at(progress)
        return rng.expovariate(rate) if rate > 1e-6 else math.inf


@dataclass(frozen=True, slots=True)
class Phase:
    """A stretch of load with its true label. Requests left over from the phase before go on, unless it `hangs_up`.

    `frontend_factor` multiplies the API process's own costs; `fault` holds for the phase (a restart takes it all).
    """

    label: Label
    seconds: float
    loads: tuple[ClosedLoop | OpenLoop, ...] = ()
    fault: Fault = ""
    frontend_factor: float = 1.0
    hangs_up: bool = False
    note: str = ""


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

    def behind_seconds(self, now: float) -> float:
        """Work accepted and not done yet, in seconds of the busiest process."""
        return max(0.0, max(self._free_at) - now)


Schedule = Callable[[float, Callable[[float], None]], None]
"""Run a function of the time at that time."""


class Clients:
    """Sends requests; `at` schedules, `send` takes a request when it reaches the server. Times are virtual seconds."""

    def __init__(
        self, config: EngineConfig, rng: random.Random, at: Schedule, send: Callable[[Request, float], None]
    ) -> None:
        self._config = config
        self._rng = rng
        self._at = at
        self._send = send
        self._phase = 0
        self._loops: dict[int, tuple[int, ClosedLoop]] = {}
        self._next_id = 0

    def start_phase(self, phase: Phase, t: float) -> None:
        """Clients of the phase before stop sending; those of this phase begin."""
        self._phase += 1
        for load in phase.loads:
            if isinstance(load, ClosedLoop):
                self._start_closed(load, t)
            else:
                self._start_open(load, t, phase.seconds)

    def answered(self, request: Request, t: float) -> None:
        """A request ended; its client, if it still has one, thinks and sends the next."""
        loop = self._loops.pop(request.id, None)
        if loop is None or loop[0] != self._phase:
            return
        think = self._rng.expovariate(1 / loop[1].think_seconds) if loop[1].think_seconds else 0.0
        self._at(t + think + self._config.frontend_seconds_per_request / 2, lambda now: self._again(*loop, now))

    def _start_closed(self, load: ClosedLoop, t: float) -> None:
        number = self._phase
        for _ in range(load.clients):
            self._at(t + self._rng.uniform(0, load.start_seconds), lambda now: self._again(number, load, now))

    def _again(self, phase: int, load: ClosedLoop, t: float) -> None:
        if phase != self._phase:
            return
        request = self._request(load.traffic, t)
        self._loops[request.id] = (phase, load)
        self._send(request, t)

    def _start_open(self, load: OpenLoop, start: float, seconds: float) -> None:
        number = self._phase

        def progress(t: float) -> float:
            return min(1.0, (t - start) / seconds)

        def arrive(t: float) -> None:
            if number == self._phase:
                self._send(self._request(load.traffic, t), t)
                self._at(t + load.next_gap(progress(t), self._rng), arrive)

        def burst(t: float) -> None:
            if number == self._phase:
                for _ in range(load.burst):
                    self._send(self._request(load.traffic, t), t)
                self._at(t + load.burst_every_seconds, burst)

        self._at(start + load.next_gap(0.0 if load.rate else 1.0, self._rng), arrive)
        if load.burst:
            self._at(start, burst)

    def _request(self, traffic: Traffic, t: float) -> Request:
        """Lengths clipped as vLLM would reject them: the prompt and all it may generate fit the model and the pool."""
        longest = min(self._config.max_model_len, self._config.capacity_tokens)
        output = min(traffic.output.draw(self._rng), longest - 1)
        prompt = min(traffic.prompt.draw(self._rng), longest - 16)
        output = min(output, longest - prompt)
        shares = self._rng.random() < traffic.prefix_share and traffic.prefix_tokens < prompt
        prefix = traffic.prefix_tokens if shares else 0
        stops = self._rng.random() < traffic.stop_share
        self._next_id += 1
        return Request(
            id=self._next_id,
            prompt=prompt,
            output=output,
            arrived=t,
            api=self._rng.randrange(self._config.api_servers),
            max_tokens=output * 2 if stops else output,
            reason="stop" if stops else "length",
            prefix_key=f"prefix-{traffic.prefix_tokens}" if prefix else None,
            prefix_tokens=prefix,
        )
