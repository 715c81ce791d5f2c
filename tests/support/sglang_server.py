"""A model of an SGLang server's scheduler and of the page it serves: what `tests/fixtures/sglang` is made with.

Written from SGLang's documented behaviour and metrics (0.5): a request is admitted when its prompt and a part of the
answers still to come (`new_token_ratio` of what running requests may give) fit the pool; where they grow beyond it,
those with the shortest answers are retracted and wait again. It is no measurement of SGLang.

`python -m tests.support.sglang_server` writes the fixtures again.
"""

from __future__ import annotations

import json
import lzma
import random
from bisect import bisect_left
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

FIXTURES: Final = Path(__file__).parents[1] / "fixtures" / "sglang"
START: Final = 1795170000.0
MODEL: Final = "meta-llama/Llama-3.1-8B-Instruct"

TTFT: Final = (0.1, 0.2, 0.4, 0.6, 0.8, 1, 2, 4, 6, 8, 10, 20, 40, 60, 80, 100, 200, 400)
E2E: Final = (*TTFT, 600, 1200, 1800, 2400)
INTER_TOKEN: Final = (
    *(0.002, 0.004, 0.006, 0.008, 0.010, 0.015, 0.020, 0.025, 0.030, 0.035, 0.040, 0.060, 0.080),
    *(0.100, 0.200, 0.400, 0.600, 0.800, 1.0, 2.0, 4.0, 6.0, 8.0),
)
TOKENS: Final = (
    *(100, 300, 500, 700, 1000, 1500, 2000, 3000, 4000, 5000, 6000, 7000, 8000, 9000, 10000, 12500, 15000, 17500),
    *(20000, 22500, 25000, 27500, 30000, 35000, 40000, 60000, 80000, 100000, 200000, 300000, 400000, 600000),
    *(800000, 1000000, 1100000),
)
QUEUE: Final = (0.0, 0.001, 0.005, 0.01, 0.05, 0.1, 0.2, 0.5, 1, 2, 3, 4, 5, 10, 15, 20, 30, 40, 50, 60, 100, 1000)

PREFILL_TOKENS_PER_SECOND: Final = 12_000.0
RETRACT_STEPS: Final = 20
LONGEST_RESERVE: Final = 4096


@dataclass(frozen=True)
class Traffic:
    """Poisson arrivals of requests; lengths in tokens are spread by a third around their means."""

    per_second: float
    prompt: int
    output: int
    max_tokens: int


@dataclass
class Request:
    arrived: float
    prompt: int
    output: int
    max_tokens: int
    given: int = 0
    queued_at: float = 0.0
    first: float | None = None
    last: float = 0.0

    @property
    def held(self) -> int:
        return self.prompt + self.given


@dataclass
class Histogram:
    bounds: Sequence[float]
    counts: list[int] = field(default_factory=list)
    total: float = 0.0

    def __post_init__(self) -> None:
        self.counts = [0] * (len(self.bounds) + 1)

    def observe(self, value: float, times: int = 1) -> None:
        self.counts[bisect_left(self.bounds, value)] += times
        self.total += value * times


