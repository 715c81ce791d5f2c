"""What the chart takes from elsewhere: rules and dashboards, filled in; `python -m deploy.chart_files`.

They are what `kvpressure generate` writes with the packaged thresholds, and are not in git: helm takes them from below
`files/`, and the chart's templates stop with a sentence where they are missing.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Final

from kvpressure.bundle import Options, bundle_files, load_rules, rule_objects
from kvpressure.bundle.dashboards import DASHBOARDS
from kvpressure.config.thresholds import load_thresholds

ROOT: Final = Path(__file__).resolve().parents[1]
CHART: Final = ROOT / "deploy" / "helm" / "kvpressure"
_FILES: Final = {
    f"{DASHBOARDS}/": "files/dashboards/",
    "kubernetes/alertmanagerconfig.yaml": "files/alertmanagerconfig.yaml",
}
SCRAPE_SECONDS: Final = (15, 30, 60)
"""The chart has rules for these intervals; for others, `kvpressure generate` writes them."""

RUNBOOKS: Final = "https://runbooks.invalid"
BOARDS: Final = "https://dashboards.invalid"
"""Bases that the chart's template puts the user's own in the place of, or takes out with what has them."""


def chart_files() -> dict[str, str]:
    """Path below the chart to content, of everything that is built."""
    found = {}
    for name, text in bundle_files(Options(load_thresholds()), with_runbooks=False).items():
        for start, below in _FILES.items():
            if name.startswith(start):
                found[below + name.removeprefix(start)] = text
    for seconds in SCRAPE_SECONDS:
        for all_alerts in (False, True):
            found |= _rules(seconds, all_alerts=all_alerts)
    return found


def _rules(scrape_seconds: int, *, all_alerts: bool) -> dict[str, str]:
    options = Options(
        load_thresholds(),
        runbook_url=RUNBOOKS,
        dashboard_url=BOARDS,
        scrape_seconds=scrape_seconds,
        all_alerts=all_alerts,
    )
    below = f"files/rules/{scrape_seconds}s/prometheusrule-{'all-' if all_alerts else ''}"
    return {f"{below}{kind}.yaml": text for kind, text in rule_objects(load_rules(options), options).items()}


def build(chart: Path) -> None:
    """Write them below `chart`, instead of what was built there before."""
    shutil.rmtree(chart / "files", ignore_errors=True)
    for name, text in chart_files().items():
        (chart / name).parent.mkdir(parents=True, exist_ok=True)
        (chart / name).write_text(text, "utf-8")


def main() -> None:
    """Make the chart of this checkout complete."""
    build(CHART)
    sys.stdout.write(f"{CHART.relative_to(ROOT)} has its rules and dashboards\n")


if __name__ == "__main__":
    main()
