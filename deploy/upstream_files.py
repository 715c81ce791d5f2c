"""The rules on vLLM's own series as other projects take them, below deploy/upstream; `python -m deploy.upstream_files`.

awesome-prometheus-alerts has alerts alone: recorded series are written out in them, as subqueries where a range of one
is read, and alerts that would be too long for a page stay out. The others take `PrometheusRule` objects and rule files;
their alerts are named after vLLM, and texts name no command and no file of this project.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from kvpressure.bundle import Options, load_rules
from kvpressure.bundle.options import VLLM_ONLY
from kvpressure.bundle.write import dump
from kvpressure.config.thresholds import load_thresholds

UPSTREAM: Final = Path(__file__).resolve().parent / "upstream"
SCRAPE_SECONDS: Final = 15
LONGEST: Final = 2400
"""Characters of a query on a page of awesome-prometheus-alerts; those on other exporters' series are longer."""

_RECORDED: Final = re.compile(r"\b(\w+:\w+:\w+)(?:\[(\w+)\])?(\s+offset\s+\w+)?")
_HEAD: Final = "# Written by `make rules` in kvpressure, do not edit there.\n"

TEXTS: Final = {
    "MetricsAbsent": ("Availability", "vLLM metrics absent", "Its target is up without vLLM's metrics"),
    "NoProgress": (
        "Availability",
        "vLLM makes no progress",
        "Requests run or wait, and no token came for 3 min",
    ),
    "CacheTooSmall": (
        "Resource saturation (USE)",
        "vLLM KV cache too small",
        "Waiting requests do not fit the KV cache",
    ),
    "Recomputing": ("Resource saturation (USE)", "vLLM recomputes", "Preempted requests are computed again"),
    "QueueGrows": ("Performance and errors (RED)", "vLLM queue grows", "More come than are admitted"),
    "RequestsDeferred": (
        "Performance and errors (RED)",
        "vLLM requests deferred",
        "Requests wait for other than room",
    ),
    "Rejecting": (
        "Performance and errors (RED)",
        "vLLM rejects requests",
        "Requests are refused at a limit",
    ),
    "SLOBurn": ("Performance and errors (RED)", "vLLM first tokens late", "First tokens miss the objective"),
}
"""Category, name and first sentence in awesome-prometheus-alerts, in its order."""


def written_out(expr: str, recorded: Mapping[str, str], every_seconds: int = SCRAPE_SECONDS) -> str:
    """Return the expression with the recorded series' own expressions in their place."""

    def one(found: re.Match[str]) -> str:
        name, span, offset = found[1], found[2], found[3] or ""
        if name not in recorded:
            return found[0]
        inner = f"({written_out(recorded[name], recorded, every_seconds)})"
        if span is not None:
            return f"{inner}[{span}:{every_seconds}s]{offset}"
        return f"last_over_time({inner}[{every_seconds}s:{every_seconds}s]{offset})" if offset else inner

    return _RECORDED.sub(one, expr)


def alone() -> Iterator[dict[str, Any]]:
    """Yield the alerts of TEXTS as they are, with expressions that need no recording rule."""
    rules = [rule for group in _groups(SCRAPE_SECONDS) for rule in group["rules"]]
    recorded = {rule["record"]: rule["expr"] for rule in rules if "record" in rule}
    by_name = {rule["alert"]: rule for rule in rules if "alert" in rule}
    for name in TEXTS:
        rule = by_name[f"KVPressureVLLM{name}"]
        yield {**rule, "expr": written_out(rule["expr"], recorded)}


def upstream_files() -> dict[str, str]:
    """Return the path below `UPSTREAM` to the content of every generated file."""
    groups = list(map(_theirs, _groups(30)))
    metadata = {"name": "vllm-alerts", "namespace": "monitoring", "labels": {"release": "kube-prom-stack"}}
    kind = {"apiVersion": "monitoring.coreos.com/v1", "kind": "PrometheusRule", "metadata": metadata}
    return {
        "awesome-prometheus-alerts/rules.yml": _HEAD + dump(_awesome()),
        "production-stack/observability/vllm-alerts.yaml": _HEAD + dump({**kind, "spec": {"groups": groups}}),
        "vllm/examples/online_serving/dashboards/prometheus/alerts.yaml": _HEAD + dump({"groups": groups}),
    }


def _groups(scrape_seconds: int) -> list[dict[str, Any]]:
    options = Options(load_thresholds(), selector="", flavour=VLLM_ONLY, scrape_seconds=scrape_seconds)
    return [group for file in load_rules(options) for group in file.groups]


def _awesome() -> dict[str, Any]:
    rules = []
    for rule in alone():
        _, name, sentence = TEXTS[rule["alert"].removeprefix("KVPressureVLLM")]
        entry = {
            "name": name,
            "description": f"{sentence} on {{{{ $labels.instance }}}} (model {{{{ $labels.model_name }}}})",
            "query": rule["expr"],
            "severity": rule["labels"]["severity"],
        }
        rules.append(entry if rule["for"] == "0s" else {**entry, "for": rule["for"]})
    exporter = {
        "name": "Embedded exporter",
        "slug": "embedded-exporter",
        "doc_url": "https://docs.vllm.ai/en/latest/usage/metrics.html",
        "comments": "For scrapes every 15 s. The KV cache can be too small long before kv_cache_usage_perc is near 1:\n"
        "a prompt that does not fit waits. Thresholds are shares of the load, not counts.\n",
        "rules": rules,
    }
    return {"services": [{"name": "vLLM", "logo": "/images/services/vllm.svg", "exporters": [exporter]}]}


def _theirs(group: Mapping[str, Any]) -> dict[str, Any]:
    """Return a group with names and texts that are vLLM's."""
    rules = []
    for rule in group["rules"]:
        if "alert" in rule:
            texts = {key: rule["annotations"][key] for key in ("summary", "description")}
            texts["description"] = texts["description"].partition("\nRun: ")[0]
            alert = rule["alert"].removeprefix("KVPressure")
            rules.append({**rule, "alert": alert, "annotations": texts})
        else:
            rules.append(dict(rule))
    return {**group, "name": group["name"].removeprefix("kvpressure-"), "rules": rules}


def main() -> None:
    """Write them."""
    for name, text in upstream_files().items():
        (UPSTREAM / name).parent.mkdir(parents=True, exist_ok=True)
        (UPSTREAM / name).write_text(text, "utf-8")
    sys.stdout.write(f"{UPSTREAM.name}: {', '.join(upstream_files())}\n")


if __name__ == "__main__":
    main()
