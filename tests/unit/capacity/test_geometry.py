import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvpressure.capacity.geometry import KvCost, ModelConfigError, read_geometry
from kvpressure.capacity.layers import SHARED
from kvpressure.capacity.memory import activation_bytes
from tests.support.models import MODELS, config, geometry

pytestmark = pytest.mark.recorded

KIB, GIB = 1024, 1024**3

PUBLISHED_BYTES_PER_TOKEN = {
    "llama-2-7b": 512 * KIB,
    "opt-13b": 800 * KIB,
    "command-r-35b": 1280 * KIB,
    "llama-3-8b": 128 * KIB,
    "llama-3-70b": 320 * KIB,
    "mixtral-8x7b": 128 * KIB,
    "mistral-7b-v0.1": 128 * KIB,
    "qwen2.5-7b": 56 * KIB,
    "qwen2.5-72b": 327_680,
    "llama-3.1-405b": 516_096,
    "deepseek-v3": 70_272,
    "falcon-7b": 8 * KIB,
    "qwen3-1.7b": 112 * KIB,
    "gemma-2-9b": 336 * KIB,
    "gemma-3-27b": 496 * KIB,
    "gemma-3n-e4b": 40 * KIB,
    "gpt-oss-20b": 48 * KIB,
    "qwen3-next-80b-a3b": 24 * KIB,
    "qwen3-235b-a22b-fp8": 188 * KIB,
    "minimax-m2": 248 * KIB,
    "llama-3.1-8b": 128 * KIB,
    "llama-3.1-70b": 320 * KIB,
    "qwen2.5-14b": 192 * KIB,
    "qwen2.5-32b": 256 * KIB,
    "qwen3-4b": 144 * KIB,
    "qwen3-14b": 160 * KIB,
    "mistral-7b-v0.3": 128 * KIB,
    "phi-4": 200 * KIB,
    "gemma-3-4b": 136 * KIB,
    "gpt-oss-120b": 72 * KIB,
    "qwen3-8b": 144 * KIB,
    "qwen3-32b": 256 * KIB,
    "qwen3-30b-a3b": 96 * KIB,
    "llama-4-scout": 192 * KIB,
    "llama-4-maverick": 192 * KIB,
    "mistral-small-24b": 160 * KIB,
    "jamba-v0.1": 16 * KIB,
    "granite-4.0-h-small": 16 * KIB,
    "nemotron-nano-9b-v2": 16 * KIB,
}

PUBLISHED_PARAMETERS = {"opt-13b": 12.85e9, "command-r-35b": 34.98e9}
"""Of the models without a row in the tables of sizes on disk."""


def cost(name: str, tensor_parallel: int = 1, kv_cache_dtype: str = "auto") -> KvCost:
    return geometry(name).cost(kv_cache_dtype, tensor_parallel)


@pytest.mark.parametrize(("name", "published"), PUBLISHED_BYTES_PER_TOKEN.items())
def test_the_cache_per_token_is_the_published_one(name: str, published: int) -> None:
    assert cost(name).bytes_per_token == published


def test_gpt2_names_its_fields_differently_and_has_no_dtype_of_its_own() -> None:
    read = read_geometry(config("gpt2-xl"), dtype="float16")
    assert read.cost("auto", 1).bytes_per_token == 300 * KIB
    assert read.intermediate_size == 6400
    assert read.weights.parameters == pytest.approx(1.558e9, rel=0.01)


@pytest.mark.parametrize(("name", "published"), PUBLISHED_PARAMETERS.items())
def test_the_estimated_parameters_are_within_two_percent_of_the_published_ones(name: str, published: float) -> None:
    assert geometry(name).weights.parameters == pytest.approx(published, rel=0.02)


