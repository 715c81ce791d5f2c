"""The options of `vllm serve` that limits are read from, the way vLLM's parser finds them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final

from kvpressure.commandline.budget import Budget
from kvpressure.commandline.numbers import fraction, human, share, whole
from kvpressure.commandline.options import Dialect, Given, parse_json
from kvpressure.commandline.shell import unresolved
from kvpressure.runtimes.starting import Flags, Sizing

NAMES: Final[Mapping[str, str]] = {
    "backend": "backend",
    "block-size": "block-s",
    "config": "config",
    "data-parallel-size": "data-parallel-size",
    "dtype": "dtype",
    "enable-expert-parallel": "enable-ex",
    "generation-config": "generation-c",
    "gpu-memory-utilization": "gpu-memory-u",
    "headless": "headl",
    "hf-overrides": "hf-ov",
    "http-port": "http-port",
    "kv-cache-dtype": "kv-cache-dtype",
    "kv-cache-memory-bytes": "kv-cache-mem",
    "max-model-len": "max-mo",
    "max-num-batched-tokens": "max-num-ba",
    "max-num-seqs": "max-num-se",
    "model": "model",
    "num-gpu-blocks-override": "num-gpu-b",
    "override-generation-config": "override-g",
    "pipeline-parallel-size": "pipeline",
    "port": "por",
    "quantization": "quantiz",
    "rope-scaling": "rope-s",
    "served-model-name": "served-",
    "tensor-parallel-size": "tensor-p",
    "watermark": "watermark",
}
"""Options that are looked for, and the shortest beginning that means them in every version from 0.6 on."""

_SWITCH: Final = re.compile(r"--(no|enable|disable|enforce|trust|headless|async|skip|use|fully|calculate)([-_]|$)")


def _output_caps(given: Mapping[str, Given], files: Mapping[str, str], budget: Budget) -> Iterator[Given]:
    """Yield `max_new_tokens` of the generation config, which caps every request's output; the override wins."""
    folder, override = given.get("generation-config"), given.get("override-generation-config")
    if folder is not None and folder.text not in {"auto", "vllm", ""}:
        path = f"{folder.text.rstrip('/')}/generation_config.json"
        if path in files:
            yield from _cap(files[path], f"max_new_tokens of {path}", budget)
    if override is not None:
        yield from _cap(override.text, override.written, budget, override.file)


def _cap(text: str, written: str, budget: Budget, file: str = "") -> Iterator[Given]:
    config = parse_json(text, budget)
    if isinstance(config, dict):
        value = config.get("max_new_tokens")
        if isinstance(value, (int, float, str)) and not isinstance(value, bool):
            yield Given(str(value).removesuffix(".0"), written, file)
    elif unresolved(text):
        yield Given(text, written, file)


def _capacity(options: Mapping[str, Given]) -> tuple[float, str] | None:
    """Return blocks times block size, without vLLM's null block; None unless both are given."""
    blocks, size = options.get("num-gpu-blocks-override"), options.get("block-size")
    if blocks is None or size is None:
        return None
    count, tokens = whole(blocks.text), whole(size.text)
    if count is None or tokens is None or count <= 1:
        return None
    return (count - 1) * tokens, f"{blocks.written} {size.written}"


FLAGS: Final = Flags(
    dialect=Dialect(
        NAMES,
        _SWITCH,
        output_caps=_output_caps,
        short={
            "-dp": "data-parallel-size",
            "-pp": "pipeline-parallel-size",
            "-q": "quantization",
            "-tp": "tensor-parallel-size",
        },
    ),
    # `--max-model-len` and `--max-num-batched-tokens` are read by vLLM's `human_readable_int`.
    limits={
        "max_model_len": ("max-model-len", human),
        "max_num_seqs": ("max-num-seqs", whole),
        "max_num_batched_tokens": ("max-num-batched-tokens", human),
        "gpu_memory_utilization": ("gpu-memory-utilization", share),
        "kv_watermark_ratio": ("watermark", fraction),
    },
    capacity=_capacity,
    # vLLM then sizes the pool by that alone, whatever the utilization says.
    sizes_pool="kv-cache-memory-bytes",
    output_cap="override-generation-config",
    ranks=(
        ("--tensor-parallel-size", "-tp"),
        ("--pipeline-parallel-size", "-pp"),
        ("--data-parallel-size-local", "-dpl", "--data-parallel-size", "-dp"),
    ),
    tls="ssl-certfile",
    sizing=Sizing(
        tensor="tensor-parallel-size",
        pipeline="pipeline-parallel-size",
        data="data-parallel-size",
        expert="enable-expert-parallel",
        kv_cache_dtype="kv-cache-dtype",
        dtype="dtype",
        quantization="quantization",
        stretches=("rope-scaling", "hf-overrides"),
    ),
)
