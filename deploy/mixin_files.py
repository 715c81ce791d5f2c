"""What the mixin is made of; `python -m deploy.mixin_files` writes it: rules and dashboards as `generate` writes them.

It is one JSON file, not in git, with placeholders for the base URLs, which mixin.libsonnet puts the user's own in.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any, Final

from deploy.chart_files import BOARDS, ROOT, RUNBOOKS, SCRAPE_SECONDS

from kvpressure.bundle import KINDS, Options, load_rules
from kvpressure.bundle.dashboards import DASHBOARDS, EXPORTER_RUNBOOKS, dashboard_files
from kvpressure.bundle.options import SELECTOR
from kvpressure.config.thresholds import Thresholds, load_thresholds

MIXIN: Final = ROOT / "mixin"


def mixin_files(thresholds: Thresholds) -> dict[str, str]:
    """Return the mixin: path below its folder to content."""
    boards = dashboard_files(Options(thresholds, runbook_url=RUNBOOKS))
    built = {
        "selector": SELECTOR,
        "runbookUrl": RUNBOOKS,
        "dashboardUrl": BOARDS,
        "exporterRunbooks": EXPORTER_RUNBOOKS,
        "thresholds": dict(thresholds.values),
        "rules": {
            f"{every}s{'-all' if all_alerts else ''}": _groups(thresholds, every, all_alerts=all_alerts)
            for every in SCRAPE_SECONDS
            for all_alerts in (False, True)
        },
        "dashboards": {
            name.removeprefix(f"{DASHBOARDS}/"): json.loads(text)
            for name, text in boards.items()
            if name.startswith(f"{DASHBOARDS}/")
        },
    }
    own = {name: (MIXIN / name).read_text("utf-8") for name in ("mixin.libsonnet", "README.md")}
    return own | {"built.json": json.dumps(built, indent=1) + "\n"}


def _groups(thresholds: Thresholds, scrape_seconds: int, *, all_alerts: bool) -> dict[str, list[Any]]:
    options = Options(
        thresholds,
        runbook_url=RUNBOOKS,
        dashboard_url=BOARDS,
        scrape_seconds=scrape_seconds,
        all_alerts=all_alerts,
    )
    files = load_rules(options)
    return {kind: [group for file in files if file.place.startswith(kind) for group in file.groups] for kind in KINDS}


def main() -> None:
    """Write built.json beside mixin.libsonnet."""
    parser = argparse.ArgumentParser(prog="python -m deploy.mixin_files", description=__doc__)
    parser.add_argument("--thresholds", type=Path, help="overrides, as the exporter's thresholds_file")
    own = parser.parse_args().thresholds
    thresholds = load_thresholds() if own is None else load_thresholds(own.read_text(), override_name=str(own))
    (MIXIN / "built.json").write_text(mixin_files(thresholds)["built.json"])


if __name__ == "__main__":
    main()
