"""The state that Mamba and linear-attention layers hold of a request: as large for one token as for a million.

Decision 0300 says where the shapes come from: the last inputs of a short convolution and a matrix per head.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from kvpressure.capacity.model_fields import Fields

_SSM_BYTES: Final = {"float32": 4, "float16": 2, "bfloat16": 2}
_IN_FLOAT32: Final = frozenset({"nemotron_h"})
"""Families whose matrices are kept in 32 bits unless the configuration says otherwise."""


@dataclass(frozen=True, slots=True)
class State:
    """Values of one layer's state over all GPUs; `matrix_bytes` is the size of a matrix's value, None as the model's.

    `groups` are shared by heads: a rank holds at least one, of `group_values` each.
    """

    conv_values: int
    matrix_values: int
    groups: int = 0
    group_values: int = 0
    matrix_bytes: int | None = None

    def bytes(self, tensor_parallel: int, value_bytes: int) -> int:
        """Return the bytes on one GPU; heads are divided among the ranks."""
        groups = self.groups if self.groups % tensor_parallel == 0 else self.groups + tensor_parallel - self.groups
        conv = (self.conv_values + groups * self.group_values) // tensor_parallel
        return conv * value_bytes + self.matrix_values // tensor_parallel * (self.matrix_bytes or value_bytes)


def layer_state(fields: Fields) -> State | None:
    """Return what one layer of fixed state holds; None for an unknown kind of layer."""
    written = fields.text("mamba_ssm_cache_dtype") or fields.text("mamba_ssm_dtype")
    default = 4 if fields.text("model_type") in _IN_FLOAT32 else None
    size = _SSM_BYTES.get(written, default)
    if fields.get("linear_num_value_heads") is not None:
        return _delta_net(fields, size)
    if fields.get("mamba_n_heads") is not None:
        return _mamba2(fields, size)
    if fields.get("mamba_d_state") is not None:
        inner = inner_size(fields)
        return State(inner * (fields.count("mamba_d_conv") - 1), inner * fields.count("mamba_d_state"))
    return None


def inner_size(fields: Fields) -> int:
    """Return the inner width of a Mamba layer."""
    heads = fields.maybe_count("mamba_n_heads")
    if heads is not None:
        return heads * fields.count("mamba_d_head")
    return (fields.maybe_count("mamba_expand") or 2) * fields.count("hidden_size")


def _delta_net(fields: Fields, size: int | None) -> State:
    key, value = fields.count("linear_key_head_dim"), fields.count("linear_value_head_dim")
    keys, values = fields.count("linear_num_key_heads"), fields.count("linear_num_value_heads")
    steps = (fields.maybe_count("linear_conv_kernel_dim") or 4) - 1
    return State((2 * key * keys + value * values) * steps, values * value * key, matrix_bytes=size)


def _mamba2(fields: Fields, size: int | None) -> State:
    inner, width = inner_size(fields), fields.count("mamba_d_state")
    steps = fields.count("mamba_d_conv") - 1
    groups = fields.maybe_count("mamba_n_groups") or 1
    return State(inner * steps, inner * width, groups, 2 * width * steps, size)
