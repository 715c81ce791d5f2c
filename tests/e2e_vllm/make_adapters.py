"""Writes LoRA adapters for the model of make_model; runs in vLLM's own environment: `make_adapters.py FOLDER NAME...`.

Rank 8 on the queries and values of both layers; all zeros, so that an adapter changes nothing but who may run.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file

RANK = 8
HIDDEN, LAYERS = 128, 2
OUTPUTS = {"q_proj": 128, "v_proj": 64}


def main(folder: Path, *names: str) -> None:
    """Write one folder per adapter."""
    weights = {}
    for layer in range(LAYERS):
        for module, size in OUTPUTS.items():
            at = f"base_model.model.model.layers.{layer}.self_attn.{module}"
            weights[f"{at}.lora_A.weight"] = torch.zeros(RANK, HIDDEN)
            weights[f"{at}.lora_B.weight"] = torch.zeros(size, RANK)
    config = {"peft_type": "LORA", "r": RANK, "lora_alpha": RANK, "target_modules": list(OUTPUTS), "bias": "none"}
    for name in names:
        (folder / name).mkdir(parents=True)
        (folder / name / "adapter_config.json").write_text(json.dumps(config))
        save_file(weights, folder / name / "adapter_model.safetensors")


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
