"""The KV pool of one engine: how large it will be, and how many requests of a length it holds.

A runtime takes `gpu_memory_utilization` of each GPU and gives to the cache what weights, the peak of the activations,
CUDA graphs and everything outside torch leave of it, or what weights alone leave (decision 0041).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TypeAlias

from kvpressure.capacity.arithmetic import Step, number, quotient, size
from kvpressure.capacity.geometry import BLOCK_TOKENS, Geometry, KvCost, LayerGroup
from kvpressure.capacity.memory import Memory, overhead_steps, weights_step


@dataclass(frozen=True, slots=True)
class TokenPool:
    """The pool of a running engine, as its page exports it."""

    capacity_tokens: int
    block_tokens: int = BLOCK_TOKENS
    bytes_per_token: float | None = None

    @property
    def bytes(self) -> float | None:
        """Size on one GPU, None when the engine does not export it."""
        return None if self.bytes_per_token is None else self.capacity_tokens * self.bytes_per_token

    def tokens(self, request_tokens: int) -> int:  # noqa: ARG002 - every token costs the same here
        """Return the capacity, which is the same for all lengths."""
        return self.capacity_tokens

    def running_tokens(self, request_tokens: int) -> float:  # noqa: ARG002 - every token costs the same here
        """Return the capacity, which is the same for all lengths."""
        return float(self.capacity_tokens)

    def request_bytes(self, tokens: int) -> float | None:
        """Return tokens times their bytes."""
        return None if self.bytes_per_token is None else tokens * self.bytes_per_token

    def fit(self, tokens: int, share: float) -> int:
        """Return how many whole requests fit."""
        return max(0, math.floor(self.capacity_tokens * share / tokens))

    def fit_formula(self, tokens: int, share: float) -> str:
        """Return the calculation in tokens."""
        return f"{number(self.capacity_tokens)} x {share:g} / {number(tokens)}"

    def longest(self, share: float, most: int) -> int:
        """Return the longest request in whole blocks."""
        return max(0, min(most, _full_blocks(self.capacity_tokens * share, self.block_tokens)))

    def without(self, lost_bytes: float) -> TokenPool | None:
        """Return the pool without the tokens that the lost bytes would keep."""
        if self.bytes_per_token is None:
            return None
        left = math.floor(self.capacity_tokens - lost_bytes / self.bytes_per_token)
        return replace(self, capacity_tokens=max(0, left))

    def for_model(self, cost: KvCost, max_model_len: int | None, step_tokens: int = 0) -> BytePool:
        """Return the same pool for a model whose requests are known to cost `cost`.

        Runtimes say of models with windows how many tokens requests of `max_model_len` may have together; those hold
        less per token than shorter ones do, so the size follows from that length, and from the tokens of a step, which
        each of them may hold in its windows: without those the pool is taken for smaller than it is.
        """
        if cost.uniform or max_model_len is None:
            return BytePool(self.capacity_tokens * cost.bytes_per_token, cost)
        longest = cost.request_bytes(max_model_len, step_tokens)
        return BytePool(self.capacity_tokens / max_model_len * longest, cost, step_tokens)


@dataclass(frozen=True, slots=True)
class BytePool:
    """A pool of `size_bytes` on each GPU and what a model's requests cost there.

    `step_tokens` is what a step may add to windows: to each request's where the runtime says how many of the longest
    fit, and once where it is asked how many run together, as the requests of one step share its tokens.
    """

    size_bytes: float
    cost: KvCost
    step_tokens: int = 0

    @property
    def bytes(self) -> float:
        """Size on one GPU."""
        return self.size_bytes

    @property
    def block_tokens(self) -> int:
        """Tokens per block."""
        return self.cost.block_tokens

    @property
    def state_sequences(self) -> int | None:
        """The sequences for which layers with a state have a block each, None without such layers.

        A server refuses to start with a `max_num_seqs` above it.
        """
        block = self.cost.state_blocks_bytes
        return math.floor(self.size_bytes / block) if block else None

    def tokens(self, request_tokens: int) -> int:
        """Return whole blocks; with windows the tokens of requests of this length that fit."""
        each = self._each(request_tokens) / request_tokens
        return max(0, _full_blocks(self.size_bytes / each, self.block_tokens))

    def running_tokens(self, request_tokens: int) -> float:
        """Return the tokens of requests of this length that run together, beside the windows of one step."""
        return max(0.0, self._beside_step(1.0)) / self.cost.request_bytes(request_tokens) * request_tokens

    def request_bytes(self, tokens: int) -> float | None:
        """Return the bytes by layers, windows and blocks, while no prompt is computed."""
        return float(self.cost.request_bytes(tokens))

    def fit(self, tokens: int, share: float) -> int:
        """Return how many whole requests fit."""
        return max(0, math.floor(self._beside_step(share) / self.cost.request_bytes(tokens)))

    def fit_formula(self, tokens: int, share: float) -> str:
        """Return the calculation in GiB."""
        fits, each = self.fit(tokens, share), self.cost.request_bytes(tokens)
        if not self.step_tokens * self.cost.windowed_bytes_per_token:
            pool, request = quotient(self.size_bytes, each, lambda ratio: math.floor(ratio * share) == fits)
            return f"{pool} / {request} x {share:g}"
        pool, request = quotient(self._beside_step(share), each, lambda ratio: math.floor(ratio) == fits)
        return f"{pool} / {request}, beside a step's windows and what stays free"

    def tokens_formula(self, request_tokens: int) -> str:
        """Return the calculation of `tokens`."""
        holds = self.tokens(request_tokens)
        blocks = self.block_tokens
        each = self._each(request_tokens)
        pool, request = quotient(self.size_bytes, each, lambda r: _full_blocks(r * request_tokens, blocks) == holds)
        return f"{pool} / {request} x {number(request_tokens)}, rounded down to blocks of {blocks}"

    def longest(self, share: float, most: int) -> int:
        """Return the longest request, whose later tokens cost less in layers with windows."""
        return self.cost.longest_request(self.size_bytes * share, most, self.step_tokens)

    def without(self, lost_bytes: float) -> BytePool:
        """Return the pool smaller by those bytes."""
        return replace(self, size_bytes=max(0.0, self.size_bytes - lost_bytes))

    def _beside_step(self, share: float) -> float:
        return self.size_bytes * share - self.step_tokens * self.cost.windowed_bytes_per_token

    def _each(self, tokens: int) -> int:
        return self.cost.request_bytes(tokens, self.step_tokens)


Pool: TypeAlias = TokenPool | BytePool
"""A KV pool, known in tokens or in bytes."""


def pool_from_memory(
    geometry: Geometry, cost: KvCost, memory: Memory, batched_tokens: int, stage: range | None = None
) -> tuple[BytePool, tuple[Step, ...]]:
    """Return the pool that memory and model leave on one GPU, and its calculation; empty where they leave nothing.

    With a pipeline `cost` is of the layers of one `stage`, `geometry` still of the whole model.
    """
    steps = _token_steps(cost)
    if memory.kv_cache_bytes is not None:
        free = memory.kv_cache_bytes
        steps.append(Step("KV pool", memory.runtime.planning.memory_log, free, "bytes"))
    else:
        parts = [weights_step(geometry, memory, stage), *overhead_steps(geometry, memory, batched_tokens)]
        usable = memory.smallest_gpu_bytes * memory.gpu_memory_utilization
        named = "smallest GPU, " if len(set(memory.gpu_memory_bytes)) > 1 else ""
        named += f"{memory.gpu}: " if memory.gpu else ""
        formula = f"{named}{size(memory.smallest_gpu_bytes)} x {memory.gpu_memory_utilization:g}"
        share = Step(f"Memory for {memory.runtime.title}", formula, usable, "bytes")
        free = share.value - sum(part.value for part in parts)
        steps += [share, *parts]
        if free <= 0:
            formula = f"{' + '.join(part.result for part in parts)} - {share.result}"
            return BytePool(0.0, cost, batched_tokens), (*steps, Step("Memory missing", formula, -free, "bytes"))
        steps.append(Step("KV pool", " - ".join(step.result for step in (share, *parts)), free, "bytes"))
    # One block is kept by the runtime.
    left = max(0.0, free - cost.block_bytes)
    formula = f"{size(free)} - one block of {size(cost.block_bytes)}"
    pool = BytePool(left, cost, batched_tokens)
    return pool, (*steps, Step("Pool for requests", formula, left, "bytes"))


def _token_steps(cost: KvCost) -> list[Step]:
    steps = []
    for group in cost.groups:
        kind = "" if len(cost.groups) == 1 and group.window is None else f", {group.kind}"
        value = group.layers * cost.layer_bytes(group)
        steps.append(Step(f"KV cache per token{kind}", _token_formula(group, cost), value, "bytes"))
    if cost.state_layers:
        blocks, layers = f"{cost.state_blocks} blocks", f"{cost.allocated_state_layers} layers"
        formula = f"{blocks} x {layers} x {number(cost.state_block_bytes)} B"
        steps.append(Step("State per request", formula, cost.request_state_bytes, "bytes"))
    return steps


def _token_formula(group: LayerGroup, cost: KvCost) -> str:
    """Return the formula of one token's bytes in all layers of a kind: 32 layers x 8 KV heads x (128 + 128) x 2 B."""
    ranks = cost.tensor_parallel
    layers = f"{group.layers} layers"
    each = f"{cost.value_bytes:g} B"
    if group.latent:
        beside = group.bytes_beside(cost.value_bytes)
        latent = f"{group.values_per_head} latent values x {each}"
        return f"{layers} x ({latent} + {beside} B of its index)" if beside else f"{layers} x {latent}"
    heads = f"{group.kv_heads} KV head{'s' if group.kv_heads > 1 else ''}"
    if ranks > group.kv_heads:
        heads = "1 KV head"
    elif ranks > 1:
        heads += f" / {ranks} GPUs"
    if group.key_size == group.value_size:
        return f"2 (K, V) x {layers} x {heads} x {group.key_size} x {each}"
    return f"{layers} x {heads} x ({group.key_size} + {group.value_size}) x {each}"


def whole_blocks(tokens: float, block_tokens: int) -> int:
    """Return the tokens of the blocks that `tokens` take."""
    return math.ceil(tokens / block_tokens) * block_tokens


def _full_blocks(tokens: float, block_tokens: int) -> int:
    return math.floor(tokens / block_tokens) * block_tokens