@pytest.mark.parametrize(
    ("name", "logged_gib", "tolerance"),
    [("llama-3-8b", 14.9888, 0.005), ("qwen2.5-7b-awq", 5.2032, 0.01), ("gpt-oss-20b", 13.72, 0.1)],
)
def test_the_estimated_weights_are_what_vllm_loaded(name: str, logged_gib: float, tolerance: float) -> None:
    assert geometry(name).weights.bytes / GIB == pytest.approx(logged_gib, rel=tolerance)


@pytest.mark.parametrize(("batched_tokens", "logged_gib"), [(20_000, 17.06 - 14.99), (29_000, 17.98 - 14.99)])
def test_activations_are_what_vllm_measured_for_llama_3_8b(batched_tokens: int, logged_gib: float) -> None:
    assert activation_bytes(geometry("llama-3-8b"), batched_tokens, 1) / GIB == pytest.approx(logged_gib, rel=0.01)


def test_only_the_mlps_width_of_the_activations_is_divided_among_gpus() -> None:
    assert activation_bytes(geometry("llama-3-8b"), 1000, 4) == 6 * 1000 * (14336 / 4 + 4096)


def test_fp8_halves_the_cache() -> None:
    assert cost("llama-3-8b", kv_cache_dtype="fp8").bytes_per_token == 64 * KIB