class Server:
    """One scheduler. `pool_tokens`, `max_running` and `chunk` are what the flags of a server come to."""

    def __init__(self, seed: int, *, pool_tokens: int, max_running: int, chunk: int = 8192) -> None:
        self.random = random.Random(seed)
        self.pool_tokens, self.max_running, self.chunk = pool_tokens, max_running, chunk
        self.t = 0.0
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        self.ratio = 0.7
        self.arrival = 0.0
        self.counters: dict[str, float] = dict.fromkeys(
            ("retracted", "prefill", "decode", "prompt", "generation", "cached", "finished"), 0.0
        )
        self.histograms = {
            "time_to_first_token_seconds": Histogram(TTFT),
            "inter_token_latency_seconds": Histogram(INTER_TOKEN),
            "e2e_request_latency_seconds": Histogram(E2E),
            "prompt_tokens_histogram": Histogram(TOKENS),
            "generation_tokens_histogram": Histogram(TOKENS),
            "queue_time_seconds": Histogram(QUEUE),
        }

    @property
    def used(self) -> int:
        return sum(request.held for request in self.running)

    def run(self, seconds: float, traffic: Traffic) -> None:
        """Serve for a while."""
        until = self.t + seconds
        self.arrival = max(self.arrival, self.t)
        while self.t < until:
            self._arrive(traffic)
            if not self._prefill() and not self._decode():
                self.t = min(until, max(self.arrival, self.t + 0.01))

    def _arrive(self, traffic: Traffic) -> None:
        while self.arrival <= self.t:
            prompt = max(16, int(self.random.gauss(traffic.prompt, traffic.prompt / 3)))
            output = max(8, int(self.random.gauss(traffic.output, traffic.output / 3)))
            made = Request(self.arrival, prompt, min(output, traffic.max_tokens), traffic.max_tokens)
            made.queued_at = self.arrival
            self.waiting.append(made)
            self.arrival += self.random.expovariate(traffic.per_second)

    def _prefill(self) -> bool:
        """One prefill batch: the requests at the head of the queue that fit the pool and a chunk."""
        left, admitted = self.chunk, 0
        while self.waiting and len(self.running) < self.max_running and left > 0:
            head = self.waiting[0]
            reserved = sum(min(one.max_tokens - one.given, LONGEST_RESERVE) for one in self.running) * self.ratio
            if head.held + min(head.max_tokens, LONGEST_RESERVE) > self.pool_tokens - self.used - reserved:
                break
            self.waiting.popleft()
            self.running.append(head)
            self.t += head.held / PREFILL_TOKENS_PER_SECOND
            self.counters["prefill"] += head.held
            left, admitted = left - head.held, admitted + 1
            if head.first is None:
                head.first = head.last = self.t
                self.histograms["time_to_first_token_seconds"].observe(self.t - head.arrived)
                self.histograms["queue_time_seconds"].observe(max(0.0, self.t - head.queued_at))
        return admitted > 0

    def _decode(self) -> bool:
        if not self.running:
            return False
        if self.used + len(self.running) > self.pool_tokens:
            self._retract()
        else:
            self.ratio = max(0.098, self.ratio - 0.001)
        self.t += 0.012 + 0.0001 * len(self.running) + self.used * 4e-8
        self.counters["decode"] += len(self.running)
        for request in list(self.running):
            request.given += 1
            self.histograms["inter_token_latency_seconds"].observe(self.t - request.last)
            request.last = self.t
            if request.given >= request.output:
                self._finish(request)
        return True

    def _retract(self) -> None:
        self.running.sort(key=lambda one: (-one.given, one.prompt))
        while len(self.running) > 1 and self.used + RETRACT_STEPS * len(self.running) > self.pool_tokens:
            self.waiting.append(self.running.pop())
            self.counters["retracted"] += 1
        given = sum(one.given for one in self.running) + RETRACT_STEPS * len(self.running)
        self.ratio = min(1.0, given / sum(one.max_tokens for one in self.running))

    def _finish(self, request: Request) -> None:
        self.running.remove(request)
        self.counters["finished"] += 1
        self.counters["prompt"] += request.prompt
        self.counters["generation"] += request.given
        self.histograms["e2e_request_latency_seconds"].observe(self.t - request.arrived)
        self.histograms["prompt_tokens_histogram"].observe(request.prompt)
        self.histograms["generation_tokens_histogram"].observe(request.given)

    def page(self, *, dp_rank: int | None = None) -> str:
        """The page as prometheus_client writes it: names by family, labels in alphabetical order."""
        usage, held = self.used / self.pool_tokens, self.used
        own = {"engine_type": "unified", "model_name": MODEL, "moe_ep_rank": "0", "pp_rank": "0", "tp_rank": "0"}
        if dp_rank is not None:
            own["dp_rank"] = str(dp_rank)
        whole = {"model_name": MODEL}
        lines: list[str] = []
        for name, help_, value in (
            ("num_running_reqs", "The number of running requests.", len(self.running)),
            ("num_queue_reqs", "The number of requests in the waiting queue.", len(self.waiting)),
            ("num_grammar_queue_reqs", "The number of requests in the grammar waiting queue.", 0),
            ("gen_throughput", "The generation throughput (token/s).", 50.0 * len(self.running)),
            ("cache_hit_rate", "The prefix cache hit rate.", 0.0),
            ("token_usage", "The token usage.", usage),
            ("full_token_usage", "The token usage for full attention layers.", usage),
            ("swa_token_usage", "The token usage for SWA layers.", 0.0),
            ("mamba_usage", "The token usage for Mamba layers.", 0.0),
            ("num_used_tokens", "The number of used tokens.", held),
            ("kv_available_tokens", "Number of free token slots in the KV cache pool.", self.pool_tokens - held),
            ("kv_evictable_tokens", "Number of evictable (radix-cached) token slots in the KV cache pool.", 0),
            ("kv_used_tokens", "Number of actively used token slots in the KV cache pool.", held),
            ("new_token_ratio", "The new token ratio.", self.ratio),
            ("max_total_num_tokens", "Maximum total number of tokens in the KV cache pool.", self.pool_tokens),
            ("page_size", "KV cache page size in tokens.", 1),
            ("num_pages", "Number of KV cache pages.", self.pool_tokens),
            ("context_len", "Maximum context length.", 131072),
        ):
            lines += scalar(name, help_, "gauge", [(own, value)])
        c = self.counters
        lines += scalar(
            "num_retracted_requests_total", "Total number of retracted requests.", "counter", [(own, c["retracted"])]
        )
        modes = [
            ({**own, "mode": mode}, c[key]) for mode, key in (("prefill_compute", "prefill"), ("decode", "decode"))
        ]
        words = (
            "Total number of tokens processed (updated on each log interval). "
            "mode: prefill_compute, prefill_cache, decode."
        )
        lines += scalar("realtime_tokens_total", words, "counter", [one for one in modes if one[1]])
        for name, help_, value in (
            ("prompt_tokens_total", "Number of prefill tokens processed.", c["prompt"]),
            ("generation_tokens_total", "Number of generation tokens processed.", c["generation"]),
            ("num_requests_total", "Number of requests processed.", c["finished"]),
            ("num_aborted_requests_total", "Number of requests aborted.", 0),
        ):
            lines += scalar(name, help_, "counter", [(whole, value)])
        for name, one in self.histograms.items():
            lines += histogram(name, own if name == "queue_time_seconds" else whole, one)
        return "\n".join(lines) + "\n"


