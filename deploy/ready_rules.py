"""The rules on vLLM's own series as files in git, for those who install nothing; `python -m deploy.ready_rules`.

For scrapes every 15, 30 and 60 s: `rules.yaml` as Prometheus reads it, and `prometheusrule.yaml` for its operator. They
are what `kvpressure generate --flavour vllm-only` writes with the packaged thresholds (decision 0060).
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Final

from kvpressure.bundle import Options, load_rules
from kvpressure.bundle.options import VLLM_ONLY
from kvpressure.bundle.write import dump
from kvpressure.config.thresholds import load_thresholds

READY: Final = Path(__file__).resolve().parents[1] / "rules" / "vllm-only" / "ready"
SCRAPE_SECONDS: Final = (15, 30, 60)
_HEAD: Final = "# For scrapes every {every}; written by `make rules`, do not edit. docs/vllm-only.md\n"


def ready_files() -> dict[str, str]:
    """Return the path below `READY` to the content of every file."""
    found = {}
    for scrape_seconds in SCRAPE_SECONDS:
        every = f"{scrape_seconds}s"
        options = Options(load_thresholds(), selector="", flavour=VLLM_ONLY, scrape_seconds=scrape_seconds)
        rules = {"groups": [group for file in load_rules(options) for group in file.groups]}
        metadata = {"name": "kvpressure-vllm-only", "labels": {"app.kubernetes.io/name": "kvpressure"}}
        kind = {"apiVersion": "monitoring.coreos.com/v1", "kind": "PrometheusRule"}
        head = _HEAD.format(every=every)
        found[f"{every}/rules.yaml"] = head + dump(rules)
        found[f"{every}/prometheusrule.yaml"] = head + dump({**kind, "metadata": metadata, "spec": rules})
    return found


def main() -> None:
    """Write them, instead of what was there before."""
    shutil.rmtree(READY, ignore_errors=True)
    for name, text in ready_files().items():
        (READY / name).parent.mkdir(parents=True, exist_ok=True)
        (READY / name).write_text(text, "utf-8")
    sys.stdout.write(f"{READY.name}: rules for scrapes every {', '.join(map(str, SCRAPE_SECONDS))} s\n")


if __name__ == "__main__":
    main()
