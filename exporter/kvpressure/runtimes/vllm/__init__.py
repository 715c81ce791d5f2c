"""vLLM: what to advise of it, in its own flags, and what deploys it; nothing outside this folder names them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from kvpressure.runtimes.runtime import (
    Advice,
    AdviceWords,
    AdvisedFlags,
    Audit,
    Change,
    Planning,
    Remedies,
    Remedy,
    Runtime,
    Server,
    without_dashes,
)
from kvpressure.runtimes.starting import Chart, KServe
from kvpressure.runtimes.vllm.launch import EXTRA_ARGUMENTS, REMOVED, STARTING, pooling, version_of
from kvpressure.runtimes.vllm.logs import LOGS
from kvpressure.runtimes.vllm.metrics import EVIDENCE, VLLM

_FORMATS: Final = frozenset(("vllm", "huggingface"))

PRODUCTION_STACK: Final = Chart(
    config="vllmConfig",
    extra="extraArgs",
    flags={
        "maxModelLen": "--max-model-len",
        "maxNumSeqs": "--max-num-seqs",
        "gpuMemoryUtilization": "--gpu-memory-utilization",
        "tensorParallelSize": "--tensor-parallel-size",
        "pipelineParallelSize": "--pipeline-parallel-size",
        "dtype": "--dtype",
    },
    command=("vllm", "serve"),
    container="vllm",
    shares="tensorParallelSize",
    kind="VLLMRuntime",
)


def _deployed(model: Mapping[str, Any]) -> bool:
    """Return whether vLLM serves the model: for KServe's two formats, and where the runtime's name says so."""
    described, given = model.get("modelFormat"), model.get("args")
    name = _text(described.get("name")) if isinstance(described, Mapping) else ""
    runtime = _text(model.get("runtime"))
    if isinstance(given, list) and "--backend=huggingface" in given:
        return False
    return "vllm" in runtime or (name in _FORMATS and runtime in {"", "kserve-huggingfaceserver"}) or name == "vllm"


def _text(value: Any) -> str:
    return value.lower() if isinstance(value, str) else ""


KSERVE: Final = KServe(_deployed, EXTRA_ARGUMENTS, by_default=True)


_FLAGS: Final = {
    "max_num_seqs": "--max-num-seqs",
    "max_num_batched_tokens": "--max-num-batched-tokens",
    "max_model_len": "--max-model-len",
    "gpu_memory_utilization": "--gpu-memory-utilization",
    "kv_cache_dtype": "--kv-cache-dtype",
    "watermark": "--watermark",
    "prefix_caching": "--enable-prefix-caching",
    "short_first": "--scheduling-policy",
    "kv_offloading": "--kv-offloading-size",
    "kv_events": "--kv-events-config",
    "kv_cache_metrics": "--kv-cache-metrics",
}

_DETAILS: Final = {
    "lora_slots": Remedy(
        title="raise --max-loras",
        current="1 unless set",
        new="as many adapters as requests ask for at once; --max-cpu-loras at or above it",
        counted="{count}; --max-cpu-loras, where it is set, at or above it",
        flag="--max-loras",
        why="A step computes at most so many adapters. Requests for another one wait until an adapter has no request "
        "left in the batch, whatever room that has.",
        cost="Each slot takes GPU memory for the largest adapter (--max-lora-rank), which the KV pool loses.",
    ),
    "grammar": Remedy(
        title="give grammar compilation more CPU",
        why="Each new schema of structured output is compiled on the CPU before its request may run, by half of the "
        "machine's cores at most; a schema that was seen before is not compiled again. Send the same schema in the "
        "same words, and make it simpler: long enumerations and deep nesting cost most. "
        "--structured-outputs-config.backend=guidance does less of it before the first token.",
        cost="The node must have the cores to spare. Another backend may answer a schema differently.",
    ),
    "transfer": Remedy(
        title="make transfers from the prefill side faster",
        current="not visible",
        new="a faster way for NIXL in the environment of both sides (UCX_TLS, UCX_NET_DEVICES: RDMA and not TCP), or "
        "fewer bytes: --kv-cache-dtype=fp8 on both",
        why="The KV of these prompts is computed and on its way: vllm:nixl_xfer_time_seconds and "
        "vllm:nixl_bytes_transferred show how fast.",
        cost="A restart of both sides, or network hardware. fp8 costs some accuracy.",
    ),
    "remote_kv": Remedy(
        title="see to the engines that send KV, and to the way from them",
        why="The KV of these prompts is computed by other engines and is not here yet: either they are late, or the "
        "transfer is. vllm:nixl_xfer_time_seconds (or mooncake) is the transfer; what is missing up to the time that "
        "requests wait is theirs: more of them, or a faster network (--kv-transfer-config).",
        cost="More prefill engines cost GPUs. Nothing on this engine helps: its batch has room.",
    ),
    "offload": Remedy(
        title="make the offload tier faster or larger",
        current="not visible",
        new="--kv-offloading-size in GiB; or a faster medium in --kv-transfer-config",
        why="The KV of these prompts is being loaded from an offload tier. vllm:kv_offload_load_time over "
        "vllm:kv_offload_load_bytes says how fast it is; where that is slower than computing the prompt, the tier "
        "costs more than it saves.",
        cost="Host memory, or the computing that the tier would have saved.",
    ),
    "long_prompt": Remedy(
        title="let others into the steps of a long prompt",
        current="off, unless set",
        new="a quarter of --max-num-batched-tokens for --long-prefill-token-threshold",
        counted="{count} for --long-prefill-token-threshold",
        flag="--long-prefill-token-threshold",
        why="A prompt of many steps spends all tokens of each, and the requests behind it wait until it is computed. "
        "With the threshold it gets at most so many tokens of a step, and other prompts get the rest.",
        cost="A long prompt is computed in four times as many steps, so its own first token comes later.",
    ),
    "head_of_line": Remedy(
        title="let the first in the queue be taken in parts",
        current="not visible",
        new="chunked prefill on (the default), or --max-num-batched-tokens above the longest prompt",
        why="Without chunked prefill a prompt that is longer than what is left of a step lets those behind it wait. "
        "So do --long-prefill-token-threshold, which takes little of a long prompt at a time, and "
        "--prefill-schedule-interval, which takes prompts in every so many steps only: undo what is set.",
        cost="Steps with a part of a long prompt take longer, so answers' tokens come further apart.",
    ),
    "queue_limit": Remedy(
        title="raise --max-num-queued-reqs, or --max-num-queued-tokens",
        current="not visible",
        new="what may run at once (--max-num-seqs, times data-parallel ranks) and as many more as may wait",
        why="vllm:admission_rejections_total counts the requests that were answered 503, by which of the two limits. "
        "--max-num-queued-reqs counts those that run as well: below what the batch could hold it keeps the GPU idle.",
        cost="Longer queues: those who are taken in wait longer for their first token.",
    ),
    "external_kv": Remedy(
        title="find out where the KV is to come from (--kv-transfer-config), and why it is late",
        why="The KV of these prompts comes from other engines or from an offload tier; the page has no series of the "
        "connector that would tell which (vllm:nixl_*, vllm:mooncake_*, vllm:kv_offload_*). Its log names the "
        "connector at start.",
        cost="A minute. Nothing on this engine helps: its batch has room.",
    ),
}

_WORDS: Final = AdviceWords(
    limits=without_dashes(_FLAGS) | {"max_num_seqs": "max_num_seqs"},
    unset={
        "max_num_seqs": "256 unless set; 1,024 on large GPUs",
        "max_num_batched_tokens": "2,048 to 16,384 unless set, by GPU",
        "gpu_memory_utilization": "0.9 unless set; 0.92 in recent versions",
    },
    step_why="At start vLLM sets aside the memory that one step of so many tokens needs and gives the rest to the "
    "pool: less per step leaves more to the pool and lowers the peak that ends in a device OOM.",
    step_cost="Long prompts are computed in more steps: time to first token rises. It must stay at or above "
    "max_num_seqs, and without chunked prefill at or above max-model-len.",
    sequences_cost="Larger batches make each token take longer. max-num-batched-tokens must stay at or above it.",
    too_little=" If the server then ends with No available memory for the cache blocks, the weights need more: go back "
    "up in steps of 0.05.",
    larger_pool="more replicas or GPUs (--tensor-parallel-size), or --kv-cache-dtype=fp8, which halves the bytes per "
    "token at some accuracy.",
    prefixes="shared prefixes (--enable-prefix-caching)",
    connector="without --kv-offloading-size or --kv-transfer-config, or with fewer blocks in the latter; "
    "vLLM before June 2026 stands still where requests that load KV fill the cache (vllm#45388)",
    other_limits="--max-num-batched-tokens (a step's tokens), --max-num-active-seqs, --watermark (KV kept free), "
    "--long-prefill-token-threshold (long prompts), --prefill-schedule-interval (with data parallelism)",
    flags_in_log="its first log lines (non-default args) name {flags} with the new values.",
)

_REMEDIES: Final = Remedies(
    details=_DETAILS,
    frontends=Change(
        key="api_servers",
        title="More API server processes",
        flag="--api-server-count",
        value="2",
        current="not visible (1 unless set)",
        why="One process takes requests in, tokenizes and writes answers. Time passes there, outside the engine, while "
        "the GPU has room. If there are 2 already, double them.",
        cost="Each takes a CPU core and some host memory. Needs vLLM 0.9 or later.",
    ),
)

ADVICE: Final = Advice(
    server=Server(port=8000, process="vllm", failures="out of memory|cache blocks|EngineDead", series="vllm:"),
    flags=AdvisedFlags(
        limits=_FLAGS,
        caps="--max-model-len={total} --override-generation-config='{{\"max_new_tokens\": {output}}}'",
        other_sequences="--max-num-active-seqs",
        by_priority="priority",
        small_kv="fp8",
    ),
    words=_WORDS,
    remedies=_REMEDIES,
)

_LARGE_GPU_BYTES: Final = 70 * 2**30


def _default_sequences(gpu: str, gpu_bytes: float) -> int:
    """Return the default of engine/arg_utils.py's `get_batch_defaults`: by memory, the A100 among the small GPUs."""
    return 1024 if gpu_bytes >= _LARGE_GPU_BYTES and "a100" not in gpu.lower() else 256


