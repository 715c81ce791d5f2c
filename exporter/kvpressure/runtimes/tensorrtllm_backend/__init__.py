"""Triton with its TensorRT-LLM backend (tensorrtllm_backend), from its source and templates; no server was run.

The metrics are those of the executor under other names, on Triton's own page (port 8002). What is set there are
parameters of the model's config.pbtxt, which no command line has, and what `trtllm-build` has put into the engine. What
starts is Triton, which serves anything: its pages are known by their names, and commands by nothing.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Final

from kvpressure.commandline.options import Dialect
from kvpressure.runtimes.runtime import Advice, AdviceWords, AdvisedFlags, Runtime, Server
from kvpressure.runtimes.starting import Flags, Starting, port_or
from kvpressure.runtimes.table import WHY_WAITING, OptionalSignal, never_exported
from kvpressure.runtimes.trtllm import AUDIT, PLANNING
from kvpressure.runtimes.trtllm.metrics import LOGS, TRTLLM

_OLD: Final = "nv_trt_llm_"
PORT: Final = 8002

TABLE: Final = replace(
    TRTLLM, runtime="tensorrtllm_backend", spellings=(_OLD,), relayed=frozenset({_OLD}), server_gauges=()
)

EVIDENCE: Final = (
    never_exported("how many of its requests wait for room in the KV cache", "waiting_room", "Triton"),
    never_exported(WHY_WAITING, "waiting_deferred", "TensorRT-LLM"),
    OptionalSignal(
        what="how many tokens the KV cache holds",
        signals=("capacity_tokens",),
        series=("trtllm_kv_cache_block_metrics",),
        how="Triton 23.11 and later export it",
    ),
)

STARTING: Final = Starting(
    Flags(dialect=Dialect({}, re.compile("--")), limits={}),
    lambda words: None,  # noqa: ARG005 - as the others are called
    lambda image, command, args, options: False,  # noqa: ARG005 - as the others are called
    port_or(PORT),
)

_WORDS: Final = AdviceWords(
    limits={
        "max_num_seqs": "triton_max_batch_size in config.pbtxt",
        "max_num_batched_tokens": "--max_num_tokens of trtllm-build",
        "max_model_len": "--max_seq_len of trtllm-build",
        "gpu_memory_utilization": "kv_cache_free_gpu_mem_fraction in config.pbtxt",
    },
    unset={
        "max_num_seqs": "as the engine was built",
        "max_num_batched_tokens": "8,192 unless built otherwise",
        "gpu_memory_utilization": "0.9 of what weights and buffers leave, unless set",
    },
    step_why="A step's activations are set aside before the KV cache gets its share of what is left: an engine built "
    "for fewer tokens in a step leaves more to it.",
    step_cost="Long prompts take more steps (enable_chunked_context), and without that none may be longer.",
    sequences_cost="The engine has to be built for as many (trtllm-build --max_batch_size). Larger batches make each "
    "token take longer. Requests are scheduled when all that they may generate fits, so that more seats help only "
    "while the KV cache has room.",
    larger_pool="max_tokens_in_paged_kv_cache out of config.pbtxt, where it is set; an engine with an FP8 KV cache; "
    "requests that ask for no more than they need (max_tokens), all of which is reserved; or batch_scheduler_policy: "
    "max_utilization in config.pbtxt, which reserves nothing and pauses requests instead.",
    prefixes="shared prefixes (with enable_kv_cache_reuse)",
    flags_in_log="its log names the parameters of config.pbtxt ({flags}) as it loads the model.",
    other_limits="--max_num_tokens of trtllm-build (tokens of a step) and max_queue_delay_microseconds in config.pbtxt",
)

ADVICE: Final = Advice(
    server=Server(
        port=PORT,
        process="tritonserver",
        failures="out of memory|OutOfMemory|Assertion failed|signal",
        series=_OLD,
    ),
    flags=AdvisedFlags(limits={}, caps="--max_seq_len={total} of trtllm-build"),
    words=_WORDS,
)

RUNTIME: Final = Runtime(
    name="tensorrtllm_backend",
    title="Triton with TensorRT-LLM",
    table=TABLE,
    starting=STARTING,
    logs=LOGS,
    advice=ADVICE,
    audit=AUDIT,
    planning=PLANNING,
    evidence=EVIDENCE,
)
