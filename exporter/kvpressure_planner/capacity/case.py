"""One plan's inputs together, the longest request that they allow, and warnings about them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from kvpressure.capacity.arithmetic import number, size
from kvpressure.capacity.geometry import Geometry
from kvpressure.capacity.memory import Memory, weights_step
from kvpressure.capacity.parallel import Parallel
from kvpressure.capacity.pool import BytePool, Pool, whole_blocks
from kvpressure.config.thresholds import Thresholds
from kvpressure.runtimes.registry import ASSUMED
from kvpressure.runtimes.runtime import Runtime
from kvpressure.simulation.scheduler import simulate
from kvpressure.simulation.server import Demand, RequestShape, Server, StepSeconds

LONGEST_KNOWN: Final = 1 << 20
"""Tokens per request where neither model nor engine names a limit."""
STEPS: Final = StepSeconds(0.03, 0.0, 1 / 16_000)
"""Any: how often requests are preempted hardly depends on it, and not at all on its scale."""
BEYOND_P95: Final = 20
"""One request in so many may be longer than the p95: that is what a p95 is."""
SIMULATED: Final = 80
HALVINGS: Final = 6
MORE_SEQUENCES: Final = 1.1
"""So many times as many sequences fit with the sampler made for no more than them: then it is said."""
WAITING_FACTOR: Final = 2
"""Clients for each sequence that runs: there is always one that waits to be admitted."""


@dataclass(frozen=True, slots=True)
class PlannedTraffic:
    """The shape of requests in tokens, at least 1 each; `burstiness` is peak over mean arrivals.

    `concurrency` is the peak number of requests in flight, running and waiting; `held_now` the mean KV tokens of the
    requests that an engine runs at this moment.
    """

    prompt_p95: float
    output_p95: float
    prompt_p50: float | None = None
    output_p50: float | None = None
    concurrency: float | None = None
    burstiness: float | None = None
    held_now: float | None = None

    @property
    def request_p95(self) -> int:
        """Prompt and output of a long request. Both p95 at once is more than the p95 of the sum: on the safe side."""
        return math.ceil(self.prompt_p95) + math.ceil(self.output_p95)

    @property
    def request_p50(self) -> int | None:
        """Prompt and output of a typical request, None unless both are known."""
        if self.prompt_p50 is None or self.output_p50 is None:
            return None
        return math.ceil(self.prompt_p50) + math.ceil(self.output_p50)


@dataclass(frozen=True, slots=True)
class Case:
    """A pool and its traffic. `limit` is the longest request in tokens that model or engine take, None when unknown.

    `needs` is how many GPUs it takes at least where these are too few. `sequences_to_declare` is the most that fit once
    the sampler makes room for no more than them, None where the default is planned with no loss.
    """

    pool: Pool
    traffic: PlannedTraffic
    thresholds: Thresholds
    batched_tokens: int
    limit: int | None = None
    geometry: Geometry | None = None
    memory: Memory | None = None
    runtime: Runtime = ASSUMED
    needs: Parallel | None = None
    sequences_to_declare: int | None = None

    @property
    def most_sequences(self) -> int:
        """The most sequences that the runtime accepts, whatever the pool holds; each may take a token of every step."""
        most = self.runtime.planning.most_sequences
        if self.state_sequences is not None:
            most = min(most, self.state_sequences)
        return min(most, self.batched_tokens) if self.runtime.audit.needs_step else most

    @property
    def state_sequences(self) -> int | None:
        """The sequences for which layers with a state have a block, None without such layers."""
        return self.pool.state_sequences if isinstance(self.pool, BytePool) else None

    @property
    def tokens(self) -> int:
        """A p95 request in whole blocks; none is longer than the limit."""
        longest = self.traffic.request_p95 if self.limit is None else min(self.traffic.request_p95, self.limit)
        return whole_blocks(longest, self.pool.block_tokens)

    @property
    def usable_share(self) -> float:
        """Share of the pool to plan with."""
        return 1.0 - self.thresholds.advice.pool_headroom_ratio

    @property
    def fits_alone(self) -> bool:
        """Whether the pool holds at least one p95 request."""
        return self.pool.fit(self.tokens, 1.0) >= 1


def longest_request(case: Case, sequences: int) -> int:
    """Return the longest request to allow, in tokens: at most what model and pool can take, at least a p95 request.

    Up to its share of the pool, as long as `sequences` run side by side, and fewer than count as preempting are
    preempted, while the requests beyond p95 are all that long.
    """
    most = case.limit or max(case.tokens, LONGEST_KNOWN)
    share = case.pool.longest(case.thresholds.advice.request_share_max_ratio, most)
    needed = min(case.tokens, most) if case.fits_alone else case.pool.longest(case.usable_share, most)
    if share <= needed or sequences < 2 or _fits(case, sequences, share):
        return max(share, needed)
    low, high = needed, share
    for _ in range(HALVINGS):
        middle = round((low * high) ** 0.5)
        low, high = (middle, high) if _fits(case, sequences, middle) else (low, middle)
    block = case.pool.block_tokens
    return max(needed, low // block * block)


def _fits(case: Case, sequences: int, longest: int) -> bool:
    """Return whether `sequences` run together where every 20th request is `longest`, the others as the traffic is."""
    traffic = case.traffic
    output = max(1, min(round(traffic.output_p95), longest - 1))
    usual = round(traffic.prompt_p50 or traffic.prompt_p95), max(1, round(traffic.output_p50 or traffic.output_p95))
    requests = [RequestShape(usual[0], usual[0], usual[1])] * (BEYOND_P95 - 1)
    # In tokens of a p95 request: windows hold less of a long one.
    each, whole = case.pool.request_bytes(case.tokens), case.pool.request_bytes(longest)
    prompt = max(1, (longest if each is None or whole is None else round(case.tokens * whole / each)) - output)
    requests.append(RequestShape(prompt, prompt, output))
    # Of a large batch a part, with its part of the pool: it would only take longer.
    part = min(1.0, SIMULATED / sequences)
    running = round(part * sequences)
    server = Server(
        pool_tokens=part * case.pool.running_tokens(case.tokens),
        steps=STEPS,
        block_tokens=case.pool.block_tokens,
        max_num_seqs=running,
        step_tokens=case.batched_tokens,
    )
    outcome = simulate(server, Demand(tuple(requests), clients=WAITING_FACTOR * running))
    if outcome is None or outcome.running < case.thresholds.batch.at_cap_min_ratio * running:
        return False
    return outcome.preempted_per_second <= case.thresholds.symptoms.preempting_min_ratio * outcome.answers_per_second


def warnings_for(case: Case, sequences: int) -> tuple[str, ...]:
    """Return the plan's warnings, the most severe first."""
    return (*_pool_warnings(case, sequences), *_traffic_warnings(case, sequences), *_model_warnings(case))


