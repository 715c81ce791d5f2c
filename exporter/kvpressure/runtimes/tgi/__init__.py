"""Text Generation Inference, from its source and documentation (router and launcher 3.3); no server was run.

What to advise of TGI, in its own flags; after its launcher's documentation.
"""

from __future__ import annotations

from typing import Final

from kvpressure.runtimes.runtime import Advice, Audit, Planning, Remedy, Runtime
from kvpressure.runtimes.tgi.launch import STARTING
from kvpressure.runtimes.tgi.metrics import EVIDENCE, LOGS, TGI

_FLAGS: Final = {
    "max_num_seqs": "--max-batch-size",
    "max_num_batched_tokens": "--max-batch-prefill-tokens",
    "max_model_len": "--max-total-tokens",
    "gpu_memory_utilization": "--cuda-memory-fraction",
    "kv_cache_dtype": "--kv-cache-dtype",
}


ADVICE: Final = Advice(
    serve="text-generation-launcher --model-id MODEL",
    port=80,
    process="text-generation-",
    failures="out of memory|Shard [0-9]+ crashed|Not enough memory",
    series="tgi_",
    flags=_FLAGS,
    words={
        "max_num_seqs": "max-batch-size",
        "max_num_batched_tokens": "max-batch-prefill-tokens",
        "max_model_len": "max-total-tokens",
        "gpu_memory_utilization": "cuda-memory-fraction",
    },
    unset={
        "max_num_seqs": "no limit unless set",
        "max_num_batched_tokens": "the longest prompt and 50 unless set",
        "gpu_memory_utilization": "1.0 unless set",
    },
    cap_flags="--max-total-tokens={total} --max-input-tokens={rest}",
    step_why="At start a batch of so many prompt tokens is tried, and what that leaves of the memory is the cache "
    "(--max-batch-total-tokens): a smaller one leaves more to it.",
    step_cost="Fewer prompts join the batch at a time, and none may be longer.",
    sequences_cost="Larger batches make each token take longer. Requests join by what they reserve, so without this "
    "flag --max-batch-total-tokens is the limit.",
    too_little="",
    larger_pool="more replicas or GPUs (--num-shard), or --kv-cache-dtype=fp8_e4m3fn, which halves the bytes per token "
    "at some accuracy; and requests that ask for no more than they need (max_new_tokens), all of which is reserved.",
    prefixes="shared prefixes (unless PREFIX_CACHING=0)",
    told="its first log line (Args) names {flags} with the new values.",
    remedies={
        "queue_limit": Remedy(
            title="raise --max-concurrent-requests",
            current="128 unless set",
            new="about as many as come at once, and no more than may wait",
            why="More requests come at once than it takes in: the others are refused with 429.",
            cost="Those that are taken in wait longer.",
        ),
    },
    other_limits="--max-batch-prefill-tokens (prompts that join at a time), --waiting-served-ratio and "
    "--max-waiting-tokens (how long those that run go on before others join)",
    small_kv="fp8_e4m3fn",
)

AUDIT: Final = Audit(
    undeclared={
        "max_num_seqs": "TGI takes as many as their prompts and max_new_tokens fit the cache",
        "max_num_batched_tokens": "TGI takes the longest prompt and 50",
        "gpu_memory_utilization": "TGI takes all that is free",
    },
    defaults={"max_num_seqs": (), "max_num_batched_tokens": (4096, 16384)},
)

PLANNING: Final = Planning(
    command="text-generation-launcher",
    flags=_FLAGS | {"tensor_parallel": "--num-shard"},
    most_sequences=1024,
    step_tokens=(4096, 4096),
    step_default="TGI's own default is the longest prompt and 50.",
    unsized="its page does not tell how many tokens the cache holds; its log does",
    pool_log="Setting max batch total tokens to",
    memory_log="max batch total tokens",
    weights_log="the size of the model's files",
    windows="as its attention has them.",
    memory_share=1.0,
    needs_longest=True,
    by_memory=False,
    cache_types={"fp8": "fp8_e4m3fn"},
)

RUNTIME: Final = Runtime(
    name="tgi",
    title="TGI",
    table=TGI,
    starting=STARTING,
    logs=LOGS,
    advice=ADVICE,
    audit=AUDIT,
    planning=PLANNING,
    evidence=EVIDENCE,
)
