"""A layer of multi-token prediction, or EAGLE's, has a KV cache and weights; guesses from the text alone have none."""

from __future__ import annotations

import json

import pytest

from kvpressure.capacity.geometry import Geometry, read_geometry
from kvpressure.capacity.layers import FULL
from kvpressure_planner.capacity.drafts import with_drafts
from kvpressure_planner.cli.model_file import known_model


def geometry(name: str) -> Geometry:
    config = known_model(name)
    assert config is not None
    return read_geometry(config)


def config(**given: object) -> str:
    return json.dumps({"num_speculative_tokens": 2, **given})


@pytest.mark.parametrize("name", ["deepseek-ai/DeepSeek-V3", "zai-org/GLM-4.6", "Qwen/Qwen3-Next-80B-A3B-Instruct"])
def test_an_mtp_layer_is_one_more_layer_that_attends(name: str) -> None:
    plain, drafted = geometry(name), with_drafts(geometry(name), config(method="mtp"))
    attend = sum(group.layers for group in plain.groups)
    assert sum(group.layers for group in drafted.groups) == attend + 1
    assert len(drafted.kinds) == len(plain.kinds) + 1 == drafted.layers
    assert drafted.kinds[-1] == FULL
    before, after = plain.cost("auto", 1), drafted.cost("auto", 1)
    assert after.bytes_per_token == pytest.approx(before.bytes_per_token * (attend + 1) / attend, rel=0.1)


def test_the_file_of_deepseek_v3_is_as_large_as_its_weights_with_the_mtp_layer() -> None:
    """Its index: 688,586,727,753 bytes with the layer."""
    drafted = with_drafts(geometry("deepseek-ai/DeepSeek-V3"), config(method="deepseek_mtp")).weights
    assert drafted is not None
    assert drafted.bytes == pytest.approx(688_586_727_753, rel=0.01)


def test_eagle_adds_a_layer_without_experts_and_guesses_from_the_text_nothing() -> None:
    plain = geometry("Qwen/Qwen3-30B-A3B")
    eagle = with_drafts(plain, config(method="eagle3", model="a/head"))
    assert plain.weights is not None is not eagle.weights
    assert eagle.weights.experts == plain.weights.experts  # type: ignore[union-attr]
    assert eagle.layers == plain.layers + 1
    for method in ("ngram", "suffix"):
        assert with_drafts(plain, config(method=method)) == plain


@pytest.mark.parametrize("written", [config(model="Qwen/Qwen3-0.6B"), config(method="draft_model"), "[]", "{", "1"])
def test_a_draft_model_of_its_own_is_said_not_to_be_known(written: str) -> None:
    with pytest.raises(ValueError, match="speculative-config"):
        with_drafts(geometry("Qwen/Qwen3-32B"), written)
