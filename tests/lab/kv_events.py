"""`python -m tests.lab.kv_events REGIME...`: vLLM's own KV events as the exporter reads them, beside the truth.

The pool is switched to publish, and each step's events are encoded by the wheel's own `KVEventBatch`: the bytes that a
subscriber gets. They go through the exporter's reader; the ledger says what was true. A row for each run: tokens
computed again by the ledger and by the events, hits by the ledger, and hits in larger pools by the events and, where a
run with such a pool is asked for, by that run.

    python -m tests.lab.kv_events workingset-busy-040 workingset-joins --run 1.5 2
    python -m tests.lab.kv_events workingset-busy-040~1 --verdicts [--alone]   # seconds of eviction, those told, those
                                                         # told that are none, and farther than 15 s from any
    python -m tests.lab.kv_events --fixture 0   # write one of tests/fixtures/kv_events: hashes are numbers, no tokens
"""

import argparse
import importlib
import importlib.util
import json
import lzma
import sys
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import msgspec

from tests.lab import working_set
from tests.lab.fetch import NEWEST, VERSIONS, fetch, package
from tests.lab.ledger import LARGER, NEVER
from tests.lab.record import cache_numbers
from tests.lab.regime import Regime
from tests.lab.worker import play, prepare

FOLDER: Final = Path(__file__).parents[1] / "fixtures" / "kv_events"
FIXTURES: Final = (("workingset-busy-060", NEWEST, 150), ("workingset-busy-040", "0.12.0", 60))


@dataclass(slots=True)
class Seen:
    """One run: its events as bytes with their times, what was true of each second, and the pool's blocks."""

    batches: list[tuple[float, bytes]]
    pages: list[Any]
    seconds: list[dict[str, Any]]
    blocks: int
    block_size: int
    numbers: dict[str, Any]


def run(regime: Regime, version: str, clock: Any, since: int | None = None) -> Seen:
    """Play the regime and keep what its pool publishes; numbers are from the second `since` on."""
    batches: list[tuple[float, bytes]] = []
    real = _real_classes(version)
    engine = importlib.import_module("tests.lab.engine").Engine
    schedule = engine.schedule

    def scheduling(self: Any) -> Any:
        pool = self.scheduler.kv_cache_manager.block_pool
        pool.enable_kv_cache_events, pool.medium = True, real.MEDIUM_GPU
        step = schedule(self)
        if events := pool.take_events():
            batches.append((clock.now, msgspec.msgpack.encode(real.KVEventBatch(ts=clock.now, events=events))))
        return step

    engine.schedule = scheduling
    try:
        played = play(regime, version, clock)
    finally:
        engine.schedule = schedule
    flags = regime.flags
    seconds = [one.cached.record() for one in played.book.seconds[: regime.seconds]]
    numbers = cache_numbers(played, since)
    return Seen(batches, played.result.pages, seconds, flags.num_gpu_blocks, flags.block_size, numbers)


