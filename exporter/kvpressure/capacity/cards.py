"""Step times of public models on common GPUs: which table belongs to a GPU's product name and a served model's name.

The tables in `step_tables/` are made by `python -m bench.silicon make` from NVIDIA's measurements. A card that has the
name of another but another memory or other clocks (PCIe and NVL variants, MIG slices) has no table.
"""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from functools import cache
from importlib import resources
from typing import Final

from kvpressure.capacity.gpus import gpu_named
from kvpressure.capacity.known_models import KNOWN_MODELS, file_of, hub_name
from kvpressure.simulation.step_table import StepTable, parse

CARDS: Final = {"A100-80": "a100_sxm", "B200": "b200_sxm", "H100": "h100_sxm", "H200": "h200_sxm", "L40S": "l40s"}
"""NVIDIA's names for parts as `gpus` names them."""
_OTHER_VARIANTS: Final = ("pcie", "nvl")
SAME_STEPS: Final[Mapping[str, tuple[str, ...]]] = {
    "llama-3.1-8b": ("deepseek-ai/DeepSeek-R1-Distill-Llama-8B",),
    "llama-3.1-70b": (
        "deepseek-ai/DeepSeek-R1-Distill-Llama-70B",
        "meta-llama/Meta-Llama-3.1-70B",
        "nvidia/Llama-3.1-Nemotron-70B-Instruct-HF",
    ),
    "qwen3-8b": ("Qwen/Qwen3-8B-Base", "deepseek-ai/DeepSeek-R1-0528-Qwen3-8B"),
    "qwen3-30b-a3b": (
        "Qwen/Qwen3-30B-A3B-Base",
        "Qwen/Qwen3-30B-A3B-Instruct-2507",
        "Qwen/Qwen3-30B-A3B-Thinking-2507",
        "Qwen/Qwen3-Coder-30B-A3B-Instruct",
    ),
    "qwen3-30b-a3b-fp8": (
        "Qwen/Qwen3-30B-A3B-FP8",
        "Qwen/Qwen3-30B-A3B-Instruct-2507-FP8",
        "Qwen/Qwen3-30B-A3B-Thinking-2507-FP8",
        "Qwen/Qwen3-Coder-30B-A3B-Instruct-FP8",
    ),
    "qwen3-32b-fp8": ("Qwen/Qwen3-32B-FP8",),
}
"""Names on the hub of models with the layers and the weights' width of a table's: their steps take as long, while
their configurations (the longest context) may differ."""
_BY_NAME: Final = {name.lower(): model for model, names in SAME_STEPS.items() for name in names}
_FOLDER: Final = resources.files("kvpressure.capacity").joinpath("step_tables")


def card_named(text: str) -> str | None:
    """Return NVIDIA's name of the card that a product name means; None for one that no table can be of.

    >>> [card_named(name) for name in ("NVIDIA H100 80GB HBM3", "NVIDIA H100 PCIe", "l40s", "a100_sxm")]
    ['h100_sxm', None, 'l40s', 'a100_sxm']
    """
    if text.lower() in CARDS.values():
        return text.lower()
    gpu = gpu_named(text)
    if gpu is None or any(variant in text.lower() for variant in _OTHER_VARIANTS):
        return None
    return CARDS.get(gpu.name)


def model_named(served: str) -> str | None:
    """Return the name that tables have for a model on the hub, or for that name itself; None for one without any."""
    name = served.strip().lower()
    known = file_of(served) or _BY_NAME.get(name, name)
    return known if any(name.startswith(f"{known}.") for name in names()) else None


def model_meant(given: str) -> str:
    """Return the name that tables have for a model that a person names, without its owner too; else what was given."""
    alone = {name.rpartition("/")[2]: model for name, model in _BY_NAME.items()}
    return model_named(hub_name(given) or given) or alone.get(given.strip().lower()) or given


def what_there_is(given: str) -> str:
    """Return in words on which cards tables have a model; of one without tables, which models are named like it."""
    known = model_meant(given)
    made = [table(name) for name in names() if name.startswith(f"{known}.")]
    if made:
        return f"of {known} there are tables on " + ", ".join(_where(step_table) for step_table in made)
    models = {name.partition(f".{table(name).card}")[0] for name in names()}
    hub = [name for model in sorted(models) for name in (*KNOWN_MODELS.get(model, ()), *SAME_STEPS.get(model, ()))]
    whole = {name.lower(): name for name in hub} | {name.lower().rpartition("/")[2]: name for name in hub}
    near = dict.fromkeys(
        whole[get_close_match] for get_close_match in get_close_matches(given.strip().lower(), whole, 3)
    )
    return f"did you mean {' or '.join(near)}?" if near else f"there are tables of {', '.join(sorted(models))}"


def _where(made: StepTable) -> str:
    many = f" (--tensor-parallel-size {made.tensor_parallel})" if made.tensor_parallel > 1 else ""
    return f"{made.card}{many}{' with an fp8 KV cache' if made.kv_bits == 8 else ''}"


@cache
def names() -> tuple[str, ...]:
    """Return the names of all tables: model, card, and how it is divided where it is not served as usual."""
    return tuple(sorted(file.name.removesuffix(".json") for file in _FOLDER.iterdir() if file.name.endswith(".json")))


def text_of(name: str) -> str:
    """Return a table as it is written. Raises FileNotFoundError."""
    return _FOLDER.joinpath(f"{name}.json").read_text("utf-8")


@cache
def table(name: str) -> StepTable:
    """Return the table of that name. Raises FileNotFoundError."""
    return parse(text_of(name))


def table_for(gpu: str, model: str, tensor_parallel: int = 1, kv_bits: int = 16) -> StepTable | None:
    """Return the table of a model on so many GPUs of that product name, None where there is none.

    Weights in 8 bits are another model (`-FP8`).
    """
    card, known = card_named(gpu), model_named(model)
    divided = f".tp{tensor_parallel}" if tensor_parallel > 1 else ""
    name = f"{known}.{card}{divided}{'.kv8' if kv_bits == 8 else ''}"
    return table(name) if name in names() else None
