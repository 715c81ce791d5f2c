"""`python -m bench.bench_kv_events`: CPU and memory of following one engine's KV events; bars: 3 % of a core, 32 MiB.

A publisher with pyzmq in a process of its own sends what vLLM's block pool does under steady eviction: 50 batches a
second, of which half of the blocks are removed (an event each) and half stored (a prompt's run each), 16 tokens a
block. The follower is a process that does nothing else, so its CPU seconds over those that passed are all it costs, the
interpreter's own included. The last row sends blocks that were never seen as fast as they are taken.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from kvpressure.net.budget import Budget
from kvpressure.sources.kv_events.feed import Address, Feed
from kvpressure.sources.kv_events.memory import Memory
from tests.support.kv_publisher import Publisher, removed, stored

SECONDS = 10.0
BATCHES_PER_SECOND = 50
RUN_BLOCKS = 19
TOKENS = 16
POOL_BLOCKS = 1000
BAR_RATIO = 0.03
BAR_BYTES = 32 << 20


def publish(events_per_second: int) -> None:
    """Publish on a free port, which is printed, until nobody reads standard input's other end."""
    publisher = Publisher()
    print(publisher.port, flush=True)
    publisher.subscribed()
    numbers = iter(range(10**12))
    pool: list[bytes] = []
    due = time.monotonic()
    each = events_per_second // BATCHES_PER_SECOND if events_per_second else 1000
    while os.getppid() > 1:
        events: list[dict[str, Any]] = []
        blocks = each * RUN_BLOCKS // (RUN_BLOCKS + 1)
        for begin in range(0, blocks, RUN_BLOCKS):
            run = [next(numbers).to_bytes(32, "little") for _ in range(min(RUN_BLOCKS, blocks - begin))]
            pool += run
            tokens = [100_000 + i for i in range(TOKENS * len(run))]
            events.append(stored(run, size=TOKENS, token_ids=tokens, group_idx=0))
        gone, pool = pool[:-POOL_BLOCKS], pool[-POOL_BLOCKS:]
        publisher.send(*events, *(removed(one, group_idx=0) for one in gone), rank=0)
        if events_per_second:
            due += 1 / BATCHES_PER_SECOND
            time.sleep(max(0.0, due - time.monotonic()))


def follow(port: int) -> None:
    """Follow for a while; CPU, memory and what was read are printed as JSON."""
    before = _resident()
    feed = Feed(Address("127.0.0.1", port), Budget().share("kv_events").feed(), Memory())
    feed.start()
    time.sleep(5)
    cpu, wall = time.process_time(), time.monotonic()
    counts = dict(feed.report.counts) if feed.report else {}
    peak = 0
    while time.monotonic() - wall < SECONDS:
        time.sleep(0.5)
        peak = max(peak, _resident() - before)
    seconds = time.monotonic() - wall
    assert feed.report is not None
    read = {name: many - counts.get(name, 0) for name, many in feed.report.counts.items()}
    events = (read.get("stored", 0) + read.get("removed", 0)) / seconds
    told = {"events_per_second": round(events), "cpu_ratio": (time.process_time() - cpu) / seconds, "bytes": peak}
    print(json.dumps({**told, "skipped": read.get("skipped", 0), "sampled": feed.report.sampled_ratio}))


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def measured(events_per_second: int) -> dict[str, float]:
    """What one rate costs; 0: as much as is taken."""
    here = [sys.executable, "-m", "bench.bench_kv_events"]
    with subprocess.Popen([*here, "publish", str(events_per_second)], stdout=subprocess.PIPE, text=True) as publisher:
        assert publisher.stdout is not None
        port = publisher.stdout.readline().strip()
        try:
            done = subprocess.run([*here, "follow", port], capture_output=True, text=True, check=True)
        finally:
            publisher.kill()
    told: dict[str, float] = json.loads(done.stdout)
    return told


def main() -> int:
    """Print a row for each rate; 1 when a bar is missed."""
    missed = False
    for rate in (200, 1000, 2000, 4000, 0):
        told = measured(rate)
        bad = (0 < rate <= 2000 and told["cpu_ratio"] > BAR_RATIO) or told["bytes"] > BAR_BYTES
        missed |= bad
        print(
            f"{told['events_per_second']:>8,} events/s  {told['cpu_ratio']:.2%} of a core  "
            f"{told['bytes'] / 2**20:.1f} MiB  {told['skipped']} batches skipped  "
            f"sampled {told['sampled']:.3g}{'  MISSED' if bad else ''}",
            flush=True,
        )
    return int(missed)


if __name__ == "__main__":
    if sys.argv[1:2] == ["publish"]:
        publish(int(sys.argv[2]))
    elif sys.argv[1:2] == ["follow"]:
        follow(int(sys.argv[2]))
    else:
        sys.exit(main())
