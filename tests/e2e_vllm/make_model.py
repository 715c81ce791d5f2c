"""Writes the smallest model vLLM serves; runs in vLLM's own environment: `python make_model.py FOLDER`.

Two Llama layers with random weights (vLLM makes them itself, `--load-format dummy`) and a tokenizer of the words
t0 to t999, so that a prompt of n words is exactly n tokens. What JSON consists of are tokens as well.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, PreTrainedTokenizerFast

WORDS = 1000
SPECIAL = ("<unk>", "<s>", "</s>")
JSON = (*'{}[]":,-.', *"0123456789", "true")
UNKNOWN, BEGIN, END = range(WORDS, WORDS + len(SPECIAL))


def main(folder: Path) -> None:
    """Write configuration and tokenizer."""
    LlamaConfig(
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        vocab_size=1024,
        max_position_embeddings=8192,
        bos_token_id=BEGIN,
        eos_token_id=END,
        torch_dtype="float32",
        architectures=["LlamaForCausalLM"],
    ).save_pretrained(folder)
    tokenizer().save_pretrained(folder)


def tokenizer() -> PreTrainedTokenizerFast:
    """One token per word."""
    names = (*(f"t{number}" for number in range(WORDS)), *SPECIAL, *JSON)
    words = Tokenizer(models.WordLevel({name: number for number, name in enumerate(names)}, unk_token=SPECIAL[0]))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    unknown, begin, end = SPECIAL
    return PreTrainedTokenizerFast(tokenizer_object=words, unk_token=unknown, bos_token=begin, eos_token=end)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
