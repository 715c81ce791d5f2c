"""SGLang, from its documented metrics, server arguments and log lines (0.4 to 0.5)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from kvpressure.commandline.options import Dialect, Given, Options, share, whole
from kvpressure.commandline.programs import Launch, base
from kvpressure.commandline.words import Words
from kvpressure.model.environment import ROLE_CODES
from kvpressure.runtimes.runtime import (
    Advice,
    AdviceWords,
    AdvisedFlags,
    Audit,
    Change,
    Planning,
    Remedies,
    Runtime,
    Server,
    without_dashes,
)
from kvpressure.runtimes.sglang.metrics import EVIDENCE, LOGS, SGLANG
from kvpressure.runtimes.starting import DYNAMO, Flags, KServe, Sizing, Starting, image_name, port_or, start_script

NAMES: Final[Mapping[str, str]] = {
    "chunked-prefill-size": "chunked-p",
    "config": "config",
    "context-length": "context-l",
    "disaggregation-mode": "disaggregation-m",
    "dp-size": "dp-size",
    "dtype": "dtype",
    "enable-dp-attention": "enable-dp-a",
    "is-embedding": "is-e",
    "ep-size": "ep-size",
    "kv-cache-dtype": "kv-cache-d",
    "max-prefill-tokens": "max-prefill-tokens",
    "max-running-requests": "max-ru",
    "max-total-tokens": "max-to",
    "mem-fraction-static": "mem-f",
    "model-path": "model-p",
    "node-rank": "node-r",
    "port": "port",
    "pp-size": "pp-size",
    "quantization": "quantization",
    "served-model-name": "served-",
    "tp-size": "tp-size",
}
"""Options that are looked for, and the shortest beginning that means them."""

_ALIASES: Final = {
    "model": "model-path",
    "tp": "tp-size",
    "tensor-parallel-size": "tp-size",
    "pp": "pp-size",
    "pipeline-parallel-size": "pp-size",
    "dp": "dp-size",
    "data-parallel-size": "dp-size",
    "ep": "ep-size",
    "expert-parallel-size": "ep-size",
}

_SWITCH: Final = re.compile(r"--(enable|disable|trust|skip|allow|collect|is|show|delete)([-_]|$)")


def _role(options: Mapping[str, Given]) -> tuple[float, str] | None:
    given = options.get("disaggregation-mode")
    code = None if given is None else ROLE_CODES.get(given.text)
    return None if given is None or code is None else (code, given.written)


FLAGS: Final = Flags(
    dialect=Dialect(NAMES, _SWITCH, aliases=_ALIASES),
    limits={
        "max_model_len": ("context-length", whole),
        "max_num_seqs": ("max-running-requests", whole),
        "max_num_batched_tokens": ("chunked-prefill-size", whole),
        "gpu_memory_utilization": ("mem-fraction-static", share),
        # At most that: a pool that memory makes smaller stays smaller.
        "kv_capacity_tokens": ("max-total-tokens", whole),
    },
    role=_role,
    model="model-path",
    tls="ssl-certfile",
    sizing=Sizing(
        "tp-size", "pp-size", "dp-size", "ep-size", "kv-cache-dtype", "dtype", "quantization", "enable-dp-attention"
    ),
)


MODULE: Final = "sglang.launch_server"
WORKER_MODULE: Final = f"{DYNAMO}sglang"
PORT: Final = 30000

_IMAGES: Final = re.compile(r"sglang(-[a-z0-9.-]+)?")
_OTHERS: Final = re.compile(r"router|gateway|bench|client|proxy|sidecar|exporter|operator|controller|simulator")
_SCRIPT: Final = re.compile(r"sglang|serv|start|launch|entry")


def _launch(words: Words) -> Launch | None:
    for at, word in enumerate(words):
        following = words[at + 1] if at + 1 < len(words) else ""
        if (word == "-m" and following == MODULE) or (following == "serve" and base(word) == "sglang"):
            return Launch(words[at + 2 :])
        if word == "-m" and following == WORKER_MODULE:
            return Launch(words[at + 2 :], following)
        if word.endswith("sglang/launch_server.py"):
            return Launch(words[at + 1 :])
    return None


def _worker(options: Options) -> bool:
    """Return whether this is not the first node: of several, only the first serves the API."""
    rank = options.given.get("node-rank")
    return rank is not None and whole(rank.text) is not None


def _serves(module: str, options: Options, image: str) -> bool:  # noqa: ARG001 - another's images serve too
    return module != WORKER_MODULE and not _worker(options)


def _image_serves(image: str, command: Words, args: Words, options: Sequence[Options]) -> bool:  # noqa: ARG001
    """Return whether an image's start script serves, by its name; the images' own entrypoint is a shell."""
    name = image_name(image)
    if not command or not _IMAGES.fullmatch(name) or _OTHERS.search(name):
        return False
    script = start_script((*command, *args))
    return _SCRIPT.search(script) is not None and not _OTHERS.search(script)


STARTING: Final = Starting(FLAGS, _launch, _image_serves, port_or(PORT), _worker, _serves)


def _deployed(model: Mapping[str, Any]) -> bool:
    described = model.get("modelFormat")
    name = described.get("name") if isinstance(described, Mapping) else ""
    return any("sglang" in text.lower() for text in (name, model.get("runtime")) if isinstance(text, str))


KSERVE: Final = KServe(_deployed)


_FLAGS: Final = {
    "max_num_seqs": "--max-running-requests",
    "max_num_batched_tokens": "--chunked-prefill-size",
    "max_model_len": "--context-length",
    "gpu_memory_utilization": "--mem-fraction-static",
    "kv_cache_dtype": "--kv-cache-dtype",
    "kv_events": "--kv-events-config",
}


_WORDS: Final = AdviceWords(
    limits=without_dashes(_FLAGS),
    unset={
        "max_num_seqs": "2,048 to 4,096 unless set, by the size of the pool",
        "max_num_batched_tokens": "2,048 to 16,384 unless set, by GPU",
        "gpu_memory_utilization": "0.8 to 0.9 unless set, by GPU",
    },
    step_why="A chunk's activations live outside the pool. Where mem-fraction-static is not set SGLang keeps room for "
    "them and gives the rest to the pool: smaller chunks leave more to it and lower the peak that ends in an OOM.",
    step_cost="Long prompts are computed in more chunks: time to first token rises.",
    sequences_cost="Larger batches make each token take longer. Beyond cuda-graph-max-bs steps run without a graph.",
    too_little=" If the server then ends with Not enough memory, please try to increase --mem-fraction-static, the "
    "weights need more: go back up in steps of 0.05.",
    larger_pool="more replicas or GPUs (--tp-size), or --kv-cache-dtype=fp8_e4m3, which halves the bytes per token at "
    "some accuracy.",
    prefixes="shared prefixes (unless --disable-radix-cache is given)",
    other_pools="--max-mamba-cache-size or a higher --mamba-full-memory-ratio; --swa-full-tokens-ratio for windows",
    connector="without --enable-hierarchical-cache, or --disaggregation-mode with shorter time-outs",
    other_limits="--chunked-prefill-size and --max-prefill-tokens (a step's tokens), --schedule-conservativeness",
    flags_in_log="its first log line (server_args) names {flags} with the new values.",
)

_REMEDIES: Final = Remedies(
    frontends=Change(
        key="tokenizer_workers",
        title="More tokenizer processes",
        flag="--tokenizer-worker-num",
        value="2",
        current="not visible (1 unless set)",
        why="One process takes requests in, tokenizes and writes answers. Time passes there, outside the engine, while "
        "the GPU has room. If there are 2 already, double them.",
        cost="Each takes a CPU core and some host memory. Needs SGLang 0.5 or later.",
    ),
    reserve=Change(
        key="schedule_conservativeness",
        title="Reserve more for each answer",
        flag="--schedule-conservativeness",
        value="1.3",
        current="not visible (1.0 unless set)",
        why="Requests are admitted with a part of the answer they may give reserved, and retracted when that was too "
        "little: each then computes its whole context again. A higher value reserves more.",
        cost="Fewer requests run at once. Where requests wait and the pool is not full, go back.",
    ),
    less_reserve=Change(
        key="schedule_conservativeness",
        title="Reserve less for each answer",
        flag="--schedule-conservativeness",
        value="0.3",
        current="not visible (1.0 unless set)",
        why="Requests are admitted while a share of what running ones may still generate (sglang:new_token_ratio) is "
        "free. Answers take less than that: a lower value reserves less.",
        cost="Requests are retracted more often, and compute again: if sglang:num_retracted_requests_total then grows "
        "faster than before, take 0.6.",
    ),
)

ADVICE: Final = Advice(
    server=Server(
        port=PORT,
        process="sglang",
        failures="out of memory|Not enough memory|hit an exception",
        series="sglang:",
    ),
    flags=AdvisedFlags(limits=_FLAGS, caps="--context-length={total}", small_kv="fp8_e4m3"),
    words=_WORDS,
    remedies=_REMEDIES,
)

AUDIT: Final = Audit(
    undeclared={
        "max_num_seqs": "SGLang takes 2,048 to 4,096, whatever their answers hold in the KV cache",
        "max_num_batched_tokens": "SGLang takes 2,048 to 16,384, by GPU",
        "gpu_memory_utilization": "SGLang takes 0.8 to 0.9, by GPU",
    },
    largest_step=16384,
    other_step="max-prefill-tokens",
    largest_sequences=4096,
    pooling=lambda options: "is-embedding" in options,
)

PLANNING: Final = Planning(
    command="sglang.launch_server",
    flags=_FLAGS
    | {
        "tensor_parallel": "--tp-size",
        "pipeline_parallel": "--pp-size",
        "data_parallel": "--dp-size",
        "expert_parallel": "--ep-size",
    },
    most_sequences=4096,
    step_tokens=(2048, 8192),
    step_default="SGLang's own default is 2,048 to 16,384, by the memory of the GPU.",
    unsized="neither sglang:max_total_num_tokens nor sglang:cache_config_info is there",
    pool_log="max_total_num_tokens",
    memory_log="K size and V size of the KV cache, from SGLang's log",
    weights_log="Load weight end, mem usage",
    windows="as SGLang's hybrid memory does; with --disable-hybrid-swa-memory they keep every token.",
    memory_share=0.85,
    activations_outside=True,
    needs_longest=False,
    cache_types={"fp8": "fp8_e4m3"},
)

RUNTIME: Final = Runtime(
    name="sglang",
    title="SGLang",
    table=SGLANG,
    starting=STARTING,
    logs=LOGS,
    advice=ADVICE,
    audit=AUDIT,
    planning=PLANNING,
    kserve=KSERVE,
    evidence=EVIDENCE,
)
