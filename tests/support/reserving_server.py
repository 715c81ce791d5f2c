"""A model of a scheduler that reserves room for answers in advance, and of the pages that TensorRT-LLM serves.

Written from its source (tests/fixtures/trtllm), and no measurement of it. A request is
admitted, first come first served, when its prompt and all that it may generate fit beside what the others reserved, a
seat is free, and the step's prompts are within their budget. Requests on their last step are active and no longer
scheduled, as TensorRT-LLM has it.
"""

import random
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

STEP_SECONDS: Final = 0.03
BLOCK_TOKENS: Final = 32
TimedPage = tuple[float, bytes]
SECONDS: Final = (0.1, 0.3, 0.5, 1, 2, 5, 10, 20, 40, 80, 160)
TOKENS: Final = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096)


@dataclass(frozen=True)
class Load:
    """Poisson arrivals for so long; lengths are spread by a third around their means, all ask for `max_tokens`."""

    seconds: int
    per_second: float = 0.0
    prompt: int = 400
    output: int = 100
    max_tokens: int = 400


@dataclass
class Request:
    arrived: float
    prompt: int
    output: int
    max_tokens: int
    given: int = 0
    started: float = 0.0

    @property
    def reserved(self) -> int:
        return self.prompt + self.max_tokens


@dataclass
class Histogram:
    bounds: Sequence[float]
    counts: list[int] = field(default_factory=list)
    total: float = 0.0

    def __post_init__(self) -> None:
        self.counts = [0] * (len(self.bounds) + 1)

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def lines(self, name: str, labels: str = "") -> Iterator[str]:
        more, below = f"{labels}," if labels else "", 0
        for bound, count in zip((*map(str, self.bounds), "+Inf"), self.counts, strict=True):
            below += count
            yield f'{name}_bucket{{{more}le="{bound}"}} {below}'
        shown = f"{{{labels}}}" if labels else ""
        yield f"{name}_sum{shown} {self.total}"
        yield f"{name}_count{shown} {below}"