AUDIT: Final = Audit(
    undeclared={
        "max_num_seqs": "vLLM takes 256, or 1,024 on large GPUs, whatever fits into the KV cache",
        "max_num_batched_tokens": "vLLM takes 2,048 to 16,384, by version and GPU",
        "gpu_memory_utilization": "vLLM takes 0.9 (0.92 in recent versions)",
    },
    largest_step=16384,
    default_sequences=_default_sequences,
    largest_sequences=1024,
    needs_step=True,
    output_cap='{"max_new_tokens": %d}',
    removed=REMOVED,
    version=version_of,
    pooling=pooling,
)

PLANNING: Final = Planning(
    command="vllm serve",
    flags=_FLAGS
    | {
        "tensor_parallel": "--tensor-parallel-size",
        "pipeline_parallel": "--pipeline-parallel-size",
        "data_parallel": "--data-parallel-size",
        "expert_parallel": "--enable-expert-parallel",
    },
    # engine/arg_utils.py: samplers and graphs are made for that many.
    most_sequences=1024,
    step_tokens=(2048, 8192),
    step_default="vLLM's own default is 2,048, and 8,192 on GPUs of 70 GiB and more (not the A100).",
    unsized="vllm:cache_config_info has neither kv_cache_size_tokens nor num_gpu_blocks",
    pool_log="GPU KV cache size",
    memory_log="Available KV cache memory, from vLLM's log",
    weights_log="Model loading took ... GiB",
    windows="as vLLM does since 0.10.1; older versions, and --disable-hybrid-kv-cache-manager, keep every token in "
    "them",
)


RUNTIME: Final = Runtime(
    name="vllm",
    title="vLLM",
    table=VLLM,
    starting=STARTING,
    logs=LOGS,
    advice=ADVICE,
    audit=AUDIT,
    planning=PLANNING,
    kserve=KSERVE,
    evidence=EVIDENCE,
    charts=(PRODUCTION_STACK,),
    assumed=True,
)
