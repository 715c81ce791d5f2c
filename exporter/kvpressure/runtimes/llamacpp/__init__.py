"""llama.cpp's server, run for real on the CPU (build b10434) and from its source (b11434).

What to advise of llama.cpp, in its own flags; after its server's documentation.
"""

from __future__ import annotations

from typing import Final

from kvpressure.runtimes.llamacpp.launch import STARTING
from kvpressure.runtimes.llamacpp.metrics import EVIDENCE, LLAMACPP, LOGS
from kvpressure.runtimes.runtime import Advice, Audit, Planning, Runtime

_FLAGS: Final = {
    "max_num_seqs": "--parallel",
    "max_num_batched_tokens": "--batch-size",
    "kv_cache_dtype": "--cache-type-k",
}

_MEMORY: Final = "the memory that the context takes (--ctx-size)"


ADVICE: Final = Advice(
    serve="llama-server --metrics --model MODEL",
    port=8080,
    process="llama-server",
    failures="out of memory|GGML_ASSERT|failed to allocate|Context size has been exceeded",
    series="llamacpp:",
    flags=_FLAGS,
    words={
        "max_num_seqs": "--parallel, the number of slots",
        "max_num_batched_tokens": "--batch-size",
        "max_model_len": "--ctx-size",
        "gpu_memory_utilization": _MEMORY,
    },
    unset={
        "max_num_seqs": "4 unless set, sharing one context",
        "max_num_batched_tokens": "2,048 unless set",
        "gpu_memory_utilization": "what --ctx-size needs",
    },
    cap_flags="--kv-unified-per-slot={total}",
    step_why="Prompts are computed in batches of so many tokens, whose buffers live beside the context.",
    step_cost="Long prompts are computed in more batches: time to first token rises.",
    sequences_cost="Each slot has --ctx-size / --parallel tokens: twice the slots with the same --ctx-size halve the "
    "longest request; with twice the --ctx-size it stays, for twice the memory. More at once make each token take "
    "longer.",
    too_little="",
    larger_pool="a larger --ctx-size, or --cache-type-k=q8_0 with --cache-type-v=q8_0, which halve the bytes of a "
    "token at some accuracy; or more replicas.",
    prefixes="prompts that begin as the last one of their slot did (--cache-prompt), and what --cache-ram keeps",
    told="its log says n_slots and n_ctx_slot at start; GET /props has them too (total_slots). {flags} are in force.",
    seats="They wait for a free slot and for nothing else. --ctx-size is shared out: give as many slots as have room "
    "for the longest request each. With --kv-unified slots take from one --ctx-size as they need, and when that is "
    "full, every request that runs ends with an error: let it hold what all may have at once.",
    other_limits="--batch-size and --ubatch-size (tokens computed at once)",
    small_kv="q8_0",
)

AUDIT: Final = Audit(
    undeclared={
        "max_num_seqs": "llama.cpp takes 4 slots, which share one context",
        "max_num_batched_tokens": "llama.cpp takes 2,048",
        "gpu_memory_utilization": "llama.cpp takes what --ctx-size and the layers on the GPU need",
    },
    defaults={"max_num_seqs": (4,), "max_num_batched_tokens": (2048,)},
)

PLANNING: Final = Planning(
    command="llama-server",
    flags=_FLAGS
    | {"max_model_len": "--ctx-size", "gpu_memory_utilization": "--ctx-size", "tensor_parallel": "--tensor-split"},
    most_sequences=4,
    step_tokens=(2048, 2048),
    step_default="llama.cpp's own default is 2,048.",
    unsized="its page does not tell how large the context is",
    pool_log="n_slots times n_ctx_slot",
    memory_log="KV buffer size",
    weights_log="model buffer size",
    windows="as --swa-full leaves them: by default such layers keep their window only.",
    needs_longest=False,
    by_memory=False,
)

RUNTIME: Final = Runtime(
    name="llamacpp",
    title="llama.cpp",
    table=LLAMACPP,
    starting=STARTING,
    logs=LOGS,
    advice=ADVICE,
    audit=AUDIT,
    planning=PLANNING,
    evidence=EVIDENCE,
)