@dataclass
class Server:
    """`pool` is the tokens of the cache, `seats` how many may run, `step` how many prompt tokens a step takes."""

    pool: int
    seats: int = 2048
    step: int = 8192
    now: float = 0.0
    queue: deque[Request] = field(default_factory=deque)
    running: list[Request] = field(default_factory=list)
    ending: int = 0
    joined: int = 0
    steps: int = 0
    batches: int = 0
    started: int = 0
    finished: int = 0
    tokens: int = 0
    prompts: int = 0
    iteration: dict[str, float] = field(default_factory=dict)
    """What TensorRT-LLM's executor said of the last iteration: without requests there is none."""

    def __post_init__(self) -> None:
        names = ("e2e", "ttft", "between", "queued", "inference")
        self.seconds = {name: Histogram(SECONDS) for name in names}
        self.lengths = {name: Histogram(TOKENS) for name in ("prompt", "output", "max_tokens")}

    @property
    def reserved(self) -> int:
        return sum(one.reserved for one in self.running)

    @property
    def held(self) -> int:
        """Tokens of the blocks in use."""
        return sum(-(-(one.prompt + one.given) // BLOCK_TOKENS) * BLOCK_TOKENS for one in self.running)

    def arrive(self, request: Request) -> None:
        self.queue.append(request)
        self.lengths["prompt"].observe(request.prompt)
        self.lengths["max_tokens"].observe(request.max_tokens)

    def advance(self) -> None:
        """Make one step."""
        self.now += STEP_SECONDS
        prompts, self.joined = 0, 0
        while self.queue and len(self.running) < self.seats:
            head = self.queue[0]
            prompts += head.prompt
            if self.reserved + head.reserved > self.pool or (prompts > self.step and self.joined):
                break
            head.started = self.now
            self.running.append(self.queue.popleft())
            self.joined += 1
        if self.running:
            self.iteration = _executor(self)
        self.started += self.joined
        self.batches += bool(self.joined)
        self.steps += bool(self.running)
        for one in self.running:
            one.given += 1
        done = [one for one in self.running if one.given >= one.output]
        self.ending = len(done)
        for one in done:
            self.running.remove(one)
            self._end(one)
        self.iteration["active_after"] = min(self.seats, len(self.running) + len(self.queue))

    def _end(self, one: Request) -> None:
        self.finished += 1
        self.tokens += one.given
        self.prompts += one.prompt
        inference = self.now - one.started
        self.seconds["e2e"].observe(self.now - one.arrived)
        self.seconds["queued"].observe(one.started - one.arrived)
        self.seconds["inference"].observe(inference)
        self.seconds["ttft"].observe(one.started + STEP_SECONDS - one.arrived)
        self.seconds["between"].observe(inference / one.given)
        self.lengths["output"].observe(one.given)


def _executor(server: Server) -> dict[str, float]:
    """Return what TensorRT-LLM's executor says of an iteration; it takes in as many as there are seats."""
    scheduled, blocks = len(server.running), server.pool // BLOCK_TOKENS
    taken_in = min(server.seats, scheduled + len(server.queue))
    return {
        "active": min(server.seats, taken_in + server.ending),
        "waiting": scheduled + len(server.queue) - taken_in,
        "scheduled": scheduled,
        "context": server.joined,
        "max": server.seats,
        "used": server.held // BLOCK_TOKENS,
        "blocks": blocks,
    }


def trtllm(server: Server, stages: int = 1) -> bytes:
    """Return trtllm-serve's page, with a label of the process as its registry of several writes it.

    Its gauges are there after the first iteration, and count requests as it began.
    """
    found, labels = server.iteration, 'model_name="m",engine_type="trtllm"'
    gauges = (
        {}
        if "active" not in found
        else {
            "num_requests_running": found["active"],
            "num_requests_waiting": found["waiting"],
            "num_scheduled_requests": found["scheduled"],
            "num_context_requests": found["context"],
            "max_num_active_requests": found["max"],
            "kv_cache_utilization": found["used"] / found["blocks"],
            "kv_cache_max_blocks": found["blocks"],
            "kv_cache_used_blocks": found["used"],
            "kv_cache_tokens_per_block": BLOCK_TOKENS,
        }
    )
    stage = f'trtllm_parallel_config_info{{{labels},pipeline_parallel_size="{stages}",tensor_parallel_size="1"}} 1'
    lines = [
        *(f'trtllm_{name}{{{labels},pid="7"}} {value}' for name, value in gauges.items()),
        stage,
        f'trtllm_request_success_total{{{labels},finished_reason="stop"}} {server.finished}',
        f"trtllm_num_requests_completed_total{{{labels}}} {server.finished}",
        f"trtllm_prompt_tokens_total{{{labels}}} {server.prompts}",
        f"trtllm_generation_tokens_total{{{labels}}} {server.tokens}",
        *server.seconds["e2e"].lines("trtllm_e2e_request_latency_seconds", labels),
        *server.seconds["ttft"].lines("trtllm_time_to_first_token_seconds", labels),
        *server.seconds["between"].lines("trtllm_time_per_output_token_seconds", labels),
        *server.seconds["queued"].lines("trtllm_request_queue_time_seconds", labels),
    ]
    return ("\n".join(lines) + "\n").encode()


def triton(server: Server, *, queue: bool = True) -> bytes:
    """Return what the backend adds to Triton's page, beside two series of Triton's own; active are those left after."""
    found, labels = server.iteration, 'model="tensorrt_llm",version="1"'
    if "active" not in found:
        found = dict.fromkeys(("scheduled", "context", "waiting", "used"), 0.0) | _executor(server)
        found["active_after"] = 0.0
    cache = "nv_trt_llm_kv_cache_block_metrics"
    requests = {name: found[name] for name in ("scheduled", "context", "max")} | {"active": found["active_after"]}
    requests |= {"waiting": found["waiting"]} if queue else {}
    blocks = {"max": found["blocks"], "used": found["used"], "tokens_per": BLOCK_TOKENS}
    blocks |= {"free": found["blocks"] - found["used"], "fraction": found["used"] / found["blocks"]}
    lines = [
        *(f'nv_trt_llm_request_metrics{{{labels},request_type="{name}"}} {n}' for name, n in requests.items()),
        *(f'{cache}{{{labels},kv_cache_block_type="{name}"}} {n}' for name, n in blocks.items()),
        f'nv_trt_llm_general_metrics{{{labels},general_type="iteration_counter"}} {server.steps}',
        f"nv_inference_request_success{{{labels}}} {server.finished}",
        'nv_gpu_utilization{gpu_uuid="GPU-0"} 0.5',
    ]
    return ("\n".join(lines) + "\n").encode()


def pages(
    server: Server, page: Callable[[Server], bytes], *loads: Load, seed: int = 1
) -> Iterator[tuple[float, bytes]]:
    """Yield a page a second while the loads come one after the other."""
    chance, end = random.Random(seed), 0.0
    for load in loads:
        end += load.seconds
        arrives = server.now + (chance.expovariate(load.per_second) if load.per_second else load.seconds)
        shown = server.now
        while server.now < end:
            while arrives <= server.now and load.per_second:
                sizes = (max(1, round(chance.uniform(0.67, 1.33) * one)) for one in (load.prompt, load.output))
                prompt, output = sizes
                server.arrive(Request(arrives, prompt, min(output, load.max_tokens), load.max_tokens))
                arrives += chance.expovariate(load.per_second)
            server.advance()
            if server.now >= shown + 1.0:
                shown += 1.0
                yield server.now, page(server)
