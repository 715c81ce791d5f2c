"""The tables of docs/internals/accuracy/scaling.md: what was measured, and what that makes for 100,000 engines."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from bench.fleet.server import SCRAPE_SECONDS

DOCUMENT: Final = Path(__file__).parents[2] / "docs" / "internals" / "accuracy" / "scaling.md"
MARK: Final = "<!-- python -m bench.fleet -->"
MANY: Final = 100_000
DAYS: Final = 30
GIB: Final = 2**30


def write(results: Mapping[str, Any]) -> None:
    """Put the tables where the marks are."""
    before, _, after = DOCUMENT.read_text().split(MARK)
    DOCUMENT.write_text(f"{before}{MARK}\n{tables(results)}{MARK}{after}")


def tables(results: Mapping[str, Any]) -> str:
    """Measured, then summed up, as Markdown."""
    runs = results["runs"]
    rows = [
        (
            "| profile | engines | series an engine | KiB a scrape, an engine (gzip) | series kept, with rules' "
            "| Prometheus' memory, GiB | rules, cores | slowest group, share of its interval |"
        ),
        "| --- | --: | --: | --: | --: | --: | --: | --: |",
        *map(_measured, runs),
        "",
        (
            f"| {MANY:,} engines, scraped every {SCRAPE_SECONDS} s | samples/s | MiB/s scraped (gzip) | series kept "
            f"| TiB in {DAYS} days | rules, cores |"
        ),
        "| --- | --: | --: | --: | --: | --: |",
        *_sums(runs, results["bytes_per_sample"]),
    ]
    return "".join(f"{row}\n" for row in rows)


def _measured(run: Mapping[str, Any]) -> str:
    engines = run["engines"]
    page, gzipped = (run[key] / engines / 1024 for key in ("page_bytes", "gzip_bytes"))
    slowest = max(group["seconds"] / group["interval_seconds"] for group in run["groups"])
    cells = (
        run["profile"],
        f"{engines:,}",
        f"{run['exported_series'] / engines:.1f}",
        f"{page:.1f} ({gzipped:.2f})",
        f"{run['head_series']:,}",
        f"{run['memory_bytes'] / GIB:.2f}",
        f"{_cores(run):.3f}",
        f"{slowest:.1%}",
    )
    return f"| {' | '.join(cells)} |"


def _cores(run: Mapping[str, Any]) -> float:
    return float(sum(group["seconds"] / group["interval_seconds"] for group in run["groups"]))


def _sums(runs: Any, bytes_per_sample: Mapping[str, float]) -> Iterator[str]:
    """From the largest fleet of each profile."""
    for profile, size in bytes_per_sample.items():
        run = max((run for run in runs if run["profile"] == profile), key=lambda run: run["engines"])
        factor = MANY / run["engines"]
        samples = run["exported_series"] * factor / SCRAPE_SECONDS
        cells = (
            profile,
            f"{samples:,.0f}",
            (
                f"{run['page_bytes'] * factor / SCRAPE_SECONDS / 2**20:.1f} "
                f"({run['gzip_bytes'] * factor / SCRAPE_SECONDS / 2**20:.1f})"
            ),
            f"{run['head_series'] * factor:,.0f}",
            f"{samples * DAYS * 86_400 * size / 2**40:.1f}",
            f"{_cores(run) * factor:.1f}",
        )
        yield f"| {' | '.join(cells)} |"
