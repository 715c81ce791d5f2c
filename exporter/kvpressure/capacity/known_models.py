"""Public models by the name they are served under, and the file of their configuration in `capacity/models`.

A configuration is what the publisher's `config.json` said; who serves one of these names serves that. Names of
fine-tuned or requantized copies are not here: their files may differ. `--model-config` is for those.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Final

KNOWN_MODELS: Final[Mapping[str, tuple[str, ...]]] = {
    "llama-3-8b": ("meta-llama/Meta-Llama-3-8B", "meta-llama/Meta-Llama-3-8B-Instruct"),
    "llama-3-70b": ("meta-llama/Meta-Llama-3-70B", "meta-llama/Meta-Llama-3-70B-Instruct"),
    "llama-3.1-8b": (
        "meta-llama/Llama-3.1-8B",
        "meta-llama/Llama-3.1-8B-Instruct",
        "meta-llama/Meta-Llama-3.1-8B",
        "meta-llama/Meta-Llama-3.1-8B-Instruct",
    ),
    "llama-3.1-70b": (
        "meta-llama/Llama-3.1-70B",
        "meta-llama/Llama-3.1-70B-Instruct",
        "meta-llama/Meta-Llama-3.1-70B-Instruct",
        "meta-llama/Llama-3.3-70B-Instruct",
    ),
    "llama-3.2-1b": ("meta-llama/Llama-3.2-1B", "meta-llama/Llama-3.2-1B-Instruct"),
    "llama-3.1-405b": ("meta-llama/Llama-3.1-405B", "meta-llama/Llama-3.1-405B-Instruct"),
    "llama-2-7b": ("meta-llama/Llama-2-7b-hf", "meta-llama/Llama-2-7b-chat-hf"),
    "llama-4-scout": ("meta-llama/Llama-4-Scout-17B-16E-Instruct", "meta-llama/Llama-4-Scout-17B-16E"),
    "llama-4-maverick": ("meta-llama/Llama-4-Maverick-17B-128E-Instruct", "meta-llama/Llama-4-Maverick-17B-128E"),
    "mistral-7b-v0.1": ("mistralai/Mistral-7B-v0.1", "mistralai/Mistral-7B-Instruct-v0.1"),
    "mistral-7b-v0.3": ("mistralai/Mistral-7B-v0.3", "mistralai/Mistral-7B-Instruct-v0.3"),
    "mistral-small-24b": ("mistralai/Mistral-Small-24B-Instruct-2501", "mistralai/Mistral-Small-24B-Base-2501"),
    "mixtral-8x7b": ("mistralai/Mixtral-8x7B-v0.1", "mistralai/Mixtral-8x7B-Instruct-v0.1"),
    "qwen2.5-7b": ("Qwen/Qwen2.5-7B", "Qwen/Qwen2.5-7B-Instruct", "Qwen/Qwen2.5-Coder-7B-Instruct"),
    "qwen2.5-7b-awq": ("Qwen/Qwen2.5-7B-Instruct-AWQ",),
    "qwen2.5-14b": ("Qwen/Qwen2.5-14B", "Qwen/Qwen2.5-14B-Instruct"),
    "qwen2.5-32b": ("Qwen/Qwen2.5-32B", "Qwen/Qwen2.5-32B-Instruct", "Qwen/Qwen2.5-Coder-32B-Instruct"),
    "qwen2.5-72b": ("Qwen/Qwen2.5-72B", "Qwen/Qwen2.5-72B-Instruct"),
    "qwen3-0.6b": ("Qwen/Qwen3-0.6B",),
    "qwen3-1.7b": ("Qwen/Qwen3-1.7B",),
    "qwen3-4b": ("Qwen/Qwen3-4B",),
    "qwen3-8b": ("Qwen/Qwen3-8B",),
    "qwen3-14b": ("Qwen/Qwen3-14B",),
    "qwen3-32b": ("Qwen/Qwen3-32B",),
    "qwen3-30b-a3b": ("Qwen/Qwen3-30B-A3B",),
    "qwen3-235b-a22b-fp8": ("Qwen/Qwen3-235B-A22B-FP8",),
    "qwen3-next-80b-a3b": ("Qwen/Qwen3-Next-80B-A3B-Instruct", "Qwen/Qwen3-Next-80B-A3B-Thinking"),
    "gpt-oss-20b": ("openai/gpt-oss-20b",),
    "gpt-oss-120b": ("openai/gpt-oss-120b",),
    "gemma-2-9b": ("google/gemma-2-9b", "google/gemma-2-9b-it"),
    "gemma-3-4b": ("google/gemma-3-4b-it", "google/gemma-3-4b-pt"),
    "gemma-3-27b": ("google/gemma-3-27b-it", "google/gemma-3-27b-pt"),
    "gemma-3n-e4b": ("google/gemma-3n-E4B-it",),
    "deepseek-v3": (
        "deepseek-ai/DeepSeek-V3",
        "deepseek-ai/DeepSeek-V3-0324",
        "deepseek-ai/DeepSeek-V3.1",
        "deepseek-ai/DeepSeek-R1",
        "deepseek-ai/DeepSeek-R1-0528",
    ),
    "phi-4": ("microsoft/phi-4",),
    "jamba-v0.1": ("ai21labs/Jamba-v0.1",),
    "granite-4.0-h-small": ("ibm-granite/granite-4.0-h-small",),
    "nemotron-nano-9b-v2": ("nvidia/NVIDIA-Nemotron-Nano-9B-v2",),
    "minimax-m2": ("MiniMaxAI/MiniMax-M2", "MiniMaxAI/MiniMax-M2.1", "MiniMaxAI/MiniMax-M2.5"),
    "qwen3.5-35b-a3b": ("Qwen/Qwen3.5-35B-A3B", "Qwen/Qwen3.6-35B-A3B"),
    "qwen3.5-9b": ("Qwen/Qwen3.5-9B",),
    "glm-4.5-air": ("zai-org/GLM-4.5-Air",),
    "glm-4.6": ("zai-org/GLM-4.6",),
    "glm-5": ("zai-org/GLM-5", "zai-org/GLM-5.1"),
    "glm-5.2": ("zai-org/GLM-5.2",),
    "glm-5.3": ("zai-org/GLM-5.3",),
    "deepseek-v3.2": (
        "deepseek-ai/DeepSeek-V3.2",
        "deepseek-ai/DeepSeek-V3.2-Exp",
    ),
    "kimi-k2": (
        "moonshotai/Kimi-K2-Instruct",
        "moonshotai/Kimi-K2-Instruct-0905",
    ),
    "kimi-k2-thinking": ("moonshotai/Kimi-K2-Thinking",),
    "gemma-4-31b": (
        "google/gemma-4-31B-it",
        "google/gemma-4-31B",
    ),
    "gemma-4-26b-a4b": ("google/gemma-4-26B-A4B-it", "google/gemma-4-26B-A4B"),
    "qwen3-coder-480b": ("Qwen/Qwen3-Coder-480B-A35B-Instruct",),
    "qwen3-30b-a3b-fp8": ("Qwen/Qwen3-30B-A3B-FP8",),
    "nemotron-3-nano-30b": ("nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16",),
    "seed-oss-36b": ("ByteDance-Seed/Seed-OSS-36B-Instruct",),
    "qwen3.6-27b": ("Qwen/Qwen3.6-27B", "Qwen/Qwen3.8-27B"),
    "qwen3.6-27b-fp8": ("Qwen/Qwen3.6-27B-FP8",),
    "falcon-7b": ("tiiuae/falcon-7b", "tiiuae/falcon-7b-instruct"),
    "opt-13b": ("facebook/opt-13b",),
    "command-r-35b": ("CohereLabs/c4ai-command-r-v01",),
}
"""Names on the Hugging Face hub, by the file's name without its ending."""

