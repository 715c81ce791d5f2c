"""`python -m bench.fleet [ENGINES ...]`: what fleets of 100, 1,000 and 10,000 engines cost a Prometheus.

Each size is scraped with either profile: 20 minutes and 10 GB in all, on a machine with nothing else to do. Ends with 1
when a rule group takes more than a tenth of its interval. Writes results.json, where sizes that were not asked for
stay, and the table of docs/internals/accuracy/scaling.md.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from bench.fleet.docs import write
from bench.fleet.server import Run, measure
from bench.fleet.storage import stored
from kvpressure.exposition.profile import Profile

RESULTS: Final = Path(__file__).parent / "results.json"
SIZES: Final = (100, 1_000, 10_000)
SMALL: Final = 1_000
BAR_RATIO: Final = 0.1


def main(sizes: Sequence[int]) -> int:
    """Measure, print, write."""
    disk = {profile.value: stored(profile).bytes_per_sample for profile in Profile}
    runs = asyncio.run(_measured([(engines, profile) for engines in sizes for profile in Profile]))
    for run in runs:
        print(f"{run.profile}: {run.engines} engines, {run.head_series} series, {run.rule_cores:.3f} cores for rules")
        for group in run.groups[-3:]:
            missed = "MISSED" if group.share > BAR_RATIO else ""
            print(f"  {group.name:<45} {group.seconds:8.3f} s of {group.interval_seconds:>4} s  {missed}")
    before = json.loads(RESULTS.read_text())["runs"] if RESULTS.exists() else []
    rows = {(row["engines"], row["profile"]): row for row in (*before, *map(dataclasses.asdict, runs))}
    results = {"bytes_per_sample": disk, "runs": [rows[key] for key in sorted(rows)]}
    RESULTS.write_text(json.dumps(results, indent=1) + "\n")
    write(results)
    return int(any(group.share > BAR_RATIO for run in runs for group in run.groups))


async def _measured(wanted: Sequence[tuple[int, Profile]]) -> list[Run]:
    """In their order; small fleets at the same time, for they mostly wait."""
    together = await asyncio.gather(*(measure(*one) for one in wanted if one[0] <= SMALL))
    small = iter(together)
    return [next(small) if one[0] <= SMALL else await measure(*one) for one in wanted]


if __name__ == "__main__":
    sys.exit(main([int(word) for word in sys.argv[1:]] or SIZES))