def _real_classes(version: str) -> Any:
    """The wheel's own classes of events, put where its block pool looks for them."""
    spec = importlib.util.spec_from_file_location("lab_kv_events", package(version) / "distributed" / "kv_events.py")
    module = sys.modules["lab_kv_events"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    pool = importlib.import_module("vllm.v1.core.block_pool")
    for name in ("AllBlocksCleared", "BlockRemoved", "BlockStored", "MEDIUM_GPU"):
        setattr(pool, name, getattr(module, name))
    return module


def ghosts_of(batches: Iterable[tuple[float, bytes]]) -> Any:
    """The exporter's list after it has read all of these."""
    from kvpressure.sources.kv_events.decode import batch  # noqa: PLC0415 - the clock stands still from here on
    from kvpressure.sources.kv_events.ghosts import GhostList  # noqa: PLC0415

    ghosts: Any = None
    counts: Counter[str] = Counter()
    for t, payload in batches:
        ghosts = ghosts or GhostList(t)
        ghosts.take(batch(payload), t, counts)
    return ghosts.report(batches[-1][0], 0, counts)  # type: ignore[index]


def main() -> int:
    """Run and print, or write the fixtures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="REGIME")
    parser.add_argument("--version", choices=VERSIONS, default=NEWEST)
    parser.add_argument("--seconds", type=int)
    parser.add_argument("--run", type=float, nargs="*", default=(), help="pools to run too, in multiples of its own")
    parser.add_argument("--fixture", metavar="NUMBER", type=int, help="write that one of the fixtures")
    parser.add_argument("--verdicts", action="store_true", help="judge the pages, with events")
    parser.add_argument("--alone", action="store_true", help="judge them without")
    options = parser.parse_args()
    clock = prepare(fetch(options.version if options.fixture is None else FIXTURES[options.fixture][1]))
    if options.fixture is not None:
        return _write(*FIXTURES[options.fixture], clock)
    for name in options.names:
        regime = working_set.find(name)
        assert regime is not None, name
        regime = replace(regime, seconds=options.seconds or regime.seconds, expect="")
        if options.verdicts:
            _judge(regime, options.version, clock, alone=options.alone)
        else:
            _compare(regime, options.version, clock, options.run)
    return 0


def _compare(regime: Regime, version: str, clock: Any, pools: Sequence[float]) -> None:
    seen = run(regime, version, clock)
    truth = total(seen.seconds)
    told = ghosts_of(seen.batches)
    print(f"{regime.name} {version}: {seen.blocks} blocks of {seen.block_size}, {len(seen.batches)} batches")
    print(f"  computed again: ledger {truth['again']}, events {told.missed_tokens:.0f}")
    print(f"  evicted: ledger {truth['evicted']}, events {told.evicted_blocks}")
    kept = Counter({float(name): count for name, count in truth["kept_by"].items() if name != NEVER})
    so_far = 0
    for factor in LARGER:
        so_far += kept[factor]
        mine = within(told.missed_by_blocks, (factor - 1) * seen.blocks)
        print(f"  kept by {factor}: ledger {so_far * seen.block_size}, events {mine:.0f}")
    hits = truth["found"] / truth["asked"]
    more = {factor: within(told.missed_by_blocks, (factor - 1) * seen.blocks) for factor in LARGER}
    line = [f"{factor}: {(truth['found'] + tokens) / truth['asked']:.2f}" for factor, tokens in more.items()]
    print(f"  hits {hits:.2f}; by events {', '.join(line)}; reach {told.reach / seen.blocks:.1f}")
    for factor in pools:
        tokens = (seen.blocks - 1) * seen.block_size * factor
        other = total(run(replace(regime, flags=working_set.with_pool(regime.flags, tokens)), version, clock).seconds)
        print(f"  a run with {factor}: {other['found'] / other['asked']:.2f}", flush=True)


def _judge(regime: Regime, version: str, clock: Any, *, alone: bool) -> None:
    seen = run(regime, version, clock)
    told = told_seconds(seen, alone=alone)
    true = eviction_seconds(seen, regime.cost.prefill_token_seconds)
    near = {other for second in true for other in range(second - EDGE_SECONDS, second + EDGE_SECONDS + 1)}
    print(f"| {regime.name} | {len(true)} | {len(true & told)} | {len(told - true)} | {len(told - near)} |", flush=True)


EDGE_SECONDS: Final = 15
AROUND_SECONDS: Final = 10
LEAST_RATIO: Final = 0.2


def eviction_seconds(seen: Seen, prefill_token_seconds: float) -> set[int]:
    """Seconds around which a fifth of what was computed had been evicted, and took a fifth of the time."""
    true = set()
    for second in range(len(seen.seconds)):
        near = seen.seconds[max(0, second - AROUND_SECONDS) : second + AROUND_SECONDS + 1]
        computed, again = (sum(one[name] for one in near) for name in ("computed", "again"))
        takes = again * prefill_token_seconds / len(near)
        if computed and again >= LEAST_RATIO * computed and takes >= LEAST_RATIO:
            true.add(second)
    return true


def told_seconds(seen: Seen, *, alone: bool = False) -> set[int]:
    """Seconds of which the exporter says eviction, with the events up to then: as the cause or beside another.

    By the page `alone` no events are read.
    """
    pages = [(page.t, page.text.encode()) for page in seen.pages]
    told = set()
    for page, view in zip(seen.pages, views(pages, () if alone else seen.batches), strict=True):
        judged = view.diagnosis
        symptom = judged.symptoms.get("evicting")
        if judged.detail == "eviction" or (
            symptom is not None and symptom.state and judged.cause.value == "kv_cache_pressure"
        ):
            told.add(page.second)
    return told


def views(
    pages: Iterable[tuple[float, bytes]], batches: Iterable[tuple[float, bytes]], *, always_observed: bool = False
) -> Iterator[Any]:
    """Yield the exporter's view at each page of one engine, with the events up to then, if there are any."""
    from kvpressure.cli.replay import ReplayTarget  # noqa: PLC0415 - the clock stands still from here on
    from kvpressure.config.thresholds import load_thresholds  # noqa: PLC0415
    from kvpressure.engine_state import Pipeline, PipelineSettings  # noqa: PLC0415
    from kvpressure.engines.reader import PageReader  # noqa: PLC0415
    from kvpressure.model.environment import Environment  # noqa: PLC0415
    from kvpressure.sources.kv_events.decode import batch  # noqa: PLC0415
    from kvpressure.sources.kv_events.ghosts import GhostList  # noqa: PLC0415

    pipeline = Pipeline(PipelineSettings(always_observed=always_observed), load_thresholds())
    reader, ghosts, counts, left = PageReader(), None, Counter[str](), deque(batches)
    reads_events = bool(left)
    for now, page in pages:
        ghosts = ghosts or GhostList(now)
        while left and left[0][0] <= now:
            t, payload = left.popleft()
            ghosts.take(batch(payload), t, counts)
        if reads_events:
            pipeline.set_environment(now, Environment(kv_events={"lab": (ghosts.report(now, 0, counts),)}))
        yield from pipeline.on_page(ReplayTarget("lab"), reader.read(page, now))


def total(seconds: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """What was true in all of these seconds."""
    counts: Counter[str] = Counter()
    kept: Counter[str] = Counter()
    for one in seconds:
        counts.update({name: value for name, value in one.items() if isinstance(value, int)})
        kept.update(one.get("kept_by", {}))
    return {**counts, "kept_by": dict(kept)}


def within(missed: Sequence[float], blocks: float) -> float:
    """Tokens that so many more blocks would have kept."""
    from kvpressure.signals.kv_events import kept_by  # noqa: PLC0415

    return kept_by(missed, blocks)


def _write(name: str, version: str, seconds: int, clock: Any) -> int:
    regime = working_set.find(name)
    assert regime is not None
    path = FOLDER / f"{name.removeprefix('workingset-')}-{version}"
    save(run(replace(regime, seconds=seconds, expect=""), version, clock), path, version)
    return 0


def save(seen: Seen, path: Path, version: str) -> None:
    """Write a run beside each other: `.jsonl.xz` has its pages, `.txt.xz` its events, redacted."""
    numbers: dict[Any, int] = {}
    about = {"blocks": seen.blocks, "block_size": seen.block_size, "seconds": seen.seconds, "version": version}
    lines = [json.dumps(about, separators=(",", ":"))]
    for t, payload in seen.batches:
        lines.append(f"{t:.3f} {redacted(payload, numbers).hex()}")
    pages = [json.dumps({"t": page.t, "page": page.text}, separators=(",", ":")) for page in seen.pages]
    path.parent.mkdir(parents=True, exist_ok=True)
    for ending, rows in ((".txt.xz", lines), (".jsonl.xz", pages)):
        written = path.with_name(path.name + ending)
        written.write_bytes(lzma.compress("\n".join(rows).encode(), preset=9 | lzma.PRESET_EXTREME))
        print(f"{written.name}: {len(rows)} lines, {written.stat().st_size} bytes", file=sys.stderr)


def saved(path: Path) -> tuple[dict[str, Any], list[tuple[float, bytes]], list[tuple[float, bytes]]]:
    """What `save` wrote there: what it is about, batches of events, and pages, both with their times."""
    events, pages = (
        lzma.decompress(path.with_name(path.name + ending).read_bytes()).decode().splitlines()
        for ending in (".txt.xz", ".jsonl.xz")
    )
    batches = [(float(t), bytes.fromhex(data)) for t, data in map(str.split, events[1:])]
    return json.loads(events[0]), batches, [(row["t"], row["page"].encode()) for row in map(json.loads, pages)]


def redacted(payload: bytes, numbers: dict[Any, int]) -> bytes:
    """The batch with hashes replaced by the order of their first occurrence, and without tokens."""
    batch = msgspec.msgpack.decode(payload)
    batch[1] = [_redacted(event, numbers) for event in batch[1]]
    return msgspec.msgpack.encode(batch)


def _redacted(event: Any, numbers: dict[Any, int]) -> Any:
    def number(one: Any) -> Any:
        return None if one is None else numbers.setdefault(one, len(numbers))

    if isinstance(event, dict):
        event = {name: value for name, value in event.items() if name not in {"extra_keys", "session_id"}}
        for name in ("block_hashes",) if "block_hashes" in event else ():
            event[name] = [number(one) for one in event[name]]
        if "token_ids" in event:
            event |= {"token_ids": [], "parent_block_hash": number(event["parent_block_hash"])}
        return event
    kind, *fields = event
    if fields:
        fields[0] = [number(one) for one in fields[0]]
    if kind == "BlockStored":
        fields[1:3] = [number(fields[1]), []]
    return [kind, *fields]


if __name__ == "__main__":
    sys.exit(main())