_FILES: Final = {name.lower(): file for file, names in KNOWN_MODELS.items() for name in names}
_CACHED: Final = re.compile(r"/models--([\w.-]+?)--([\w.-]+)/snapshots/")
"""The hub's own cache, whose folders are called like the models."""
_ALONE: Final = {name.rpartition("/")[2]: file for name, file in _FILES.items()}


def file_of(served: str) -> str | None:
    """Return the file for a name on the hub, or a URI or a path that ends in it (`hf://...`); None for any other."""
    if (cached := _CACHED.search(served.strip().lower())) is not None:
        return _FILES.get(f"{cached[1]}/{cached[2]}")
    scheme, _, rest = served.strip().rpartition("://")
    name = rest.rstrip("/").partition(":")[0].lower()
    in_path = scheme not in {"", "hf"} or name.startswith(("/", ".")) or name.count("/") > 1
    return _ALONE.get(name.rpartition("/")[2]) if in_path else _FILES.get(name)


def hub_name(given: str) -> str | None:
    """Return the name on the hub that a person means: as it is there, without its owner, or as its file is named."""
    name = given.strip().rstrip("/").lower()
    whole = {one.lower(): one for names in KNOWN_MODELS.values() for one in names}
    return whole.get(name) or {key.rpartition("/")[2]: one for key, one in whole.items()}.get(name) or name_of(name)


def name_of(file: str) -> str | None:
    """Return the first name on the hub of a configuration's file, None where there is none of that name."""
    return next(iter(KNOWN_MODELS.get(file, ())), None)


def nearest_models(served: str) -> list[str]:
    """Return up to three names on the hub like an unknown one, the closest first."""
    whole = {name.lower(): name for names in KNOWN_MODELS.values() for name in names}
    alone = {key.rpartition("/")[2]: name for key, name in whole.items()}
    name = served.lower().rstrip("/")
    close = get_close_matches(name, whole, 3) if "/" in name else get_close_matches(name, alone, 3)
    return [(whole if "/" in name else alone)[one] for one in close]