def _pool_warnings(case: Case, sequences: int) -> Iterator[str]:
    holds = case.pool.tokens(case.tokens)
    if holds <= 0:
        yield _nothing_left(case)
        return
    if not case.fits_alone:
        more = ", more GPUs" if case.needs is None else f", or at least {_flags(case, case.needs)}"
        yield (
            f"one p95 request ({number(case.tokens)} tokens) is larger than the pool ({number(holds)} tokens): it is "
            "never admitted, or preempted for ever; shorten requests, or enlarge the pool (fp8 cache"
            f"{more})"
        )
    elif sequences == 1 and case.pool.fit(case.tokens, case.usable_share) < 1:
        yield "one p95 request takes the pool and the margin that should stay free: expect preemptions"
    yield from _sampler_warnings(case, sequences)
    most = case.thresholds.advice.memory_target_max_ratio
    if case.memory is not None and case.memory.kv_cache_bytes is None and case.memory.gpu_memory_utilization > most:
        flag = case.runtime.planning.flags["gpu_memory_utilization"]
        yield (
            f"{flag} {case.memory.gpu_memory_utilization:g} is above {most:g}: what is needed beside weights and KV "
            "cache may not find room, and the server may end with a device OOM"
        )
    if case.limit is not None and case.pool.fit(case.limit, 1.0) < 1:
        fits = case.pool.longest(1.0, case.limit)
        flag, title = case.runtime.planning.flags["max_model_len"], case.runtime.title
        does = "refuses to start" if case.runtime.planning.needs_longest else "starts, and never admits such a one,"
        yield (
            f"the pool cannot hold one request of max_model_len ({number(case.limit)} tokens): {title} {does} unless "
            f"{flag} is at most {number(fits)}"
        )


def _sampler_warnings(case: Case, sequences: int) -> Iterator[str]:
    """Yield what the runtime's default of sequences costs: room in its sampler, or its refusal to start."""
    memory, geometry = case.memory, case.geometry
    if memory is None or geometry is None or memory.max_num_seqs is not None or not memory.gpu_memory_bytes:
        return
    flag = case.runtime.planning.flags["max_num_seqs"]
    default = memory.sequences
    title = case.runtime.title
    if case.state_sequences is not None and case.state_sequences < default:
        yield (
            f"{title} refuses to start with its default {flag} {number(default)}: layers with a state have blocks for "
            f"{number(case.state_sequences)} sequences; give {flag} {case.state_sequences} or fewer"
        )
    fitting = case.sequences_to_declare
    if fitting is not None and fitting > MORE_SEQUENCES * max(1, sequences):
        yield (
            f"the sampler makes room for {title}'s default of {number(default)} sequences: with {flag} {fitting} as "
            f"many fit; plan with --max-num-seqs {fitting}"
        )


