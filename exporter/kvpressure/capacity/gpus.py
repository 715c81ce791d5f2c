"""GPUs by name, with the memory that a process gets to see of them.

A runtime takes its share of what the driver tells a process, which is less than the product's number and less than
nvidia-smi shows (that counts what the driver keeps to itself). The values are "total capacity" in PyTorch's
out-of-memory errors, the smallest that is common for the part: a plan must hold on every one of them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Final


@dataclass(frozen=True, slots=True)
class Gpu:
    """One part; `memory_bytes` is what a process on it sees, `given` the name that it was given by, "" without any."""

    name: str
    memory_bytes: float
    given: str = ""


_GIB: Final = {
    "A10": 22.03,
    "A100-40": 39.38,
    "A100-80": 79.14,
    "A40": 44.34,
    "B200": 178.35,
    "B300": 267.69,
    "GAUDI2": 94.62,
    "GAUDI3": 126.54,
    "GB10": 119.64,
    "GH200": 94.50,
    "H100": 79.10,
    "H20": 95.00,
    "H200": 139.72,
    "L20": 44.34,
    "L4": 22.03,
    "L40S": 44.34,
    "MI300X": 191.69,
    "MI325X": 255.69,
    "MI355X": 287.98,
    "RTX-3090": 23.56,
    "RTX-4090": 23.51,
    "RTX-5090": 31.34,
    "RTX-6000-ADA": 47.40,
    "RTX-A6000": 47.40,
    "RTX-PRO-6000": 94.97,
    "T4": 14.56,
}

GPUS: Final = {name: Gpu(name, gib * 2**30) for name, gib in _GIB.items()}

_SPELLINGS: Final = (
    ("RTX-PRO-6000", r"rtx pro 6000"),
    ("RTX-6000-ADA", r"rtx 6000 ada"),
    *((f"RTX-{number}", rf"rtx ?{number}") for number in (3090, 4090, 5090)),
    ("RTX-A6000", r"(?:rtx )?a6000"),
    ("A10", r"a10g?"),
    *((name, name.lower()) for name in ("A40", "B200", "B300", "GH200", "H20", "L20", "L4", "L40S", "T4")),
    *((name, name.lower()) for name in ("MI300X", "MI325X", "MI355X")),
    ("GB10", r"gb10|dgx spark"),
    *((f"GAUDI{number}", rf"(?:gaudi|hl) ?{number}") for number in (2, 3)),
)
_PARTS: Final = tuple((name, re.compile(rf"\b{pattern}\b")) for name, pattern in _SPELLINGS)
_MACHINES: Final = tuple(
    (name, re.compile(rf"\b(?:{pattern})"))
    for name, pattern in (
        ("A100-40", r"p4d\.|a2 (?:high|mega)gpu|nd96asr v4"),
        ("A100-80", r"p4de\.|a2 ultragpu|nd96amsr a100|nc\d+ads a100"),
        ("H100", r"p5\.|a3 (?:high|mega|edge)gpu"),
        ("H200", r"p5en?\.|a3 ultragpu"),
        ("B200", r"a4 highgpu"),
        ("T4", r"g4dn\."),
        ("A10", r"g5\."),
        ("L4", r"gr?6\.|g2 standard"),
        ("L40S", r"g6e\."),
        ("RTX-PRO-6000", r"g7e\.|g4 standard"),
    )
)
"""Types of machines of AWS, Google Cloud and Azure whose names do not say it, or not its size."""
# These were made in several sizes: the product's number tells which, and another number is another part.
_SIZED: Final = {("h100", ""): "H100", ("h100", "80"): "H100", ("h200", ""): "H200", ("h200", "141"): "H200"} | {
    ("a100", size): f"A100-{size}" for size in ("40", "80")
}
_SIZED_PART: Final = re.compile(r"\b(a100|h100|h200)\b(?:.*?\b(\d+) ?g?(?:i?b)?\b)?")


def gpu_named(text: str) -> Gpu | None:
    """Return the GPU that a product name, a node label, an accelerator or a machine type means, None for others.

    >>> [one.name for one in map(gpu_named, ("NVIDIA-H100-80GB-HBM3", "p5.48xlarge", "NVIDIA-A100-SXM4-40GB")) if one]
    ['H100', 'H100', 'A100-40']
    """
    words = re.sub(r"[^a-z0-9.]+", " ", text.lower())
    if re.search(r"\b(?:mig|nvl|laptop|3e|144gb?)\b", words):
        return None  # a slice, or a variant with another memory (H20-3e, GH200 144G)
    if (machine := next((name for name, pattern in _MACHINES if pattern.search(words)), None)) is not None:
        return GPUS[machine]
    if (sized := _SIZED_PART.search(words)) is not None:
        part, size = sized[1], sized[2] or ""
        if part == "a100" and not size and "tesla" in words:
            size = "40"  # GKE's name for the small one; the large one has its size in it
        return GPUS.get(_SIZED.get((part, size), ""))
    return next((GPUS[name] for name, pattern in _PARTS if pattern.search(words)), None)


def nearest_gpus(text: str) -> list[str]:
    """Return up to three names like an unknown one, the closest first."""
    return get_close_matches(text.upper(), GPUS, 3)
