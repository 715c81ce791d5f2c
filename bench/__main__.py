"""`python -m bench`: runs every bench, prints the table, writes results.json; ends with 1 when a bar is missed."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from bench import bench_page, bench_poll, bench_run

RESULTS = Path(__file__).parent / "results.json"


def main() -> int:
    """Run, print, write."""
    rows = [*bench_page.rows(), *bench_poll.rows(), *bench_run.rows()]
    width = max(len(row["name"]) for row in rows)
    for row in rows:
        verdict = {True: "met", False: "MISSED", None: ""}[row["pass"]]
        print(f"{row['name']:<{width}}  {row['value']:>10.5g} {row['unit']:<12} {row['bar'] or '':<8} {verdict}")
    RESULTS.write_text(json.dumps(rows, indent=1) + "\n")
    return int(any(row["pass"] is False for row in rows))


if __name__ == "__main__":
    sys.exit(main())
