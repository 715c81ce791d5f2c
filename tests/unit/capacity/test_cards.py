"""Which table of step times belongs to a card and a model."""

import pytest

from kvpressure.capacity.cards import (
    CARDS,
    card_named,
    model_meant,
    model_named,
    names,
    table,
    table_for,
    what_there_is,
)
from kvpressure.capacity.silicon import Made, SiliconError, computed


@pytest.mark.parametrize(
    ("product", "card"),
    [
        ("NVIDIA H100 80GB HBM3", "h100_sxm"),
        ("NVIDIA H100 PCIe", None),
        ("NVIDIA H100 NVL", None),
        ("NVIDIA A100-SXM4-80GB", "a100_sxm"),
        ("NVIDIA A100-SXM4-40GB", None),
        ("NVIDIA H200", "h200_sxm"),
        ("NVIDIA L40S", "l40s"),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", None),
        ("Tesla T4", None),
    ],
)
def test_a_product_name_says_which_card_it_is_and_other_variants_are_none(product, card):
    assert card_named(product) == card


@pytest.mark.parametrize(
    ("served", "model"),
    [
        ("meta-llama/Llama-3.1-8B-Instruct", "llama-3.1-8b"),
        ("llama-3.1-8b", "llama-3.1-8b"),
        ("Qwen/Qwen3-32B-FP8", "qwen3-32b-fp8"),
        ("acme/Qwen3-32B-FP8", None),
        ("openai/gpt-oss-20b", None),
    ],
)
def test_a_served_name_says_which_model_it_is_where_there_is_a_table(served, model):
    assert model_named(served) == model


@pytest.mark.parametrize(
    ("given", "model"),
    [
        ("Llama-3.1-8B-Instruct", "llama-3.1-8b"),
        ("qwen3-32b-fp8", "qwen3-32b-fp8"),
        ("Qwen/Qwen3-30B-A3B-Instruct-2507", "qwen3-30b-a3b"),
        ("Qwen3-30B-A3B-Instruct-2507", "qwen3-30b-a3b"),
        ("deepseek-ai/DeepSeek-R1-Distill-Llama-70B", "llama-3.1-70b"),
        ("acme/Llama-3.1-8B-Instruct", "acme/Llama-3.1-8B-Instruct"),
    ],
)
def test_a_person_may_leave_the_owner_out_but_another_owner_is_another_model(given, model):
    assert model_meant(given) == model


def test_what_there_is_names_the_cards_of_a_model_or_models_named_like_it():
    assert what_there_is("Qwen/Qwen3-32B") == (
        "of qwen3-32b there are tables on a100_sxm (--tensor-parallel-size 2), b200_sxm, "
        "h100_sxm (--tensor-parallel-size 2), h200_sxm"
    )
    assert what_there_is("meta-llama/Lama-3.1-8B").startswith("did you mean meta-llama/Llama-3.1-8B or ")
    assert what_there_is("facebook/opt-13b").startswith("there are tables of llama-3.1-70b, llama-3.1-8b, ")


def test_a_table_is_of_a_card_a_model_its_ranks_and_the_cache_in_8_bits():
    assert table_for("NVIDIA L40S", "meta-llama/Llama-3.1-8B", kv_bits=8) is table("llama-3.1-8b.l40s.kv8")
    assert table_for("h100_sxm", "Qwen/Qwen3-32B", 2) is table("qwen3-32b.h100_sxm.tp2")
    assert table_for("h100_sxm", "Qwen/Qwen3-32B", 4) is None
    assert table_for("Tesla T4", "Qwen/Qwen3-32B", 2) is None


def test_a_tables_name_says_what_is_in_it():
    for name in names():
        made = table(name)
        divided = f".tp{made.tensor_parallel}" if made.tensor_parallel > 1 else ""
        assert made.card in CARDS.values()
        assert name.endswith(f".{made.card}{divided}{'.kv8' if made.kv_bits == 8 else ''}")


def test_what_is_not_shipped_says_which_extra_it_needs():
    with pytest.raises(SiliconError, match=r"needs the extra silicon: pip install 'kvpressure\[silicon\]'"):
        computed(Made("phi-4", "microsoft/phi-4", "h100_sxm", 40))
