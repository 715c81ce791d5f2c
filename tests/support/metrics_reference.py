"""`docs/metrics.md`, generated from the family table: `python -m tests.support.metrics_reference > docs/metrics.md`."""

import sys
from collections.abc import Iterable

from kvpressure.exposition.families import FAMILIES, JSON_VALUES
from kvpressure.exposition.text import OwnProcess
from kvpressure.model.family import Scope
from kvpressure.model.verdict import DETAILS

STABLE = frozenset(
    {
        "bottleneck",
        "bottleneck_info",
        "build_info",
        "container_last_termination_info",
        "container_restarts_total",
        "demand_replicas",
        "effective_batch_size",
        "engine_up",
        "kv_cache_usage_ratio",
        "kv_capacity_tokens",
        "kv_free_tokens",
        "lost_tokens_total",
        "preemptions_total",
        "queue_unserved_seconds",
        "recommended_action",
        "request_output_tokens",
        "request_prompt_tokens",
        "requests_running",
        "requests_waiting",
        "score_ratio",
        "source_errors_total",
        "source_up",
        "symptom",
        "target_answering",
        "target_created_timestamp_seconds",
        "target_info",
        "target_listed",
        "target_status",
        "targets",
        "thresholds_info",
        "tokens_total",
    }
)
"""Series that keep name, labels and meaning within a major version; all others are experimental, and may change."""

_TITLES = {
    Scope.ENGINE: "Engines",
    Scope.TARGET: "Targets",
    Scope.GPU: "GPUs",
    Scope.SOURCE: "Sources",
    Scope.CONTAINER: "Containers of engines",
    Scope.EXPORTER: "The exporter itself",
}

_INTRO = """# Metrics

All series of the exporter. Generated from `FAMILIES` beside the functions that compute them, by `make docs`.

Units are base units; ratios are 0 to 1, inflation and burstiness 1 or more. A series whose input is unknown is absent,
never 0. "The window" is `window_seconds` (60 s by default), "the long window" is `long_window_seconds` (600 s).
A STABLE series keeps name, labels and meaning within a major version; an EXPERIMENTAL one may change with any.
"""
_HEAD = "\n| series | type | class | additional labels | meaning |\n|---|---|---|---|---|\n"
_OF_JSON = """
## Values of the JSON alone

In `derived` of [the API](api.md) too; PromQL gives them from the series.

| key | labels | meaning |
|---|---|---|
"""
_DETAILS = """
## Details

Values of the label `detail` of `kvpressure_bottleneck_info`, empty if the kind of the cause is unknown
([decision 0250](internals/decisions/0250-causes-and-their-details.md)).

| cause | detail | meaning |
|---|---|---|
"""


def metrics_markdown() -> str:
    """Return the whole page."""
    parts = [_INTRO]
    for scope, title in _TITLES.items():
        parts.append(f"\n## {title}\n")
        if scope.labels:
            parts.append(f"\nEvery series has the labels {_labels(scope.labels)}.\n")
        parts.append(_HEAD)
        own = (family for family in FAMILIES if family.scope is scope)
        parts.extend(
            _row(family.name, family.type, family.labels, family.help, stable=family.key in STABLE) for family in own
        )
    parts.append("\n## The exporter's process\n\nWritten by prometheus_client.\n" + _HEAD)
    for metric in OwnProcess().collect():
        sample, text = metric.samples[0], metric.documentation.removesuffix(".") + "."
        parts.append(_row(sample.name, metric.type, sample.labels, text, stable=True))
    parts.append(_OF_JSON)
    parts.extend(f"| `{one.key}` | {_labels(one.labels)} | {one.help} |\n" for one in JSON_VALUES)
    parts.append(_DETAILS)
    parts.extend(
        f"| `{cause.value}` | `{detail}` | {meaning} |\n"
        for cause, details in DETAILS.items()
        for detail, meaning in details.items()
    )
    return "".join(parts)


def _row(name: str, kind: str, labels: Iterable[str], text: str, *, stable: bool) -> str:
    known = "STABLE" if stable else "EXPERIMENTAL"
    return f"| `{name}` | {kind} | {known} | {_labels(labels)} | {text} |\n"


def _labels(labels: Iterable[str]) -> str:
    return ", ".join(f"`{label}`" for label in labels)


if __name__ == "__main__":
    sys.stdout.write(metrics_markdown())