def scalar(name: str, help_: str, kind: str, samples: Sequence[tuple[dict[str, str], float]]) -> list[str]:
    head = [f"# HELP sglang:{name} {help_}", f"# TYPE sglang:{name} {kind}"]
    return [*head, *(f"sglang:{name}{{{labels(given)}}} {float(value)}" for given, value in samples)]


def histogram(name: str, given: dict[str, str], one: Histogram) -> list[str]:
    lines = [f"# HELP sglang:{name} Histogram of {name.replace('_', ' ')}.", f"# TYPE sglang:{name} histogram"]
    lines.append(f"sglang:{name}_sum{{{labels(given)}}} {one.total}")
    running = 0
    for bound, count in zip([*map(float, one.bounds), float("inf")], one.counts, strict=True):
        running += count
        le = "+Inf" if bound == float("inf") else str(bound)
        lines.append(f"sglang:{name}_bucket{{{labels({**given, 'le': le})}}} {float(running)}")
    return [*lines, f"sglang:{name}_count{{{labels(given)}}} {float(running)}"]


def labels(given: dict[str, str]) -> str:
    return ",".join(f'{name}="{value}"' for name, value in sorted(given.items()))


CALM: Final = Traffic(per_second=2.0, prompt=900, output=200, max_tokens=1024)
LONG: Final = Traffic(per_second=2.0, prompt=3000, output=2500, max_tokens=2600)
MANY: Final = Traffic(per_second=12.0, prompt=400, output=200, max_tokens=512)

SCENARIOS: Final = {
    "healthy": ({"pool_tokens": 180_000, "max_running": 256}, ((180, CALM),)),
    "kv-pressure": ({"pool_tokens": 150_000, "max_running": 256}, ((70, CALM), (170, LONG))),
    "concurrency-cap": ({"pool_tokens": 400_000, "max_running": 12}, ((60, CALM), (150, MANY))),
}


def recording(name: str, seed: int = 1) -> Iterator[dict[str, object]]:
    """The lines of a scenario's recording, a page a second."""
    sizes, phases = SCENARIOS[name]
    server = Server(seed, **sizes)
    second = 0
    for seconds, traffic in phases:
        for _ in range(seconds):
            server.run(1.0, traffic)
            second += 1
            yield {"t": START + second, "label": name, "page": server.page()}


def main() -> None:
    FIXTURES.mkdir(exist_ok=True)
    for name in SCENARIOS:
        text = "".join(json.dumps(line) + "\n" for line in recording(name))
        (FIXTURES / f"{name}.jsonl.xz").write_bytes(lzma.compress(text.encode(), preset=9))


if __name__ == "__main__":
    main()
