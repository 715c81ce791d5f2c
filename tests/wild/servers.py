"""What servers would have on their pages of which a report gives figures: counters that go on, gauges of a phase."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

_LENGTHS = (1, 10, 100, 1_000, 10_000, 100_000, 1_000_000)
_SECONDS = (0.001, 0.01, 0.1, 1, 10, 100, 1_000)


@dataclass(frozen=True)
class Phase:
    """Some seconds in which a server stands as told; of a pair the first value changes evenly into the second.

    All but gauges are counted a second: tokens, requests that start, end, or are preempted, and steps.
    """

    seconds: int
    running: float = 0
    waiting: float = 0
    deferred: float = 0
    usage: tuple[float, float] = (0, 0)
    prompt: float = 0
    generated: float = 0
    started: float = 0
    ended: float = 0
    preempted: float = 0
    steps: float = 0
    more: Mapping[str, float] = field(default_factory=dict)
    """Other gauges, by their whole name."""

    def at(self, share: float) -> float:
        """Return the use of the cache after that share of the phase."""
        return self.usage[0] + share * (self.usage[1] - self.usage[0])


@dataclass
class Server:
    """What a server has counted; requests have `lengths` (prompt, answer) and take `seconds` (first token, whole)."""

    lengths: tuple[float, float]
    seconds: tuple[float, float]
    info: Mapping[str, object] = field(default_factory=dict)
    old: bool = False
    """V0 of vLLM: no label of the engine, other names."""
    engine: str = "0"
    prompt: float = 5e6
    generated: float = 5e5
    ended: float = 1e3
    started: float = 1e3
    preempted: float = 10
    steps: float = 5e4

    def passes(self, phase: Phase) -> None:
        """Count a second."""
        for name in ("prompt", "generated", "ended", "started", "preempted", "steps"):
            setattr(self, name, getattr(self, name) + getattr(phase, name))


def vllm(server: Server, phase: Phase, share: float) -> Iterator[str]:
    """Yield the lines of a vLLM page."""
    own = "" if server.old else f'engine="{server.engine}",'
    labels = own + 'model_name="m"'
    gauges: dict[str, float] = {"num_requests_running": phase.running, "num_requests_waiting": phase.waiting}
    if server.old:
        gauges["gpu_cache_usage_perc"] = phase.at(share)
    else:
        gauges["kv_cache_usage_perc"] = phase.at(share)
        for reason, many in (("capacity", phase.waiting - phase.deferred), ("deferred", phase.deferred)):
            yield f'vllm:num_requests_waiting_by_reason{{{labels},reason="{reason}"}} {many}'
    yield from (f"{name}{{{labels}}} {value}" for name, value in phase.more.items())
    yield from (f"vllm:{name}{{{labels}}} {value:.6g}" for name, value in gauges.items())
    counters = {
        "num_preemptions_total": server.preempted,
        "prompt_tokens_total": server.prompt,
        "generation_tokens_total": server.generated,
    }
    yield from (f"vllm:{name}{{{labels}}} {value:.0f}" for name, value in counters.items())
    yield f'vllm:request_success_total{{{labels},finished_reason="stop"}} {int(server.ended)}'
    yield f"vllm:iteration_tokens_total_count{{{labels}}} {int(server.steps)}"
    yield f"vllm:iteration_tokens_total_sum{{{labels}}} {server.prompt + server.generated:.0f}"
    info = {"block_size": 16, "enable_prefix_caching": True, "cache_dtype": "auto"} | dict(server.info)
    yield "vllm:cache_config_info{" + own + ",".join(f'{key}="{value}"' for key, value in info.items()) + "} 1"
    prompt, answer = server.lengths
    first, whole = server.seconds
    for name, value, bounds, many in (
        ("request_prompt_tokens", prompt, _LENGTHS, server.ended),
        ("request_generation_tokens", answer, _LENGTHS, server.ended),
        ("time_to_first_token_seconds", first, _SECONDS, server.started),
        ("e2e_request_latency_seconds", whole, _SECONDS, server.ended),
    ):
        yield from histogram(f"vllm:{name}", labels, value, bounds, int(many))


def sglang(server: Server, phase: Phase, share: float) -> Iterator[str]:
    """Yield the lines of an SGLang page."""
    rank = "" if server.engine == "0" else f',dp_rank="{server.engine}"'
    labels = f'engine_type="unified",model_name="m",tp_rank="0",pp_rank="0"{rank}'
    for name, value in (("num_running_reqs", phase.running), ("num_queue_reqs", phase.waiting)):
        yield f'sglang:{name}{{{labels},priority=""}} {value}'
    yield f"sglang:token_usage{{{labels}}} {phase.more.get('sglang:token_usage', phase.at(share)):.6g}"
    more = (one for one in phase.more.items() if one[0] != "sglang:token_usage")
    yield from (f"{name}{{{labels}}} {value}" for name, value in more)
    yield from (f"sglang:{name}{{{labels}}} {value}" for name, value in server.info.items())
    yield f"sglang:num_retracted_requests_total{{{labels}}} {int(server.preempted)}"
    yield f'sglang:realtime_tokens_total{{{labels},mode="prefill_compute"}} {server.prompt:.0f}'
    yield f'sglang:realtime_tokens_total{{{labels},mode="decode"}} {server.generated:.0f}'
    yield f'sglang:cuda_graph_passes_total{{{labels},mode="decode_cuda_graph"}} {int(server.steps)}'
    totals = {"prompt_tokens": server.prompt, "generation_tokens": server.generated, "num_requests": server.ended}
    yield from (f'sglang:{name}_total{{model_name="m"}} {value:.0f}' for name, value in totals.items())
    (prompt, answer), (first, whole) = server.lengths, server.seconds
    for name, value, bounds, many in (
        ("prompt_tokens_histogram", prompt, _LENGTHS, server.ended),
        ("generation_tokens_histogram", answer, _LENGTHS, server.ended),
        ("time_to_first_token_seconds", first, _SECONDS, server.started),
        ("e2e_request_latency_seconds", whole, _SECONDS, server.ended),
    ):
        yield from histogram(f"sglang:{name}", 'model_name="m"', value, bounds, int(many))


def histogram(name: str, labels: str, value: float, bounds: Sequence[float], many: int) -> Iterator[str]:
    """Yield the lines of a histogram whose observations are all the same."""
    for bound in (*bounds, "+Inf"):
        count = many if bound == "+Inf" or value <= float(bound) else 0
        yield f'{name}_bucket{{{labels},le="{bound}"}} {count}'
    yield f"{name}_sum{{{labels}}} {many * value:.6g}"
    yield f"{name}_count{{{labels}}} {many}"


Story = Sequence[tuple[Server, Sequence[Phase]]]


def pool(tokens: int, longest: int, block: int = 16, blocks: int | None = None) -> dict[str, object]:
    """Return what vLLM's page says of a pool of so many tokens."""
    return {
        "block_size": block,
        "num_gpu_blocks": blocks or tokens // block,
        "kv_cache_size_tokens": tokens,
        "kv_cache_max_concurrency": tokens / longest,
        "mamba_block_size": "None",
    }


def rounds(phases: Sequence[Phase], times: int) -> list[Phase]:
    """Return the phases, so many times one after another."""
    return list(phases) * times
