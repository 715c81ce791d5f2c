"""`python -m bench.fleet [ENGINES ...]`: what fleets of 1,000 and 10,000 engines cost a Prometheus.

Each size is scraped with either profile: 25 minutes and 10 GB in all, on a machine with nothing else to do. Ends with 1
when a rule group takes more than a quarter of its interval. Writes results.json, where sizes that were not asked for
stay, and the table of docs/internals/accuracy/scaling.md.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from bench.fleet.server import measure
from bench.written import write_part
from kvpressure.exposition.profile import Profile

RESULTS: Final = Path(__file__).parent / "results.json"
SIZES: Final = (1_000, 10_000)
BAR_RATIO: Final = 0.25
HEADINGS: Final = (
    "profile",
    "engines",
    "series an engine",
    "KiB a scrape, an engine (gzip)",
    "series kept, with rules'",
    "Prometheus' memory, GiB",
    "its CPU, cores",
    "slowest group, share of its interval",
)


def main(sizes: Sequence[int]) -> int:
    """Measure, print, write."""
    runs = [measure(engines, profile) for engines in sizes for profile in Profile]
    for run in runs:
        print(f"{run.profile}: {run.engines} engines, {run.head_series} series, {run.cpu_cores:.3f} cores")
        for group in run.slowest:
            missed = "MISSED" if group.share > BAR_RATIO else ""
            print(f"  {group.name:<45} {group.seconds:8.3f} s of {group.interval_seconds:>4} s  {missed}")
    before = json.loads(RESULTS.read_text()) if RESULTS.exists() else []
    rows = {(row["engines"], row["profile"]): row for row in (*before, *map(dataclasses.asdict, runs))}
    results = [rows[key] for key in sorted(rows)]
    RESULTS.write_text(json.dumps(results, indent=1) + "\n")
    write_part("scaling.md", "bench.fleet", _table(results))
    return int(any(group.share > BAR_RATIO for run in runs for group in run.slowest))


def _table(results: Iterable[Mapping[str, Any]]) -> str:
    """As Markdown, a row for each run."""
    rows = [HEADINGS, ("---", *["--:"] * (len(HEADINGS) - 1)), *map(_cells, results)]
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def _cells(run: Mapping[str, Any]) -> tuple[str, ...]:
    engines, slowest = run["engines"], run["slowest"][0]
    page, gzipped = (run[key] / engines / 1024 for key in ("page_bytes", "gzip_bytes"))
    return (
        run["profile"],
        f"{engines:,}",
        f"{run['exported_series'] / engines:.1f}",
        f"{page:.1f} ({gzipped:.2f})",
        f"{run['head_series']:,}",
        f"{run['memory_bytes'] / 2**30:.2f}",
        f"{run['cpu_cores']:.2f}",
        f"{slowest['name']}, {slowest['seconds'] / slowest['interval_seconds']:.1%}",
    )


if __name__ == "__main__":
    sys.exit(main([int(word) for word in sys.argv[1:]] or SIZES))
