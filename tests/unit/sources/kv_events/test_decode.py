"""Batches of KV events of every version, and of hostile publishers."""

import msgspec
import pytest

from kvpressure.sources.kv_events import decode
from kvpressure.sources.kv_events.decode import BadBatchError, Cleared, Removed, Stored
from tests.support.kv_publisher import CLEARED, as_array, payload, removed, stored

pack = msgspec.msgpack.encode
HASH = bytes(range(32))


def read(*events: object) -> list[object]:
    return [*decode.events(decode.batch(payload(*events)))]


@pytest.mark.parametrize("form", [lambda event: event, as_array], ids=["maps", "arrays"])
@pytest.mark.parametrize("name", [HASH, 2**64 - 1, -(2**63)], ids=["bytes", "unsigned", "signed"])
def test_the_three_kinds_are_read_in_both_forms(form, name):
    got = read(form(stored([name, 1], parent=name)), form(removed(name)), form(CLEARED))
    assert got == [
        Stored([name, 1], name, 16, 0, on_gpu=True, full=True),
        Removed([name], 0, on_gpu=True),
        Cleared(),
    ]


def test_older_versions_have_fewer_fields():
    assert read(["BlockStored", [1], None, [5] * 16, 16, None], ["BlockRemoved", [1]]) == [
        Stored([1], None, 16, 0, on_gpu=True, full=True),
        Removed([1], 0, on_gpu=True),
    ]


def test_newer_versions_have_more():
    more = {"extra_keys": [["salt"]], "group_idx": 300, "kv_cache_spec_kind": "sliding_window", "new": {"a": [1, 2]}}
    (one,) = read(stored([1], **more))
    assert one == Stored([1], None, 16, 300, on_gpu=True, full=False)
    listed = [*as_array(stored([1])), [["salt"]], 2, "full_attention", 128, "LOCAL", None, "session", [[1]], "new"]
    assert read(listed) == [Stored([1], None, 16, 2, on_gpu=True, full=True)]
    assert read([*as_array(removed(1)), 2, "LOCAL", None, "new"]) == [Removed([1], 2, on_gpu=True)]


@pytest.mark.parametrize("medium", ["CPU", "STORAGE", "DISK", "REMOTE", "a tier with a name of more than 31 bytes"])
def test_tiers_below_the_pool_are_distinguished(medium):
    assert [one.on_gpu for one in read(stored([1], medium=medium), as_array(removed(1, medium=medium)))] == [False] * 2


@pytest.mark.parametrize("medium", [None, "GPU", "gpu", "DEVICE"])
def test_the_pool_itself_has_several_names(medium):
    assert [one.on_gpu for one in read(stored([1], medium=medium), removed(1, medium=medium))] == [True] * 2


def test_the_rank_is_read_where_it_is_given():
    assert decode.batch(payload(CLEARED, rank=3)).rank == 3
    assert decode.batch(payload(CLEARED, rank=300)).rank == 300
    assert decode.batch(payload(CLEARED)).rank is None
    assert decode.batch(pack([1.0, [], None, "more"])).rank is None
    assert decode.batch(pack({"ts": 1.0, "events": [], "data_parallel_rank": 2})).rank == 2


def test_unknown_kinds_are_passed_over():
    new = {"type": "BlockTransferred", "block_hashes": [1], "to": "CPU"}
    assert read(new, ["BlockTransferred", [1], "GPU"], CLEARED) == [None, None, Cleared()]


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc1",
        b"\x93\xcb",
        b"\xdf\xff\xff\xff\xff",
        b"\xdd\xff\xff\xff\xff",
        b"\x91" * 100_000,
        pack([]),
        pack([1.0, "events"]),
        pack([1.0, {"a": 1}]),
        pack({"ts": 1.0}),
        pack([1.0, [0] * (decode.MAX_EVENTS + 1)]),
    ],
)
def test_what_is_no_batch_is_refused(data):
    with pytest.raises(BadBatchError):
        decode.batch(data)


@pytest.mark.parametrize(
    "event",
    [
        7,
        [],
        {},
        ["BlockRemoved"],
        ["BlockRemoved", 7],
        ["BlockRemoved", ["text"]],
        ["BlockRemoved", [1.5]],
        ["BlockRemoved", [0] * (decode.MAX_HASHES + 1)],
        ["BlockStored", [1], None],
        ["BlockStored", [1], None, [], "16"],
        {"type": "BlockStored", "block_hashes": [1], "block_size": 0},
        {"type": "BlockStored", "block_hashes": [1], "block_size": 2**40},
        {"type": "BlockStored", "block_hashes": [1]},
        {"type": 7},
        ["k" * 1000],
    ],
)
def test_what_is_no_event_is_refused(event):
    with pytest.raises(BadBatchError) as failed:
        read(event)
    assert not str(failed.value)


def test_token_ids_are_never_made_into_numbers():
    # 0xc1 is no msgpack at all: a decoder of the ids fails on it.
    ids = b"\x92\xce\x7f\x00\x00\x01\xce\x7f\x00\x00\x02"
    head = b"\x92\xcb" + bytes(8) + b"\x91"
    listed = b"\x96" + pack("BlockStored") + pack([1]) + pack(None) + ids + pack(2) + pack(None)
    (one,) = decode.events(decode.batch(head + listed))
    assert [getattr(one, name) for name in one.__struct_fields__] == [[1], None, 2, 0, True, True]
