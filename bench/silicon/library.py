"""Step times as aiconfigurator-core has them: NVIDIA's measurements of kernels on real cards (Apache-2.0).

Runs where `pip install aiconfigurator-core==0.12.0` has been done, which nothing else needs: 80 MB, and 300 MB of what
it depends on. All times are microseconds, as in the tables.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import version
from typing import Any, Final

DISTRIBUTION: Final = "aiconfigurator-core"
MICROSECONDS: Final = 1000.0
"""The library's are milliseconds."""


@dataclass(frozen=True, slots=True)
class Made:
    """One table to be made: a model by its name on Hugging Face, on so many cards of a kind."""

    name: str
    model: str
    card: str
    layers: int
    tensor_parallel: int = 1
    weight_bits: int = 16
    kv_bits: int = 16
    experts: bool = False


TABLES: Final = (
    Made("llama-3.1-8b.h100_sxm", "meta-llama/Meta-Llama-3.1-8B", "h100_sxm", 32),
    Made("llama-3.1-8b.l40s", "meta-llama/Meta-Llama-3.1-8B", "l40s", 32),
    Made("llama-3.1-8b.l40s.kv8", "meta-llama/Meta-Llama-3.1-8B", "l40s", 32, kv_bits=8),
    Made("llama-3.1-8b.b200_sxm", "meta-llama/Meta-Llama-3.1-8B", "b200_sxm", 32),
    Made("llama-3.1-8b.a100_sxm", "meta-llama/Meta-Llama-3.1-8B", "a100_sxm", 32),
    Made("llama-3.1-70b.h100_sxm.tp4", "meta-llama/Meta-Llama-3.1-70B", "h100_sxm", 80, tensor_parallel=4),
    Made("qwen3-8b.h100_sxm", "Qwen/Qwen3-8B", "h100_sxm", 36),
    Made("qwen3-32b.h200_sxm", "Qwen/Qwen3-32B", "h200_sxm", 64),
    Made("qwen3-32b.h100_sxm.tp2", "Qwen/Qwen3-32B", "h100_sxm", 64, tensor_parallel=2),
    Made("qwen3-32b-fp8.h100_sxm.kv8", "Qwen/Qwen3-32B-FP8", "h100_sxm", 64, weight_bits=8, kv_bits=8),
    Made("qwen3-30b-a3b.h100_sxm", "Qwen/Qwen3-30B-A3B", "h100_sxm", 48, experts=True),
    Made(
        "qwen3-30b-a3b-fp8.h100_sxm.kv8",
        "Qwen/Qwen3-30B-A3B-FP8",
        "h100_sxm",
        48,
        weight_bits=8,
        kv_bits=8,
        experts=True,
    ),
    Made("qwen3-30b-a3b.h200_sxm.tp2", "Qwen/Qwen3-30B-A3B", "h200_sxm", 48, tensor_parallel=2, experts=True),
    Made("llama-3.1-8b.h200_sxm", "meta-llama/Meta-Llama-3.1-8B", "h200_sxm", 32),
    Made("llama-3.1-70b.a100_sxm.tp4", "meta-llama/Meta-Llama-3.1-70B", "a100_sxm", 80, tensor_parallel=4),
    Made("llama-3.1-70b.h200_sxm.tp2", "meta-llama/Meta-Llama-3.1-70B", "h200_sxm", 80, tensor_parallel=2),
    Made("llama-3.1-70b.b200_sxm.tp2", "meta-llama/Meta-Llama-3.1-70B", "b200_sxm", 80, tensor_parallel=2),
    Made("qwen3-8b.a100_sxm", "Qwen/Qwen3-8B", "a100_sxm", 36),
    Made("qwen3-8b.l40s", "Qwen/Qwen3-8B", "l40s", 36),
    Made("qwen3-8b.h200_sxm", "Qwen/Qwen3-8B", "h200_sxm", 36),
    Made("qwen3-32b.a100_sxm.tp2", "Qwen/Qwen3-32B", "a100_sxm", 64, tensor_parallel=2),
    Made("qwen3-32b.b200_sxm", "Qwen/Qwen3-32B", "b200_sxm", 64),
    Made("qwen3-30b-a3b.h200_sxm", "Qwen/Qwen3-30B-A3B", "h200_sxm", 48, experts=True),
    Made("qwen3-30b-a3b.b200_sxm", "Qwen/Qwen3-30B-A3B", "b200_sxm", 48, experts=True),
)


class Library:
    """One model on its cards, asked for the parts of a step."""

    def __init__(self, made: Made) -> None:
        self._made = made

    @cached_property
    def _handle(self) -> Any:
        engine = importlib.import_module("aiconfigurator_core.sdk.engine")
        # It tells of every kernel that was measured for another version.
        logging.disable(logging.WARNING)
        made = self._made
        wanted: dict[str, Any] = {"tp_size": made.tensor_parallel}
        if made.experts:
            # Experts are divided among the cards as the rest is.
            wanted |= {"moe_tp_size": made.tensor_parallel, "moe_ep_size": 1}
        if made.kv_bits == 8:
            wanted["kvcache_quant_mode"] = "fp8"
        return engine.EngineHandle.compile(made.model, made.card, "vllm", **wanted)

    def decode_tokenwise(self, sequences: int) -> float:
        """All but attention of a step that decodes so many sequences."""
        return _sum(self._handle.decode_step_per_op(sequences, 1024, 2), attention=False)

    def decode_attention(self, sequences: int, context: int) -> float:
        """Attention of so many sequences of that length."""
        return _sum(self._handle.decode_step_per_op(sequences, context, 2), attention=True)

    def mixed_tokenwise(self, tokens: int) -> float:
        """All but attention of a step with so many tokens in all, of which some are a prompt's."""
        return float(self._handle.mixed_step_breakdown(tokens, 0, tokens, 2)[1]) * MICROSECONDS

    def chunk_attention(self, chunks: int, tokens: int, before: int) -> float:
        """Attention of so many chunks, each of `tokens` after `before`. The library's input length has both in it."""
        context, _ = self._handle.run_static_per_op(
            batch_size=chunks, isl=before + tokens, osl=2, prefix=before, mode="static_ctx"
        )
        return _sum(context, attention=True)

    def step(self, sequences: int, context: int, chunks: int = 0, tokens: int = 0, before: int = 0) -> float:
        """A whole step."""
        attention = self.decode_attention(sequences, context) if sequences else 0.0
        if not chunks:
            return self.decode_tokenwise(sequences) + attention
        computed = self.mixed_tokenwise(sequences + chunks * tokens)
        return computed + attention + self.chunk_attention(chunks, tokens, before)


def provenance() -> dict[str, str]:
    """Return what a table is made from."""
    return {"library": f"{DISTRIBUTION} {version(DISTRIBUTION)}", "license": "Apache-2.0"}


def _sum(operations: Iterable[Sequence[Any]], *, attention: bool) -> float:
    return sum(float(one[1]) for one in operations if ("attention" in one[0]) is attention) * MICROSECONDS
