import pytest

from kvpressure.capacity.geometry import ModelConfigError
from tests.support.models import geometry

MIXED = [0, 1] * 16


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"model_type": "modernbert"}, "is of an encoder: it keeps no KV cache"),
        ({"type_vocab_size": 2}, "is of an encoder: it keeps no KV cache"),
        ({"architectures": ["SomeForMaskedLM"]}, "is of an encoder: it keeps no KV cache"),
        ({"is_encoder_decoder": True}, "is of an encoder-decoder model"),
        ({"model_type": "mamba2", "state_size": 128}, "no field known here says which layers attend"),
        ({"block_configs": [{"attention": {"no_op": layer > 3}} for layer in range(32)]}, "block_configs differs"),
        ({"compress_ratios": [*MIXED, 0]}, "compress_ratios differs between layers"),
        ({"index_head_dim": 128}, "has a sparse indexer"),
    ],
)
def test_what_is_not_known_is_refused_and_not_counted_as_full_attention(changed: dict[str, object], said: str) -> None:
    with pytest.raises(ModelConfigError) as caught:
        geometry("llama-3-8b", **changed)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    "changed",
    [
        {"no_rope_layers": MIXED},
        {"moe_layers": list(range(32))},
        {"mlp_only_layers": [0, 3]},
        {"attention_sink_kinds": [1] * 32},
        {"block_configs": MIXED, "layer_types": ["full_attention"] * 32},
        {"eos_token_id": [1, 2, 3]},
        {"is_encoder_decoder": False},
    ],
)
def test_lists_that_say_nothing_of_caches_change_nothing(changed: dict[str, object]) -> None:
    assert geometry("llama-3-8b", **changed).groups == geometry("llama-3-8b").groups


def test_what_newer_files_write_for_single_layers_is_read() -> None:
    kinds = ["full_attention", "sliding_attention"] * 16
    own = {f"{layer:02}": {"head_dim": 512, "num_key_value_heads": 2} for layer in range(0, 32, 2)}
    extra = {"layer_types": kinds, "sliding_window": 512, "per_layer_config": own}
    full, sliding = geometry("llama-3-8b", **extra).groups
    assert (full.kv_heads, full.key_size, full.value_size) == (2, 512, 512)
    assert (sliding.kv_heads, sliding.key_size, sliding.value_size) == (8, 128, 128)
    with pytest.raises(ModelConfigError, match="per_layer_config differs between layers with full attention"):
        geometry("llama-3-8b", **extra | {"per_layer_config": {"00": {"head_dim": 512}}})


def test_a_list_of_kinds_gives_the_number_of_layers_where_that_is_left_out() -> None:
    kinds = ["linear_attention", "moe", "full_attention", "mlp"]
    read = geometry("nemotron-nano-9b-v2", num_hidden_layers=..., hybrid_override_pattern=..., layers_block_type=kinds)
    assert (read.layers, read.state_layers, read.groups[0].layers) == (4, 1, 1)


@pytest.mark.parametrize("field", ["num_mem_blocks", "num_layers_per_stack"])
def test_weights_that_layers_share_are_not_estimated(field: str) -> None:
    with pytest.raises(ModelConfigError, match=f"several layers share .{field}.*give the weights"):
        geometry("llama-3-8b", **{field: 2})


def test_an_activation_that_needs_no_gate_means_two_matrices() -> None:
    gated, plain = (geometry("llama-3-8b", hidden_act=act).weights for act in ("silu", "relu2"))
    assert gated.parameters - plain.parameters == 32 * 4096 * 14336