def test_tensor_parallelism_divides_kv_heads_until_each_gpu_has_one() -> None:
    assert [cost("llama-3-70b", ranks).bytes_per_token // KIB for ranks in (1, 2, 4, 8, 16)] == [320, 160, 80, 40, 40]


def test_a_latent_cache_is_held_in_full_by_every_gpu() -> None:
    assert cost("deepseek-v3", 8).bytes_per_token == 70_272
    assert "MLA, 576 values" in geometry("deepseek-v3").attention


def test_windowed_layers_hold_their_window_and_the_block_it_begins_in() -> None:
    mistral = cost("mistral-7b-v0.1")
    assert mistral.request_bytes(4096) == 4096 * 128 * KIB
    assert mistral.request_bytes(4097) == mistral.request_bytes(32_000) == (4096 + 16) * 128 * KIB


def test_alternating_windows_save_what_was_published_for_gpt_oss() -> None:
    read = cost("gpt-oss-20b")
    assert 32 * 8192 * read.bytes_per_token / GIB == 12.0
    assert 32 * read.request_bytes(8192) / GIB == pytest.approx(6.09, rel=0.003)


def test_gemma_3_pads_its_windowed_layers_to_whole_groups_as_vllm_does() -> None:
    read = cost("gemma-3-27b")
    assert {group.kind: (group.layers, read.allocated_layers(group)) for group in read.groups} == {
        "full attention": (10, 10),
        "sliding window": (52, 60),
    }
    layer = 16 * 256 * 2
    assert read.request_bytes(8192) == layer * (10 * 8192 + 60 * (1024 + 16))


def test_kinds_of_nearly_as_many_layers_are_padded_to_the_larger() -> None:
    kinds = ["full_attention"] * 13 + ["sliding_attention"] * 12
    read = geometry("gpt-oss-20b", num_hidden_layers=25, layer_types=kinds).cost("auto", 1)
    assert sorted(read.allocated_layers(group) for group in read.groups) == [13, 13]


def test_layers_that_share_another_layers_cache_are_not_counted() -> None:
    read = geometry("gemma-3n-e4b")
    assert (sum(group.layers for group in read.groups), read.kinds.count(SHARED)) == (20, 15)


def test_layers_with_a_fixed_state_have_no_cache_per_token() -> None:
    read = geometry("qwen3-next-80b-a3b")
    assert (read.groups[0].layers, read.state_layers) == (12, 36)


def test_hybrids_take_large_blocks_and_three_of_them_in_each_layer_of_state() -> None:
    # vLLM 0.33 on Hopper: multiples of 64 tokens, and a block for the state at a prompt's last boundary. Before, and on
    # other cards, it has 544 tokens and two blocks.
    read = cost("qwen3-next-80b-a3b")
    assert read.block_tokens == 576
    block = 576 * 2 * 2 * 256 * 2
    assert read.request_bytes(4096) == 12 * math.ceil(4096 / 576) * block + 3 * 36 * block


def test_a_field_that_is_left_out_means_the_default_of_its_class() -> None:
    # The published text_config names five fields; heads, their size and the vocabulary are Gemma3TextConfig's.
    read = geometry("gemma-3-4b")
    assert (read.attention_heads, read.groups[0].kv_heads, read.groups[0].key_size) == (8, 4, 256)
    assert (read.max_model_len, [(one.layers, one.window) for one in read.groups]) == (131_072, [(5, None), (29, 1024)])


@pytest.mark.parametrize(("written", "windowed"), [(..., 32), (None, 0)])
def test_a_null_is_no_field_that_is_left_out(written: object, windowed: int) -> None:
    groups = geometry("mistral-7b-v0.1", sliding_window=written).groups
    assert sum(group.layers for group in groups if group.window) == windowed


def test_what_a_nested_model_leaves_out_is_the_familys_own() -> None:
    whole = config("gemma-3-4b")
    del whole["text_config"]["model_type"]
    assert read_geometry(whole).groups == geometry("gemma-3-4b").groups
    assert geometry("gpt-oss-120b", layer_types=...).groups == geometry("gpt-oss-120b").groups


@pytest.mark.parametrize(
    ("changed", "full", "windowed"),
    [
        ({"use_sliding_window": False}, 32, 0),
        ({"sliding_window": None}, 32, 0),
        ({"sliding_window": 32768}, 32, 0),
        ({"use_sliding_window": True, "max_window_layers": 20}, 20, 12),
        ({"sliding_window_pattern": 4}, 8, 24),
        ({"sliding_window_pattern": "LLLG"}, 8, 24),
        ({"layer_types": ["sliding_attention"] * 30 + ["full_attention"] * 2}, 2, 30),
        ({"layer_types": ["sliding_attention"] * 32, "use_sliding_window": False}, 32, 0),
        ({"sliding_window": None, "attention_chunk_size": 8192, "model_type": "llama4_text"}, 8, 24),
        ({"sliding_window": None, "attn_layer_period": 8, "attn_layer_offset": 4}, 4, 0),
        ({"sliding_window": None, "hybrid_override_pattern": "M-M*" * 8}, 8, 0),
        ({"sliding_window": None, "layers_block_type": ["mamba", "attention"] * 16}, 16, 0),
        ({"sliding_window": None, "linear_attn_config": {"full_attn_layers": [4, 8, 12]}}, 3, 0),
    ],
)
def test_every_way_of_saying_which_layers_have_a_window_is_read(
    changed: dict[str, object], full: int, windowed: int
) -> None:
    groups = geometry("mistral-7b-v0.1", **changed).groups
    assert sum(group.layers for group in groups if group.window is None) == full
    assert sum(group.layers for group in groups if group.window is not None) == windowed


def test_full_layers_with_heads_of_their_own_are_sized_on_their_own() -> None:
    kinds = (["sliding_attention"] * 5 + ["full_attention"]) * 5
    extra = {"num_hidden_layers": 30, "layer_types": kinds, "global_head_dim": 512, "num_global_key_value_heads": 2}
    read = geometry("mistral-7b-v0.1", **extra).cost("auto", 1)
    assert read.bytes_per_token == 5 * 2 * 2 * 512 * 2 + 25 * 8 * 2 * 128 * 2
    assert read.request_bytes(160) == 160 * read.bytes_per_token


@pytest.mark.parametrize(
    ("quantization", "bits"),
    [
        ({"quant_method": "fp8"}, 8.0),
        ({"quant_method": "gptq", "bits": 8, "group_size": -1}, 8.0),
        ({"quant_method": "gptq", "bits": 4, "group_size": 128}, 4.15625),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, 4.5),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, 4.5),
        ({"quant_method": "compressed-tensors", "config_groups": {"group_0": {"weights": {"num_bits": 8}}}}, 8.0),
    ],
)
def test_quantized_weights_are_recognised(quantization: dict[str, object], bits: float) -> None:
    weights = geometry("llama-3-8b", quantization_config=quantization).weights
    embeddings = 2 * 128256 * 4096
    assert weights.bytes == embeddings * 2 + (weights.parameters - embeddings) * bits / 8


