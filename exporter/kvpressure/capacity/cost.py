"""What a token and a request cost in KV cache on each GPU: layers that cache alike, in blocks as they are allocated."""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass
from typing import Final

_SCALE_BYTES: Final = 4
_SCALED_TOGETHER: Final = 128


@dataclass(frozen=True, slots=True)
class LayerGroup:
    """Layers that cache alike: one KV head's key has `key_size` values for one token, its value `value_size`.

    `window` is how many tokens of a request they hold at most, None for all of them. A latent (MLA) counts as one
    head that no rank can split, of which `rope_size` values are its rotary part; `index_size` is the width of the keys
    that a sparse indexer caches beside it, 0 for none and where `sparse` layers use another layer's.
    """

    kind: str
    layers: int
    kv_heads: int
    key_size: int
    value_size: int
    window: int | None = None
    latent: bool = False
    rope_size: int = 0
    index_size: int = 0
    sparse: bool = False

    @property
    def values_per_head(self) -> int:
        """Values of key and value per head; a latent is both at once."""
        return self.key_size if self.latent else self.key_size + self.value_size

    def values_per_gpu(self, tensor_parallel: int) -> int:
        """Return values per token and layer on one GPU: KV heads are divided, and replicated when there are too few."""
        return max(1, self.kv_heads // tensor_parallel) * self.values_per_head

    def bytes_beside(self, value_bytes: float) -> int:
        """Return what a sparse indexer adds per token: keys of 8 bits with a 32-bit scale for every 128 of them.

        With a cache of 8 bits the latent of such a layer gets scales as well, and its rotary part stays in 16 bits.
        """
        if not self.sparse:
            return 0
        packed = _scale_bytes(self.key_size - self.rope_size) + self.rope_size if value_bytes == 1 else 0
        return self.index_size + _scale_bytes(self.index_size) + packed


@dataclass(frozen=True, slots=True)
class KvCost:
    """Bytes of KV cache on each GPU of an engine, for one way of running a model.

    `block_tokens` are those of a block as made, `requested_block_tokens` those requested. A layer of state takes
    `state_blocks` blocks of `state_block_bytes` for each request.
    """

    groups: tuple[LayerGroup, ...]
    value_bytes: float
    tensor_parallel: int
    block_tokens: int
    requested_block_tokens: int
    state_layers: int = 0
    state_block_bytes: int = 0
    state_blocks: int = 0

    @property
    def bytes_per_token(self) -> int:
        """Bytes per token of all layers with KV cache, while no window is full."""
        return sum(group.layers * self.layer_bytes(group) for group in self.groups)

    @property
    def windowed_bytes_per_token(self) -> int:
        """Bytes per token of the layers with a window, as allocated."""
        return sum(
            self.allocated_layers(group) * self.layer_bytes(group) for group in self.groups if group.window is not None
        )

    @property
    def uniform(self) -> bool:
        """Whether every token of a request costs the same."""
        return not self.state_layers and all(group.window is None for group in self.groups)

    @property
    def request_state_bytes(self) -> int:
        """Bytes that a request holds whatever its length, in blocks as they are allocated."""
        return self.state_blocks * self.allocated_state_layers * self.state_block_bytes

    @property
    def allocated_state_layers(self) -> int:
        """The number of layers with a state, padded as the others are."""
        return math.ceil(self.state_layers / self._group_size) * self._group_size if self.state_layers else 0

    @property
    def state_blocks_bytes(self) -> int:
        """Bytes of one block of state in as many layers as share a block's number; 0 without such layers."""
        return self._group_size * self.state_block_bytes if self.state_layers else 0

    @property
    def block_bytes(self) -> int:
        """Bytes of one block in all layers with attention."""
        return sum(self.allocated_layers(group) * self.layer_bytes(group) for group in self.groups) * self.block_tokens

    def request_bytes(self, tokens: int, step_tokens: int = 0) -> int:
        """Return the bytes that a running request of `tokens` (prompt and output) holds, in whole blocks.

        During its prefill windows also hold a step's tokens. Servers count these for every request when they say how
        many fit, as all may be in prefill.
        """
        attended = sum(
            self.allocated_layers(group) * self.layer_bytes(group) * self._held_tokens(group, tokens, step_tokens)
            for group in self.groups
        )
        return attended + self.request_state_bytes

    def allocated_layers(self, group: LayerGroup) -> int:
        """Return the number of the group's layers as allocated.

        Models of several kinds are cut into groups of as many layers as the rarest kind has (the commonest, if they
        are close), and the last group of a kind is padded (decision 0041), which assumes that a layer's bytes
        are the same in all of them; where they are not, nothing is padded here.
        """
        size = self._group_size
        return math.ceil(group.layers / size) * size

    @property
    def _group_size(self) -> int:
        if len({self.layer_bytes(group) for group in self.groups}) > 1:
            return 1
        counts = [group.layers for group in self.groups] + ([self.state_layers] if self.state_layers else [])
        return max(counts) if max(counts) < 1.5 * min(counts) else min(counts)

    def longest_request(self, pool_bytes: float, most: int, step_tokens: int = 0) -> int:
        """Return the most tokens, up to `most`, with which one request fits into `pool_bytes`; 0 for none."""
        return bisect_right(range(1, most + 1), pool_bytes, key=lambda tokens: self.request_bytes(tokens, step_tokens))

    def layer_bytes(self, group: LayerGroup) -> int:
        """Return the bytes of one token in one layer on one GPU."""
        values = math.ceil(group.values_per_gpu(self.tensor_parallel) * self.value_bytes)
        return values + group.bytes_beside(self.value_bytes)

    def _held_tokens(self, group: LayerGroup, tokens: int, step_tokens: int) -> int:
        """Return the tokens kept in whole blocks; a full window takes one more, as it seldom starts with a block."""
        window = group.window
        # One token of a step is the window's newest.
        kept = tokens if window is None else min(tokens, window + max(0, step_tokens - 1))
        blocks = math.ceil(kept / self.block_tokens) + int(kept < tokens)
        return min(blocks, math.ceil(tokens / self.block_tokens)) * self.block_tokens


def _scale_bytes(values: int) -> int:
    return values // _SCALED_TOGETHER * _SCALE_BYTES
