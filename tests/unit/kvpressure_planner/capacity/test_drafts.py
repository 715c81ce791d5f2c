"""A draft model and a layer of MTP or EAGLE have a KV cache and weights; guesses from the text alone have none."""

import json

import pytest

from kvpressure.capacity.geometry import Geometry, read_geometry
from kvpressure.capacity.layers import FULL
from kvpressure.capacity.memory import Memory, weights_step
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
    plain, drafted = geometry(name), with_drafts(geometry(name), config(method="mtp"), known)
    attend = sum(group.layers for group in plain.groups)
    assert sum(group.layers for group in drafted.groups) == attend + 1
    assert len(drafted.kinds) == len(plain.kinds) + 1 == drafted.layers
    assert drafted.kinds[-1] == FULL
    before, after = plain.cost("auto", 1), drafted.cost("auto", 1)
    assert after.bytes_per_token == pytest.approx(before.bytes_per_token * (attend + 1) / attend, rel=0.1)


def test_the_file_of_deepseek_v3_is_as_large_as_its_weights_with_the_mtp_layer() -> None:
    """Its index: 688,586,727,753 bytes with the layer."""
    drafted = with_drafts(geometry("deepseek-ai/DeepSeek-V3"), config(method="deepseek_mtp"), known).weights
    assert drafted.bytes == pytest.approx(688_586_727_753, rel=0.01)


def test_eagle_adds_a_layer_without_experts_and_guesses_from_the_text_nothing() -> None:
    plain = geometry("Qwen/Qwen3-30B-A3B")
    eagle = with_drafts(plain, config(method="eagle3", model="a/head"), known)
    assert plain.weights is not None is not eagle.weights
    assert eagle.weights.experts == plain.weights.experts  # type: ignore[union-attr]
    assert eagle.layers == plain.layers + 1
    for method in ("ngram", "suffix"):
        assert with_drafts(plain, config(method=method), known) == plain


def known(name: str) -> Geometry | None:
    found = known_model(name)
    return None if found is None else read_geometry(found)


def test_a_draft_model_has_its_own_layers_weights_and_embeddings_beside_the_models() -> None:
    plain, draft = geometry("Qwen/Qwen3-32B"), geometry("Qwen/Qwen3-0.6B")
    drafted = with_drafts(plain, config(model="Qwen/Qwen3-0.6B"), known)
    for ranks in (1, 2, 4):
        together = plain.cost("auto", ranks).bytes_per_token + draft.cost("auto", ranks).bytes_per_token
        assert drafted.cost("auto", ranks).bytes_per_token == together
    memory = Memory((80e9,), 2)
    alone = weights_step(plain, memory).value + weights_step(draft, memory).value
    assert weights_step(drafted, memory).value == pytest.approx(alone)
    assert (drafted.layers, drafted.attention, drafted.vocabulary) == (plain.layers, plain.attention, plain.vocabulary)


def test_the_last_stage_of_a_pipeline_has_the_draft() -> None:
    drafted = with_drafts(geometry("Qwen/Qwen3-32B"), config(model="Qwen/Qwen3-0.6B"), known)
    first, last = (drafted.stage(range(*ends)) for ends in ((0, 32), (32, 64)))
    assert [group.layers for group in first.groups] == [32]
    assert [group.layers for group in last.groups] == [32, 28]


def test_a_draft_of_another_vocabulary_is_refused_as_the_server_does_unless_both_are_mapped() -> None:
    plain = geometry("Qwen/Qwen3-32B")
    with pytest.raises(ValueError, match=r"128,256 and 151,936 words"):
        with_drafts(plain, config(model="meta-llama/Llama-3.2-1B"), known)
    mapped = config(model="meta-llama/Llama-3.2-1B", use_heterogeneous_vocab=True)
    assert len(with_drafts(plain, mapped, known).groups) == 2


@pytest.mark.parametrize("name", ["yuhuili/EAGLE3-LLaMA3.1-Instruct-8B", "yuhuili/EAGLE-LLaMA3-Instruct-8B"])
def test_the_name_of_a_draft_tells_its_method_where_none_is_given(name: str) -> None:
    plain = geometry("meta-llama/Llama-3.1-8B")
    assert with_drafts(plain, config(model=name), known) == with_drafts(plain, config(method="eagle3"), known)


@pytest.mark.parametrize(
    "written",
    [
        config(model="a/draft"),
        config(method="draft_model"),
        config(model="Qwen/Qwen3.5-9B"),
        config(model="z-lab/Qwen3-8B-DFlash-b16"),
        "[]",
        "{",
        "1",
    ],
)
def test_a_draft_whose_size_is_not_known_is_said_to_be(written: str) -> None:
    with pytest.raises(ValueError, match="speculative-config"):
        with_drafts(geometry("Qwen/Qwen3-32B"), written, known)


@pytest.mark.parametrize(("draft", "more"), [({"method": "mtp"}, 2), ({"method": "ngram"}, 2), ({}, 0)])
def test_a_state_is_kept_for_each_token_that_is_guessed(draft: dict[str, object], more: int) -> None:
    plain = geometry("Qwen/Qwen3.5-9B")
    drafted = with_drafts(plain, config(**draft), known) if draft else plain
    assert plain.state is not None is not drafted.state
    assert drafted.state.blocks == plain.state.blocks + more  # type: ignore[union-attr]