def test_all_fields_that_are_missing_are_named_with_the_file() -> None:
    with pytest.raises(ModelConfigError) as caught:
        read_geometry({"model_type": "unheard_of", "vision_config": {"hidden_size": 8}}, "some/config.json")
    assert caught.value.missing == (
        "num_hidden_layers",
        "num_attention_heads",
        "hidden_size",
        "intermediate_size",
        "torch_dtype",
        "vocab_size",
    )
    assert str(caught.value).startswith("some/config.json: missing num_hidden_layers, num_attention_heads, ")


def test_what_a_class_has_no_default_for_worth_assuming_is_asked_for() -> None:
    with pytest.raises(ModelConfigError) as caught:
        read_geometry({"model_type": "llama"}, "some/config.json")
    assert caught.value.missing == ("num_hidden_layers", "hidden_size", "torch_dtype")


@pytest.mark.parametrize(
    ("model", "field"),
    [
        *(("llama-3-8b", field) for field in ("num_hidden_layers", "num_attention_heads", "hidden_size", "vocab_size")),
        ("deepseek-v3", "qk_rope_head_dim"),
        ("gpt-oss-20b", "sliding_window"),
    ],
)
def test_each_missing_field_is_named_alone(model: str, field: str) -> None:
    with pytest.raises(ModelConfigError) as caught:
        geometry(model, **{"model_type": "unheard_of", field: ...})
    assert caught.value.missing == (field,)


def test_fields_only_needed_for_the_estimate_may_be_missing_without_it() -> None:
    read = read_geometry(config("llama-3-8b", vocab_size=...), with_weights=False)
    assert read.weights is None


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"num_hidden_layers": "32"}, "num_hidden_layers must be a whole number"),
        ({"num_hidden_layers": 10**9}, "from 1 to 10,000"),
        ({"num_key_value_heads": [8] * 32}, "num_key_value_heads must be a whole number"),
        ({"num_key_value_heads": True}, "got True"),
        ({"hidden_size": -4096}, "got -4096"),
        ({"torch_dtype": "int3"}, "dtype must be one of"),
        ({"layer_types": ["dreaming"] * 32}, "kinds we cannot size: dreaming"),
        ({"layer_types": ["full_attention"] * 3}, "lists 3 layers, num_hidden_layers says 32"),
        ({"layer_types": ["mamba"] * 32}, "no layer with attention"),
        ({"quantization_config": {"quant_method": "magic"}}, "cannot size (magic)"),
        ({"quantization_config": {}}, "no quant_method"),
    ],
)
def test_what_is_wrong_with_a_field_is_said(changed: dict[str, object], said: str) -> None:
    with pytest.raises(ModelConfigError) as caught:
        geometry("llama-3-8b", **changed)
    assert said in str(caught.value)


def test_every_model_has_a_line_in_the_readme_of_the_fixtures() -> None:
    listed = (MODELS / "README.md").read_text()
    assert [path.stem for path in MODELS.glob("*.json") if path.stem.removesuffix("-awq") not in listed] == []


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 70_000) | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
_FIELDS = sorted({key for path in MODELS.glob("*.json") for key in json.loads(path.read_text())})


@given(name=st.sampled_from([*PUBLISHED_BYTES_PER_TOKEN]), changed=st.dictionaries(st.sampled_from(_FIELDS), _JSON))
@settings(deadline=None, max_examples=150)
def test_no_configuration_breaks_the_reader(name: str, changed: dict[str, object]) -> None:
    try:
        found = geometry(name, **changed).cost("auto", 2).request_bytes(100)
    except ModelConfigError as error:
        found = len(error.missing) + len(error.wrong)
    assert found > 0
