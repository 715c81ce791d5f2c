"""TensorRT-LLM, as trtllm-serve and as a backend of Triton, from its source (1.2 and later); no server was run."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

from kvpressure.commandline.options import Dialect, Options, share, whole
from kvpressure.commandline.programs import Launch, base
from kvpressure.commandline.words import Words
from kvpressure.runtimes.runtime import (
    Advice,
    AdviceWords,
    AdvisedFlags,
    Audit,
    Planning,
    Runtime,
    Server,
    without_dashes,
)
from kvpressure.runtimes.starting import DYNAMO, Flags, Sizing, Starting, image_name, port_or, start_script
from kvpressure.runtimes.trtllm.metrics import EVIDENCE, LOGS, TRTLLM

NAMES: Final[Mapping[str, str]] = dict.fromkeys(
    (
        "config",
        "free-gpu-memory-fraction",
        "max-batch-size",
        "max-num-tokens",
        "max-seq-len",
        "model-path",
        "moe-expert-parallel-size",
        "pipeline-parallel-size",
        "port",
        "tensor-parallel-size",
    ),
    "\0",
)
"""Options that are looked for, which are written with underscores; none may be abbreviated."""

_ALIASES: Final = {
    "ep-size": "moe-expert-parallel-size",
    "expert-parallel-size": "moe-expert-parallel-size",
    "extra-engine-args": "config",
    "extra-llm-api-options": "config",
    "kv-cache-free-gpu-memory-fraction": "free-gpu-memory-fraction",
    "pp-size": "pipeline-parallel-size",
    "tp-size": "tensor-parallel-size",
}
_SWITCH: Final = re.compile(r"--(trust|fail|enable)[-_]")

FLAGS: Final = Flags(
    dialect=Dialect(NAMES, _SWITCH, aliases=_ALIASES),
    limits={
        "max_model_len": ("max-seq-len", whole),
        "max_num_seqs": ("max-batch-size", whole),
        "max_num_batched_tokens": ("max-num-tokens", whole),
        "gpu_memory_utilization": ("free-gpu-memory-fraction", share),
    },
    model="model-path",
    sizing=Sizing("tensor-parallel-size", "pipeline-parallel-size", expert="moe-expert-parallel-size"),
)

MODULE: Final = "tensorrt_llm.commands.serve"
WORKER_MODULE: Final = f"{DYNAMO}trtllm"
PORT: Final = 8000
_OTHER_COMMANDS: Final = frozenset(("disaggregated", "disaggregated_mpi_worker", "mm_embedding_serve"))
_SCRIPT: Final = re.compile(r"trtllm|serv|start|launch")


def _launch(words: Words) -> Launch | None:
    for at, word in enumerate(words):
        if words[at : at + 2] == ("-m", WORKER_MODULE):
            return Launch(words[at + 2 :], WORKER_MODULE)
        if base(word) == "trtllm-serve" or (word == MODULE and words[at - 1] == "-m"):
            after = words[at + 1 :]
            if after[:1] and after[0] in _OTHER_COMMANDS:
                return None
            return Launch(after[1:] if after[:1] == ("serve",) else after)
    return None


def _image_serves(image: str, command: Words, args: Words, options: Sequence[Options]) -> bool:  # noqa: ARG001
    """Return whether a start script in its image serves, by its name; the image's own entrypoint is a shell."""
    script = start_script((*command, *args)) if command and image_name(image) == "tensorrt-llm" else ""
    return _SCRIPT.search(script) is not None


def _serves(module: str, options: Options, image: str) -> bool:  # noqa: ARG001 - another's images serve too
    return module != WORKER_MODULE


STARTING: Final = Starting(FLAGS, _launch, _image_serves, port_or(PORT), serves=_serves)


_FLAGS: Final = {
    "max_num_seqs": "--max_batch_size",
    "max_num_batched_tokens": "--max_num_tokens",
    "max_model_len": "--max_seq_len",
    "gpu_memory_utilization": "--free_gpu_memory_fraction",
}


_WORDS: Final = AdviceWords(
    limits=without_dashes(_FLAGS) | {"gpu_memory_utilization": "kv_cache_config.free_gpu_memory_fraction"},
    unset={
        "max_num_seqs": "2,048 unless set",
        "max_num_batched_tokens": "8,192 unless set",
        "gpu_memory_utilization": "0.9 of what weights and buffers leave, unless set",
    },
    step_why="A step's activations are set aside before the KV cache gets its share of what is left: fewer tokens in a "
    "step leave more to it.",
    step_cost="Long prompts take more steps (--enable_chunked_prefill), and without that flag none may be longer.",
    sequences_cost="Larger batches make each token take longer. Requests are scheduled when all that they may generate "
    "fits, so that more seats help only while the KV cache has room.",
    larger_pool="more replicas or GPUs (--tp_size), or kv_cache_config.dtype: fp8, which halves the bytes per token at "
    "some accuracy; requests that ask for no more than they need (max_tokens), all of which is reserved; or "
    "scheduler_config.capacity_scheduler_policy: MAX_UTILIZATION, which reserves nothing and pauses requests instead.",
    prefixes="shared prefixes (unless kv_cache_config.enable_block_reuse is false)",
    flags_in_log="its first log lines (LLM Args) name {flags} with the new values.",
    other_limits="--max_num_tokens (tokens of a step) and scheduler_config in the file of --config",
)

ADVICE: Final = Advice(
    server=Server(
        port=PORT,
        process="trtllm-serve",
        failures="out of memory|OutOfMemory|Error in event loop|Executor worker died",
        series="trtllm_",
    ),
    flags=AdvisedFlags(limits=_FLAGS, caps="--max_seq_len={total}"),
    words=_WORDS,
)

AUDIT: Final = Audit(
    undeclared={
        "max_num_seqs": "TensorRT-LLM takes 2,048 seats, whatever their answers reserve of the KV cache",
        "max_num_batched_tokens": "TensorRT-LLM takes 8,192, or what an engine was built with",
        "gpu_memory_utilization": "TensorRT-LLM takes 0.9 of what weights and buffers leave",
    },
    largest_step=8192,
    largest_sequences=2048,
)

PLANNING: Final = Planning(
    command="trtllm-serve",
    flags=_FLAGS
    | {
        "tensor_parallel": "--tp_size",
        "pipeline_parallel": "--pp_size",
        "expert_parallel": "--ep_size",
        "kv_cache_dtype": "kv_cache_config.dtype",
    },
    most_sequences=2048,
    step_tokens=(8192, 8192),
    step_default="TensorRT-LLM's own default is 8,192.",
    unsized="neither trtllm_kv_cache_max_blocks nor its like behind Triton is there",
    pool_log="Max KV cache blocks",
    memory_log="memory allocated for the KV cache",
    weights_log="the size of the model's files",
    windows="as kv_cache_config.max_attention_window has them.",
    activations_outside=True,
    by_memory=False,
)

RUNTIME: Final = Runtime(
    name="trtllm",
    title="TensorRT-LLM",
    table=TRTLLM,
    starting=STARTING,
    logs=LOGS,
    advice=ADVICE,
    audit=AUDIT,
    planning=PLANNING,
    evidence=EVIDENCE,
)
