"""What a publisher of KV events sends: bytes on the wire, down to the ghost list, whose numbers stay in range."""

from collections import Counter
from random import Random

import msgspec

from kvpressure.sources.kv_events.decode import BadBatchError, batch
from kvpressure.sources.kv_events.ghosts import GhostList
from kvpressure.sources.kv_events.memory import Memory
from kvpressure.sources.kv_events.zmtp import Inbox, ProtocolError, message, ready
from tests.fuzz.target import Target, expect

MAX_BYTES = 2048
ENTRIES = 32
_HASHES = (0, 1, 2, 3, 2**63, 2**64 - 1, -(2**63), b"", b"\x00" * 32, b"\xff" * 32)
_OTHER = (None, "", "GPU", "CPU", "x" * 40, -1, 2**63, 1.5, True, [], [[]], {}, {"a": 1}, b"\xc1")
_KINDS = ("BlockStored", "BlockRemoved", "AllBlocksCleared", "BlockTransferred")


def _mixed(one: int | bytes, group: int) -> int:
    """The same in every process, and of few different remainders."""
    return (int.from_bytes(one[-1:], "big") if isinstance(one, bytes) else one) * 7919 + group


def check(data: bytes) -> tuple[object, ...]:
    """Whatever comes is read, refused or skipped; counts are no less than before, and the list keeps its bound."""
    inbox, ghosts, counts = (
        Inbox(MAX_BYTES, lambda _: None, Memory()),
        GhostList(0.0, entries=ENTRIES, mixed=_mixed),
        Counter[str](),
    )
    bad = 0
    try:
        for begin in range(0, len(data), 512):
            part = data[begin : begin + 512]
            space = inbox.space()
            expect(len(space) >= len(part), "no room for more", len(space))
            space[: len(part)] = part
            for frames in filter(None, inbox.received(len(part))):
                try:
                    ghosts.take(batch(frames[-1]), 1.0, counts)
                except BadBatchError:
                    bad += 1
    except ProtocolError:
        return ("refused", bad > 0)
    told = ghosts.report(2.0, 0, counts)
    expect(0 < told.sampled_ratio <= 1.0, "a share that is none", told.sampled_ratio)
    expect(told.missed_tokens >= 0.0 and told.misses >= 0, "misses below nothing", told.missed_tokens)
    expect(abs(sum(told.missed_by_blocks) - told.missed_tokens) <= 1e-6 * told.missed_tokens, "a sum that is another")
    expect(0 <= told.reach <= told.evicted_blocks, "more is known than was evicted", told.reach)
    kept = len(ghosts._ghosts) + len(ghosts._here) + len(ghosts._below)
    expect(kept <= ENTRIES, "more is kept than may be", kept)
    expect(sorted(ghosts._ghosts.values()) == ghosts._order, "an order that is another")
    return ("read", tuple(sorted(counts)), bad > 0, inbox.oversized > 0, told.misses > 0, told.sampled_ratio < 1.0)


def make(random: Random) -> bytes:
    """A few messages as a publisher sends them, or with something else in a place."""
    messages = [ready("PUB")] if random.getrandbits(1) else []
    for number in range(random.randrange(1, 5)):
        payload = msgspec.msgpack.encode([1.0, [_event(random) for _ in range(random.randrange(4))], *_rank(random)])
        frames = (b"", number.to_bytes(8, "big"), payload[:255])
        messages.append(message(*frames) if len(payload) < 256 else _long(payload))
    return b"".join(messages)


def _long(payload: bytes) -> bytes:
    return message(b"", bytes(8))[:-10] + b"\x01\x08" + bytes(8) + b"\x02" + len(payload).to_bytes(8, "big") + payload


def _rank(random: Random) -> tuple[object, ...]:
    return (random.choice((0, 3, 300, None, *_OTHER)),) if random.getrandbits(1) else ()


def _event(random: Random) -> object:
    hashes: object = [random.choice(_HASHES) for _ in range(random.randrange(5))]
    if not random.randrange(8):
        hashes = random.choice(_OTHER)
    kind, parent = random.choice(_KINDS), random.choice((None, *_HASHES))
    medium = random.choice(("GPU", "GPU", None, "CPU", *_OTHER))
    size = random.choice((16, 16, 16, 1, *_OTHER))
    if random.getrandbits(1):
        event = {"type": kind, "block_hashes": hashes, "medium": medium, "group_idx": random.choice((0, 1, *_OTHER))}
        return event | (
            {"parent_block_hash": parent, "token_ids": [1], "block_size": size} if kind == _KINDS[0] else {}
        )
    return [kind, hashes, parent, [1], size, None, medium] if kind == _KINDS[0] else [kind, hashes, medium]


TARGET = Target(
    about="messages of a publisher of KV events",
    make=make,
    check=check,
    words=(
        b"BlockStored",
        b"BlockRemoved",
        b"AllBlocksCleared",
        b"\x01\x00",
        b"\x02" + b"\xff" * 8,
        b"\x04\x05\x04PING",
        b"\xdd\xff\xff\xff\xff",
        b"\xc1",
        b"\x91" * 64,
    ),
)
