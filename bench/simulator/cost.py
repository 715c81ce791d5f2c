"""How long one engine step takes, and how busy the accelerator is in it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StepWork:
    """What a step computes: `batch` sequences decoding over `context_tokens` in total, and prompt chunks.

    `prefill_context` sums, over the chunks, tokens of the chunk x mean tokens each attends to.
    """

    batch: int
    context_tokens: int
    prefill_tokens: int = 0
    prefill_context: float = 0.0


@dataclass(frozen=True, slots=True)
class StepTime:
    """Seconds of a step, and of it the seconds a kernel runs, tensor cores work, and memory moves."""

    seconds: float
    busy: float
    compute: float
    memory: float


@dataclass(frozen=True, slots=True)
class LinearCost:
    """A CPU engine: everything adds up. Seconds per step, sequence, context token, prompt token and attended pair."""

    step: float
    sequence: float
    context_token: float
    prefill_token: float
    prefill_pair: float

    def time(self, work: StepWork) -> StepTime:
        """The step's time; all of it is compute."""
        seconds = (
            self.step
            + self.sequence * work.batch
            + self.context_token * work.context_tokens
            + self.prefill_token * work.prefill_tokens
            + self.prefill_pair * work.prefill_context
        )
        return StepTime(seconds, seconds, seconds, 0.0)


@dataclass(frozen=True, slots=True)
class RooflineCost:
    """A GPU engine: a step lasts as long as the slowest of compute, memory and host, plus a part that never overlaps.

    Two floating point operations per weight and token, four per attended pair, hidden unit and layer; a step reads
    the weights once and the KV of its batch (Williams et al. 2009, "Roofline"). `host_seconds` is what the CPU needs
    to prepare and launch a step, hidden behind the GPU where asynchronous scheduling can.
    """

    parameters: float
    weight_bytes: float
    kv_bytes_per_token: float
    pair_flops: float
    flops_per_second: float
    bytes_per_second: float
    host_seconds: float = 2e-3
    host_seconds_per_sequence: float = 1e-5
    overhead_seconds: float = 5e-4

    def time(self, work: StepWork) -> StepTime:
        """The step's time and its shares."""
        tokens = work.batch + work.prefill_tokens
        pairs = work.context_tokens + work.prefill_context
        compute = (2 * self.parameters * tokens + self.pair_flops * pairs) / self.flops_per_second
        read = self.weight_bytes + self.kv_bytes_per_token * (work.context_tokens + work.prefill_tokens)
        memory = read / self.bytes_per_second
        busy = max(compute, memory)
        host = self.host_seconds + self.host_seconds_per_sequence * work.batch
        return StepTime(max(busy, host) + self.overhead_seconds, busy, compute, memory)
