"""Events of vLLM's own block pool, as its own classes encode them, against what the lab's ledger booked."""

import json
import lzma
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from kvpressure.model.kv_events import KvEvents
from kvpressure.signals.kv_events import kept_by
from kvpressure.sources.kv_events.decode import batch
from kvpressure.sources.kv_events.ghosts import MAX_ENTRIES, GhostList
from tests.support.tools import FIXTURES

pytestmark = pytest.mark.recorded

STEP_TOKENS = 8192
RECORDED = sorted((FIXTURES / "kv_events").glob("*.txt.xz"))


@dataclass
class Recorded:
    """The pool, what was true of each second, and the batches that the pool published."""

    about: dict[str, Any]
    batches: list[tuple[float, bytes]]

    def total(self, name: str) -> int:
        return sum(one[name] for one in self.about["seconds"])

    def kept(self, factor: float) -> float:
        """Share of the blocks missed that a pool of that factor would have kept, by the evictions since."""
        counts: Counter[str] = Counter()
        for one in self.about["seconds"]:
            counts.update(one.get("kept_by", {}))
        blocks = sum(many for name, many in counts.items() if name != "more" and float(name) <= factor)
        return blocks / counts.total()


@pytest.fixture(params=RECORDED, ids=lambda path: path.name.removesuffix(".txt.xz"))
def recorded(request) -> Recorded:
    return read(request.param)


def read(path: Path) -> Recorded:
    about, *lines = lzma.decompress(path.read_bytes()).decode().splitlines()
    parts = (line.split() for line in lines)
    return Recorded(json.loads(about), [(float(t), bytes.fromhex(data)) for t, data in parts])


def report_of(recorded: Recorded, entries: int = MAX_ENTRIES) -> KvEvents:
    ghosts, counts = GhostList(0.0, entries=entries, mixed=lambda one, group: hash((one, group))), Counter[str]()
    for t, payload in recorded.batches:
        ghosts.take(batch(payload), t, counts)
    assert not counts["unknown"]
    return ghosts.report(recorded.batches[-1][0], 0, counts)


def test_there_are_events_of_both_forms():
    assert {path.name.split("-")[2] for path in RECORDED} == {"0.12.0.txt.xz", "0.33.0.txt.xz"}


def test_no_token_is_in_what_was_recorded(recorded):
    for _, payload in recorded.batches:
        for event in json.loads(_as_json(payload))[1]:
            fields = event if isinstance(event, dict) else dict(enumerate(event))
            assert not fields.get("token_ids", fields.get(3) if fields.get(0) == "BlockStored" else None)
            assert not fields.get("extra_keys")


def _as_json(payload: bytes) -> bytes:
    import msgspec  # noqa: PLC0415

    return msgspec.json.encode(msgspec.msgpack.decode(payload))


def test_what_was_computed_again_is_what_the_pool_had_evicted(recorded):
    events = report_of(recorded)
    # The ledger books tokens when their step ends, and the last one has not.
    assert events.missed_tokens == pytest.approx(recorded.total("again"), rel=0.01, abs=STEP_TOKENS)
    step = STEP_TOKENS / recorded.about["block_size"]
    assert events.evicted_blocks == pytest.approx(recorded.total("evicted"), rel=0.01, abs=step + 16)


def test_larger_pools_keep_no_less_than_the_evictions_in_between_say(recorded):
    # The ledger counts every eviction since; of blocks evicted twice meanwhile a larger pool need keep but one.
    events, blocks = report_of(recorded), recorded.about["blocks"]
    for factor in (1.25, 1.5, 2.0, 3.0):
        kept = kept_by(events.missed_by_blocks, (factor - 1.0) * blocks) / events.missed_tokens
        assert kept >= 0.95 * recorded.kept(factor)


def test_a_tenth_of_the_blocks_tells_the_same(recorded):
    exact, few = report_of(recorded), report_of(recorded, entries=2500)
    assert few.sampled_ratio < 0.3
    assert few.missed_tokens == pytest.approx(exact.missed_tokens, rel=0.1)
    blocks = recorded.about["blocks"]
    both = [kept_by(one.missed_by_blocks, 0.5 * blocks) / exact.missed_tokens for one in (exact, few)]
    assert both[0] == pytest.approx(both[1], abs=0.06)
