"""What one rank has counted since the server started, the numbers behind its page, and what its GPU did.

A request is followed through front end, queue, batch and back. Histograms are cumulative, as prometheus_client keeps
them, with vLLM's bucket bounds (read from recorded 0.32 pages). Of the GPU there is its busy time in the driver's
sampling intervals, and compute and memory time in between reads.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Hashable
from dataclasses import dataclass
from itertools import accumulate

from bench.simulator.config import StepTime


@dataclass(slots=True, eq=False)
class Request:
    """Lengths in tokens, times in unix seconds.

    `computed` tokens have their KV stored. While a request decodes, `computed` and `generated` are those it had at
    `step_joined`, the rank's step count when it joined the decoding batch; each step since added one to both.
    """

    id: int
    prompt: int
    output: int
    arrived: float
    api: int = 0
    client: int | None = None
    max_tokens: int = 0
    reason: str = "length"
    prefix_key: Hashable | None = None
    prefix_tokens: int = 0
    queued: float = 0.0
    admitted: float | None = None
    first_token: float | None = None
    last_token: float = 0.0
    computed: int = 0
    generated: int = 0
    prefill_target: int = 0
    shared_blocks: int = 0
    hit_tokens: int = 0
    preemptions: int = 0
    decoding: bool = False
    step_joined: int = 0
    epoch: int = 0

    @property
    def tokens(self) -> int:
        """Tokens a (re)computation has to cover: the prompt and what was generated so far."""
        return self.prompt + self.generated


ITERATION_TOKENS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
PARAMS_N = (1, 2, 5, 10, 20)
PREEMPTIONS = (1, 2, 3, 4, 5, 10, 20)
TTFT_SECONDS = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
TOKEN_SECONDS = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
)
REQUEST_SECONDS = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0),
    *(30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)


def one_two_five(limit: int) -> tuple[float, ...]:
    """Bounds of token counts: 1, 2, 5, 10, … up to and including `limit` (vLLM takes `max_model_len`)."""
    bounds = (mantissa * 10.0**exponent for exponent in range(10) for mantissa in (1, 2, 5))
    return tuple(bound for bound in bounds if bound <= limit)


class Histogram:
    """Observations since the server started; `bounds` ascend and end in +Inf."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = (*map(float, bounds), math.inf)
        self.counts = [0] * len(self.bounds)
        self.sum = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        """Count `times` observations of the same value."""
        self.counts[bisect_left(self.bounds, value)] += times
        self.sum += value * times

    @property
    def count(self) -> int:
        """Number of observations."""
        return sum(self.counts)

    def cumulative(self) -> list[int]:
        """Observations at or below each bound."""
        return list(accumulate(self.counts))


class RankStats:
    """Counters by key, histograms by key, and the gauges as of the last completed step."""

    def __init__(self, max_model_len: int) -> None:
        tokens = one_two_five(max_model_len)
        self.counters: Counter[str] = Counter()
        self.running = 0
        self.waiting = 0
        self.usage_ratio = 0.0
        self.histograms = {
            "prompt": Histogram(tokens),
            "generation": Histogram(tokens),
            "iteration": Histogram(ITERATION_TOKENS),
            "params_n": Histogram(PARAMS_N),
            "max_tokens": Histogram(tokens),
            "prefill_computed": Histogram(tokens),
            "ttft": Histogram(TTFT_SECONDS),
            "inter_token": Histogram(TOKEN_SECONDS),
            "per_output_token": Histogram(TOKEN_SECONDS),
            "preemptions": Histogram(PREEMPTIONS),
            **{key: Histogram(REQUEST_SECONDS) for key in ("e2e", "queue", "inference", "prefill", "decode")},
        }

    def admitted(self, request: Request) -> None:
        """A request's first admission looked up its prompt; vLLM does not count what a resumed one finds."""
        self.counters["prefix_queries"] += request.prompt
        self.counters["prefix_hits"] += request.hit_tokens

    def first_token(self, request: Request, t: float) -> None:
        """The prompt counts as processed, and TTFT is known, when the first token is out."""
        self.histograms["ttft"].observe(t - request.arrived)
        self.counters["prompt_tokens"] += request.prompt
        self.counters["prompt_cached"] += request.hit_tokens
        self.counters["prompt_computed"] += request.prompt - request.hit_tokens

    def finished(self, request: Request, t: float) -> None:
        """Everything vLLM observes only when a request ends (times: queued, admitted, first and last token)."""
        self.counters[f"finished_{request.reason}"] += 1
        first = t if request.first_token is None else request.first_token
        admitted = t if request.admitted is None else request.admitted
        decode = max(0.0, t - first)
        observed = {
            "prompt": request.prompt,
            "generation": request.generated,
            "params_n": 1,
            "max_tokens": request.max_tokens,
            "prefill_computed": request.prompt - request.hit_tokens,
            "preemptions": request.preemptions,
            "e2e": t - request.arrived,
            "queue": admitted - request.queued,
            "inference": t - admitted,
            "prefill": first - admitted,
            "decode": decode,
            "per_output_token": decode / (request.generated - 1) if request.generated > 1 else 0.0,
        }
        for key, value in observed.items():
            self.histograms[key].observe(value)


SAMPLE_SECONDS = 1 / 6
"""NVML's shortest averaging interval of GPU utilization."""


class Activity:
    """Seconds busy per sampling interval (the last 60 kept), and seconds of compute and memory since the last read."""

    def __init__(self) -> None:
        self.compute_seconds = 0.0
        self.memory_seconds = 0.0
        self._bins: deque[list[float]] = deque(maxlen=60)
        self._seen = 0.0

    def record(self, start: float, end: float, time: StepTime) -> None:
        """Steps of this kind ran from `start` to `end`; what was recorded before is not counted twice."""
        start, self._seen = max(start, self._seen), max(end, self._seen)
        if end <= start:
            return
        share = (end - start) / time.seconds
        self.compute_seconds += time.compute * share
        self.memory_seconds += time.memory * share
        busy = min(1.0, time.busy / time.seconds)
        at = start
        while at < end:
            number = int(at / SAMPLE_SECONDS)
            until = min(end, (number + 1) * SAMPLE_SECONDS)
            if until <= at:
                number, until = number + 1, min(end, (number + 2) * SAMPLE_SECONDS)
            self._add(number, (until - at) * busy)
            at = until

    def take_seconds(self) -> tuple[float, float]:
        """Seconds of compute and of memory traffic since the last call."""
        taken = self.compute_seconds, self.memory_seconds
        self.compute_seconds = self.memory_seconds = 0.0
        return taken

    def busy_ratios(self, since: float, until: float) -> tuple[float, ...]:
        """Share of time busy in each interval that lies wholly in [since, until), oldest first."""
        busy = {int(number): seconds for number, seconds in self._bins}
        first, last = -int(-since // SAMPLE_SECONDS), int(until / SAMPLE_SECONDS)
        return tuple(min(1.0, busy.get(number, 0.0) / SAMPLE_SECONDS) for number in range(max(first, last - 60), last))

    def _add(self, number: int, seconds: float) -> None:
        if self._bins and self._bins[-1][0] == number:
            self._bins[-1][1] += seconds
        else:
            self._bins.append([number, seconds])
