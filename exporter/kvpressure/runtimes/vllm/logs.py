"""vLLM's log lines: one row per wording, with the versions that have it.

Each worker (one GPU of a tensor or pipeline group) says how much memory it has for the cache, each engine core (a
data-parallel rank), in some versions each worker, how many tokens that makes. Where ranks differ the smallest values
are taken: the one with the least memory decides for all (vLLM takes the fewest blocks of its workers).
"""

from __future__ import annotations

import re
from typing import Final

from kvpressure.runtimes.runtime import GIB, Facts, Wordings, logged_count, note_least

_FREE_MEMORY: Final = "desired gpu memory utilization"

_CONCURRENCY_ERROR: Final = 0.01
"""Of a concurrency with two decimals; half of it is rounding, and tokens are rounded down to blocks."""

_MEMORY: Final = re.compile(
    r"available kv cache memory: (-?\d{1,7}(?:\.\d{1,9})?) ?gib"
    r"|memory reserved for kv cache is (-?\d{1,7}(?:\.\d{1,9})?) ?gib"
    r"|reserved (-?\d{1,7}(?:\.\d{1,9})?) ?gib memory for kv cache as specified by"
)


def _memory(facts: Facts, match: re.Match[str]) -> None:
    memory = float(next(group for group in match.groups() if group is not None)) * GIB
    facts.memory_bytes = memory if facts.memory_bytes is None else min(memory, facts.memory_bytes)


def _concurrency(facts: Facts, match: re.Match[str]) -> None:
    longest = logged_count(match[1])
    tokens = longest * float(match[2])
    if facts.concurrency_tokens is None or tokens < facts.concurrency_tokens:
        facts.concurrency_tokens, facts.concurrency_error_tokens = tokens, longest * _CONCURRENCY_ERROR


def _override(facts: Facts, match: re.Match[str]) -> None:
    blocks, override = logged_count(match[1]), logged_count(match[2])
    facts.overridden = blocks / override if blocks and override else 1.0


LOGS: Final = Wordings(
    rows=(
        # Not "enginecore " alone: newer versions begin every line of that process with it.
        ("engine_dead", "enginecore encountered a fatal error", ""),
        ("engine_dead", "enginecore hit an exception", ""),
        ("engine_dead", "enginecore failed to start", ""),
        ("engine_dead", "engine core initialization failed", ""),
        ("engine_dead", "enginedeaderror", ""),  # with V0's AsyncEngineDeadError and MQEngineDeadError
        ("engine_dead", "workerproc ", r"workerproc (?:hit an exception|failed to start|initialization failed)"),
        ("engine_dead", " died unexpectedly", r"(?:worker|engine core) proc \S{1,80} died unexpectedly"),
        ("engine_dead", "engine background task failed", ""),  # V0
        ("device_oom", _FREE_MEMORY, r"free memory on device .{0,200}is less than desired"),
        ("preemption", "not enough kv cache space", r"is preempted by .{0,80}mode because there is not enough"),  # V0
        ("kv_exhausted", "no available memory for the cache blocks", ""),
        ("kv_exhausted", "larger than the maximum number of tokens that can be stored in kv cache", ""),  # until 0.8
        ("kv_exhausted", "kv cache is needed, which is larger than the available kv cache memory", ""),  # since 0.8
        ("kv_exhausted", "exceeds the capacity of block_manager", ""),  # V0
        ("kv_exhausted", "exceeds available mamba cache blocks", ""),
        ("kv_exhausted", " free blocks from the pool", r"cannot get \d{1,12} free blocks"),
        ("kv_exhausted", "aborted due to the lack of cpu swap space", ""),  # V0
        ("kv_capacity", "available kv cache memory: ", ""),
        ("kv_capacity", "kv cache size: ", r"\bkv cache size: [\d,]{1,20} tokens"),
        ("kv_capacity", "maximum concurrency for ", r"maximum concurrency for [\d,]{1,20} tokens per request: "),
        ("kv_capacity", " blocks: ", r"# \w{1,20} blocks: \d"),  # V0, and V1 until 0.7.2
        ("kv_capacity", "memory reserved for kv cache is ", ""),  # V0
        ("kv_capacity", "memory for kv cache as specified by kv_cache_memory_bytes", ""),
    ),
    refusals=(_FREE_MEMORY,),
    words=(
        *("api server version", "kv cache size: ", "available kv cache memory: ", "for kv cache", " blocks: "),
        *("maximum concurrency for ", "num_gpu_blocks_override="),
    ),
    facts=(
        (re.compile(r"\bkv cache size: ([\d,]{1,20}) tokens"), note_least("tokens")),
        (_MEMORY, _memory),
        (re.compile(r"# (?!cpu)\w{1,20} blocks: (\d{1,12})"), note_least("blocks")),
        (
            re.compile(r"maximum concurrency for ([\d,]{1,20}) tokens per request: (\d{1,9}(?:\.\d{1,9})?)x"),
            _concurrency,
        ),
        (re.compile(r"overriding num_gpu_blocks=(\d{1,12}) with num_gpu_blocks_override=(\d{1,12})"), _override),
    ),
    banner="vllm api server version",
    remedies=(
        (re.compile(r"exceeds available mamba cache blocks \((\d{1,9})\)"), "--max-num-seqs"),
        (re.compile(r"estimated maximum model length is (\d{1,9})"), "--max-model-len"),
        (re.compile(r"maximum number of tokens that can be stored in kv cache \((\d{1,9})\)"), "--max-model-len"),
    ),
    quotes=r"received (?:raw http )?request |generated response |request \S{1,200} details: "
    # At level ERROR and WARNING it names the model that a request named and fields it does not know.
    r"|error with model |\bthe model [`'\"]|fields were present in the request",
)
