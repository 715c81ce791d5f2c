"""What deploys vLLM with keys of its own: the production stack's chart, and KServe."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from kvpressure.runtimes.starting import Chart, KServe
from kvpressure.runtimes.vllm.launch import EXTRA_ARGUMENTS

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