def _nothing_left(case: Case) -> str:
    who = case.runtime.title
    memory = case.memory
    geometry = case.geometry
    if memory is None or geometry is None or memory.kv_cache_bytes is not None:
        return f"nothing is left for the KV pool: {who} would not start; more or larger GPUs, or smaller weights"
    usable = memory.smallest_gpu_bytes * memory.gpu_memory_utilization
    weights = weights_step(geometry, memory)
    why = f"weights of {weights.result} and what a step needs leave nothing of {size(usable)}"
    needs = f"; needs at least {_flags(case, case.needs)}" if case.needs is not None else ""
    if (fitting := case.sequences_to_declare) is not None:
        flag = case.runtime.planning.flags["max_num_seqs"]
        needs = f"; with {flag} {fitting} the sampler takes less and as many fit{needs}"
    return f"nothing is left for the KV pool: {who} would not start, {why}{needs}, larger GPUs, or smaller weights"


def _flags(case: Case, parallel: Parallel) -> str:
    names = case.runtime.planning.flags
    words = [f"{names['tensor_parallel']} {parallel.tensor}"]
    if parallel.pipeline > 1:
        words.append(f"{names['pipeline_parallel']} {parallel.pipeline}")
    return " ".join(words)


def _traffic_warnings(case: Case, sequences: int) -> Iterator[str]:
    traffic = case.traffic
    if traffic.held_now is not None and traffic.held_now > traffic.request_p95:
        yield (
            f"the requests that run now hold {number(math.floor(traffic.held_now))} tokens each, more than those this "
            f"plan is made for ({number(traffic.request_p95)} at p95): the traffic has changed; give --prompt-p95 and "
            "--output-p95, or --duration to look at the requests that finish from now on"
        )
    if case.limit is not None and traffic.request_p95 > case.limit:
        yield (
            f"prompt and output at p95 together ({number(traffic.request_p95)} tokens) exceed max_model_len: this "
            f"plan takes {number(case.limit)}; what is longer is refused or cut"
        )
    if traffic.concurrency is not None and sequences and traffic.concurrency > sequences:
        waiting, replicas = traffic.concurrency - sequences, math.ceil(traffic.concurrency / sequences)
        yield (
            f"at the peak of {number(traffic.concurrency)} requests {number(waiting)} wait: {replicas} replicas would "
            "hold them all; shorter requests or, where it is not one yet, an fp8 cache need fewer"
        )


def _model_warnings(case: Case) -> Iterator[str]:
    geometry, memory = case.geometry, case.memory
    if geometry is None:
        return
    if memory is not None:
        yield from _parallel_warnings(geometry, memory.tensor_parallel)
    if isinstance(case.pool, BytePool) and case.pool.cost.state_layers:
        yield (
            f"{geometry.state_layers} of {geometry.layers} layers hold a fixed state: blocks become "
            f"{number(case.pool.block_tokens)} tokens, and each request takes {case.pool.cost.state_blocks} of them in "
            "each such layer (prefix caching; one without)"
        )
    if any(group.window is not None for group in geometry.groups) and len(geometry.groups) > 1:
        yield (f"layers with a window are counted with their window, {case.runtime.planning.windows}")
    if memory is not None and memory.weights_bytes is memory.kv_cache_bytes is None and geometry.weights is not None:
        title, log = case.runtime.title, case.runtime.planning.weights_log
        off = "10 %" if geometry.weights.quantized or geometry.state_layers else "2 %"
        yield (
            f"the weights ({size(geometry.weights.bytes)}) are estimated from the geometry, within about {off}; give "
            f"--weights-gib ({title} logs: {log}), or --kv-cache-memory-bytes as it logs it"
        )


def _parallel_warnings(geometry: Geometry, ranks: int) -> Iterator[str]:
    heads = max(group.kv_heads for group in geometry.groups)
    if ranks > 1 and any(group.latent for group in geometry.groups):
        yield (
            "the latent cache (MLA) is kept in full on each of the GPUs: tensor parallelism adds to the pool only "
            "what weights no longer take; data parallelism would add whole pools"
        )
    elif ranks > heads:
        yield f"{ranks} GPUs share {heads} KV heads: heads are replicated, and the cache per GPU shrinks no further"
