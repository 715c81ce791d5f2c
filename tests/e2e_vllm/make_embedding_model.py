"""Writes the smallest embedding model vLLM serves; runs in vLLM's own environment: `make_embedding_model.py FOLDER`.

Two BERT layers: encoders keep no KV cache, and a request is over with its one step. The tokenizer is make_model's.
"""

from __future__ import annotations

import sys
from pathlib import Path

from make_model import tokenizer
from transformers import BertConfig


def main(folder: Path) -> None:
    """Write configuration and tokenizer."""
    BertConfig(
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        vocab_size=1024,
        max_position_embeddings=512,
        torch_dtype="float32",
        architectures=["BertModel"],
    ).save_pretrained(folder)
    tokenizer().save_pretrained(folder)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
