"""PURE: one batch of KV events out of msgpack. Token ids are never made into numbers.

A batch is an array of time, events and rank. An event is an array that begins with its kind, or a map with `type`:
docs/sources.md says which runtimes and versions write which. Fields that came later stand behind the others. What is a
token, or stands for one (`token_ids`, `lookahead_token_ids`, `extra_keys`), is skipped as bytes; so is a session.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Final

import msgspec
from msgspec import Meta, Raw, Struct, ValidationError
from msgspec.msgpack import Decoder

MAX_EVENTS: Final = 1 << 16
MAX_HASHES: Final = 1 << 16

_Hashes = Annotated[list[int | bytes], Meta(max_length=MAX_HASHES)]
_NOTHING: Final = Raw(b"\xc0")
_ON_GPU: Final = frozenset(("", "GPU", "DEVICE"))
"""Names of the pool itself in the field `medium`, which older versions do not have."""
_FULL: Final = frozenset(("", "full_attention", "mla_attention", "sink_full_attention"))


class BadBatchError(Exception):
    """Bytes that are no batch of events; the message has nothing of them."""


class Stored(Struct, gc=False, frozen=True):
    """Blocks that came into the pool (`on_gpu`) or a tier below it, each of `block_tokens` tokens.

    `parent` is the hash of the block before the first; `full` says that it is of a layer that needs all tokens.
    """

    hashes: list[int | bytes]
    parent: int | bytes | None
    block_tokens: int
    group: int
    on_gpu: bool
    full: bool


class Removed(Struct, gc=False, frozen=True):
    """Blocks that left the pool, or a tier below it."""

    hashes: list[int | bytes]
    group: int
    on_gpu: bool


class Cleared(Struct, gc=False, frozen=True):
    """All blocks are gone."""


Event = Stored | Removed | Cleared


class Batch(Struct, gc=False, frozen=True):
    """Events of one step of the engine, in their order. `rank` is None where the batch does not say."""

    events: list[Raw]
    rank: int | None


class _Batch(Struct, array_like=True, gc=False):
    ts: Raw
    events: Annotated[list[Raw], Meta(max_length=MAX_EVENTS)]
    rank: Raw = _NOTHING


class _BatchMap(Struct, gc=False):
    events: Annotated[list[Raw], Meta(max_length=MAX_EVENTS)]
    data_parallel_rank: Raw = _NOTHING


class _StoredArray(Struct, array_like=True, tag="BlockStored", gc=False):
    block_hashes: _Hashes
    parent_block_hash: int | bytes | None
    token_ids: Raw
    block_size: int
    lora_id: Raw = _NOTHING
    medium: Raw = _NOTHING
    lora_name: Raw = _NOTHING
    extra_keys: Raw = _NOTHING
    group_idx: Raw = _NOTHING
    kv_cache_spec_kind: Raw = _NOTHING


class _RemovedArray(Struct, array_like=True, tag="BlockRemoved", gc=False):
    block_hashes: _Hashes
    medium: Raw = _NOTHING
    group_idx: Raw = _NOTHING


class _ClearedArray(Struct, array_like=True, tag="AllBlocksCleared", gc=False):
    pass


class _StoredMap(Struct, tag="BlockStored", gc=False):
    block_hashes: _Hashes
    block_size: int
    parent_block_hash: int | bytes | None = None
    medium: Raw = _NOTHING
    group_idx: Raw = _NOTHING
    kv_cache_spec_kind: Raw = _NOTHING


class _RemovedMap(Struct, tag="BlockRemoved", gc=False):
    block_hashes: _Hashes
    medium: Raw = _NOTHING
    group_idx: Raw = _NOTHING


class _ClearedMap(Struct, tag="AllBlocksCleared", gc=False):
    pass


class _KindArray(Struct, array_like=True, gc=False):
    kind: Annotated[str, Meta(max_length=128)]


class _KindMap(Struct, gc=False):
    type: Annotated[str, Meta(max_length=128)]


_KNOWN: Final = frozenset(("BlockStored", "BlockRemoved", "AllBlocksCleared"))
_BATCH: Final = Decoder(_Batch)
_BATCH_MAP: Final = Decoder(_BatchMap)
_ARRAY: Final = Decoder(_StoredArray | _RemovedArray | _ClearedArray)
_MAP: Final = Decoder(_StoredMap | _RemovedMap | _ClearedMap)
_KIND_ARRAY: Final = Decoder(_KindArray)
_KIND_MAP: Final = Decoder(_KindMap)
_WRONG: Final = (ValidationError, msgspec.DecodeError, RecursionError, ValueError)


def batch(payload: memoryview | bytes) -> Batch:
    """Read a batch; its events are still bytes, which are those of `payload`. Raises BadBatchError."""
    try:
        if _is_map(payload):
            mapped = _BATCH_MAP.decode(payload)
            return Batch(mapped.events, _number(mapped.data_parallel_rank))
        listed = _BATCH.decode(payload)
        return Batch(listed.events, _number(listed.rank))
    except _WRONG:
        raise BadBatchError from None


def events(read: Batch) -> Iterator[Event | None]:
    """Yield the events of a batch, None for each of a kind that is not known. Raises BadBatchError."""
    for raw in read.events:
        yield _event(raw)


def _event(raw: Raw) -> Event | None:
    as_map = _is_map(memoryview(raw))
    try:
        fields = _MAP.decode(raw) if as_map else _ARRAY.decode(raw)
    except _WRONG:
        if _kind(raw, as_map=as_map) in _KNOWN:
            raise BadBatchError from None
        return None
    if isinstance(fields, _StoredArray | _StoredMap):
        if not 0 < fields.block_size <= 1 << 20:
            raise BadBatchError
        return Stored(
            fields.block_hashes,
            fields.parent_block_hash,
            fields.block_size,
            _number(fields.group_idx) or 0,
            _text(fields.medium).upper() in _ON_GPU,
            _text(fields.kv_cache_spec_kind) in _FULL,
        )
    if isinstance(fields, _RemovedArray | _RemovedMap):
        return Removed(fields.block_hashes, _number(fields.group_idx) or 0, _text(fields.medium).upper() in _ON_GPU)
    return Cleared()


def _kind(raw: Raw, *, as_map: bool) -> str:
    """Return the kind of an event. Raises BadBatchError where it has none."""
    try:
        return _KIND_MAP.decode(raw).type if as_map else _KIND_ARRAY.decode(raw).kind
    except _WRONG:
        raise BadBatchError from None


def _is_map(payload: memoryview | bytes) -> bool:
    first = payload[0] if len(payload) else 0xC0
    return 0x80 <= first <= 0x8F or first in (0xDE, 0xDF)


def _text(raw: Raw) -> str:
    """Return a short text, "" for nothing, "?" for whatever else it is."""
    view = memoryview(raw)
    if 0xA0 <= view[0] <= 0xBF:
        return bytes(view[1:]).decode("ascii", "replace")
    return "" if view[0] == 0xC0 else "?"


def _number(raw: Raw) -> int | None:
    """Return a number of a group or rank, None for whatever else it is."""
    view = memoryview(raw)
    if view[0] <= 0x7F:
        return int(view[0])
    wide = {0xCC: 1, 0xCD: 2}.get(view[0])
    return None if wide is None else int.from_bytes(view[1 : 1 + wide], "big")
