"""What a layer of Mamba, of linear attention or of a short convolution holds of a request, whatever its length.

The last inputs of a short convolution and a matrix per head. Decision 0041 says where the shapes come from, decision
0797 where the number of blocks and their alignment do.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from kvpressure.capacity.layers import GATED_DELTA_NETS
from kvpressure.capacity.model_fields import Fields

_SSM_BYTES: Final = {"float32": 4, "float16": 2, "bfloat16": 2}
_IN_FLOAT32: Final = frozenset({"nemotron_h"})
"""Families whose matrices are kept in 32 bits unless the configuration says otherwise."""

_BLOCKS: Final = 2
"""The running one, and the last that can be shared (prefix caching, which is on by default)."""
_WITH_CHECKPOINT: Final = 3
"""One more where a prompt's last boundary is written in the middle of a step: Mamba 2, and Qwen's delta nets where
FlashInfer has their kernel (decision 0041)."""
_WITHOUT_KERNEL: Final = (
    "A10",
    "A40",
    "GAUDI",
    "L20",
    "L4",
    "MI",
    "RTX-3090",
    "RTX-4090",
    "RTX-6000-ADA",
    "RTX-A",
    "T4",
)
"""What the names of GPUs begin with that FlashInfer's kernel for delta nets does not run on: older than Hopper."""
_LARGEST: Final = 10**6
_DELTA_ALIGNMENT: Final = 64
"""Tokens between which such a net can write its state: blocks are multiples of it."""


@dataclass(frozen=True, slots=True)
class State:
    """Values of one layer's state over all GPUs; `matrix_bytes` is the size of a matrix's value, None as the model's.

    `groups` are shared by heads: a rank holds at least one, of `group_values` each. A request takes `blocks` blocks of
    a multiple of `alignment` tokens.
    """

    conv_values: int
    matrix_values: int
    groups: int = 0
    group_values: int = 0
    matrix_bytes: int | None = None
    blocks: int = _BLOCKS
    alignment: int = 1

    def on(self, gpu: str) -> State:
        """Return the state as a card of this name holds it: without the checkpoint that its kernels do not write."""
        exports = self.alignment == _DELTA_ALIGNMENT and not gpu.startswith(_WITHOUT_KERNEL)
        return self if exports or self.alignment == 1 else replace(self, blocks=self.blocks - 1, alignment=1)

    def bytes(self, tensor_parallel: int, value_bytes: int) -> int:
        """Return the bytes on one GPU; heads are divided among the ranks."""
        groups = self.groups if self.groups % tensor_parallel == 0 else self.groups + tensor_parallel - self.groups
        conv = (self.conv_values + groups * self.group_values) // tensor_parallel
        return conv * value_bytes + self.matrix_values // tensor_parallel * (self.matrix_bytes or value_bytes)


def layer_state(fields: Fields) -> State | None:
    """Return what one layer of fixed state holds; None for an unknown kind of layer."""
    written = fields.text("mamba_ssm_cache_dtype") or fields.text("mamba_ssm_dtype")
    size = _SSM_BYTES.get(written, 4 if fields.text("model_type") in _IN_FLOAT32 else None)
    if (linear := fields.mapping("linear_attn_config")) is not None:
        return _kimi_delta(fields, linear)
    if fields.get("linear_num_value_heads") is not None:
        return _gated_delta(fields, size)
    if (taps := fields.maybe_count("conv_L_cache")) is not None:
        return State((taps - 1) * (fields.maybe_count("conv_dim") or fields.count("hidden_size")), 0)
    return _mamba(fields, size)


def _mamba(fields: Fields, matrix_bytes: int | None) -> State | None:
    mamba2 = fields.get("mamba_n_heads") is not None
    if not mamba2 and fields.get("mamba_d_state") is None:
        return None
    inner = inner_size(fields)
    width = fields.count("mamba_d_state")
    steps = fields.count("mamba_d_conv") - 1
    if not mamba2:
        return State(inner * steps, inner * width)
    groups = fields.maybe_count("mamba_n_groups") or 1
    return State(inner * steps, inner * width, groups, 2 * width * steps, matrix_bytes, blocks=_WITH_CHECKPOINT)


def _gated_delta(fields: Fields, matrix_bytes: int | None) -> State:
    key, value = fields.count("linear_key_head_dim"), fields.count("linear_value_head_dim")
    keys, values = fields.count("linear_num_key_heads"), fields.count("linear_num_value_heads")
    steps = (fields.maybe_count("linear_conv_kernel_dim") or 4) - 1
    exports = fields.text("model_type") in GATED_DELTA_NETS
    return State(
        conv_values=(2 * key * keys + value * values) * steps,
        matrix_values=values * value * key,
        matrix_bytes=matrix_bytes,
        blocks=_WITH_CHECKPOINT if exports else _BLOCKS,
        alignment=_DELTA_ALIGNMENT if exports else 1,
    )


def delta_heads(fields: Fields, linear: Mapping[str, Any]) -> tuple[int, int]:
    """Return heads and their size of Kimi's delta attention; 0 where one is missing, which `check` reports."""
    heads, size = _whole(linear.get("num_heads")), _whole(linear.get("head_dim"))
    if not heads or not size:
        fields.lacks("linear_attn_config.num_heads and .head_dim")
    return heads, size


def _whole(value: object) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 < value <= _LARGEST else 0


def _kimi_delta(fields: Fields, linear: Mapping[str, Any]) -> State | None:
    if linear.get("num_heads") is None:
        return None
    heads, size = delta_heads(fields, linear)
    steps = (_whole(linear.get("short_conv_kernel_size")) or 4) - 1
    return State(3 * heads * size * steps, heads * size * size, matrix_bytes=4)


def inner_size(fields: Fields) -> int:
    """Return the inner width of a Mamba layer."""
    heads, size, times = (fields.maybe_count(name) for name in ("mamba_n_heads", "mamba_d_head", "mamba_expand"))
    if heads is not None and (size is not None or times is None):
        return heads * fields.count("mamba_d_head")
    return (times or 2) * fields.count("hidden_size")
