"""Step times of public models on common GPUs: which table belongs to a GPU's product name and a served model's name.

The tables in `step_tables/` are made by `python -m bench.silicon make` from NVIDIA's measurements. A card that has the
name of another but another memory or other clocks (PCIe and NVL variants, MIG slices) has no table.
"""

from __future__ import annotations

from functools import cache
from importlib import resources
from typing import Final

from kvpressure.capacity.gpus import gpu_named
from kvpressure.capacity.known_models import file_of
from kvpressure.simulation.step_table import StepTable, parse

CARDS: Final = {"A100-80": "a100_sxm", "B200": "b200_sxm", "H100": "h100_sxm", "H200": "h200_sxm", "L40S": "l40s"}
"""NVIDIA's names for parts as `gpus` names them."""
_OTHER_VARIANTS: Final = ("pcie", "nvl")
_IN_8_BITS: Final = {f"qwen/{name}": name for name in ("qwen3-32b-fp8", "qwen3-30b-a3b-fp8")}
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
    told = served.strip().lower()
    known = file_of(served) or _IN_8_BITS.get(told, told)
    return known if any(name.startswith(f"{known}.") for name in names()) else None


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
