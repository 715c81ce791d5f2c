"""`alerts.md`, the page for the bundle's users: when each alert fires, its severity, and its runbook."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Final

from kvpressure.bundle.options import EXPORTER, Options
from kvpressure.bundle.rules import Alert
from kvpressure.bundle.templates import percent
from kvpressure.config.thresholds import Thresholds

_INTRO: Final = """# Alerts

Generated from `rules/alerts` by `kvpressure generate`; do not edit. Thresholds {hash}.

They require Prometheus 2.42 or later. `critical` pages, `warning` opens a ticket, `info` is for dashboards. Pressure on
one replica is a ticket. A page requires {share} of a model's replicas in a namespace, or the only one; or, with
`--all-alerts`, a burning error budget. "For" is how long the expression must be true before the alert fires. "Keeps
firing" is how long it may be false before the alert resolves, because pressure changes with every request that ends.

{on} alerts are on by default: those that page or that require action within the week. The others are written with
`kvpressure generate --all-alerts` (in the chart: `prometheusRule.allAlerts`).

Windows cover four scrapes of {scrape} s: `kvpressure generate --scrape-interval 60s` writes longer ones. The chart
links to the runbooks at its Service; elsewhere `--runbook-url` and `--dashboard-url` set links, and without them alerts
name the runbook's file. Receivers for Slack, Teams and PagerDuty
are in `alertmanager/receivers.yaml` of the bundle, their texts in `alertmanager/kvpressure.tmpl`.

The text after "First:" is the first step on the engine's page (`kvpressure_recommended_action`, label `text`), and the
best one without a GPU; for a model, that of its worst engine. For the first ten seconds of a verdict it is a general
sentence.

If two exporters list one server, rules use the one that reads it, or the older: each expression on a target also has
`unless on (cluster, instance, target) target:kvpressure_duplicate:bool`.

"""
_VLLM_ONLY_INTRO: Final = """# Alerts on vLLM's own series

Generated from `rules/vllm-only/alerts` by `kvpressure generate --flavour vllm-only`; do not edit. Thresholds {hash}.

{on} alerts that require no exporter: they use vLLM's own metrics, scraped every {scrape} s. None of them pages, because
these metrics are not enough evidence for a page. Each alert's runbook lists what the alert cannot know, and
docs/vllm-only.md what the exporter adds. "For" is how long the expression must be true before the alert fires, "keeps
firing" how long it may be false before the alert resolves.

**To load**: without prometheus-operator put `prometheus/alerts/*.yaml` and `prometheus/recording/*.yaml` under
`rule_files` (a pattern is only expanded in the last part of a path); with it, `kubectl apply` the files in
`kubernetes/`. Copy the `inhibit_rules` of `alertmanager/alertmanager.yaml` into yours: without them one cause is
reported twice. Import `grafana/dashboards/`. If a **runbook** refers to one of the exporter's alerts, its queries of
`kvpressure_` series return nothing without the exporter; its commands work unchanged.

"""


Rights = Mapping[str, Mapping[str, Sequence[int]]]
"""By alert and by where it was measured: how many of them were right, of how many."""


def alerts_markdown(alerts: Sequence[Alert], options: Options, rights: Rights) -> str:
    """Return the whole page: a table of all alerts, then one section each, with how often it was right."""
    thresholds = options.thresholds
    on = {alert.name for alert in alerts if not alert.off_because}
    parts = [
        (_INTRO if options.flavour is EXPORTER else _VLLM_ONLY_INTRO).format(
            hash=f"`{thresholds.hash}`",
            share=percent(thresholds.values["alert_replicas_min_ratio"]),
            on=len(on),
            scrape=options.scrape_seconds,
        ),
        "| alert | severity | for | keeps firing | about | off by default because |\n",
        "|---|---|---|---|---|---|\n",
    ]
    for alert in sorted(alerts, key=lambda alert: alert.name not in on):
        link, keeps = _link(alert.name), alert.rule.get("keep_firing_for", "-")
        row = (link, alert.severity, alert.rule["for"], keeps, alert.component, alert.off_because)
        parts.append(f"| {' | '.join(row)} |\n")
    for name, group in groupby(alerts, key=lambda alert: alert.name):
        rules = list(group)
        parts.append(_section(name, rules))
        if rules[0].off_because and name in rights:
            parts.append(_right(rights[name]))
    return "".join((*parts, _table({key for alert in alerts for key in alert.thresholds}, thresholds)))


def _table(keys: Iterable[str], thresholds: Thresholds) -> str:
    rows = (
        f"| `{key}` | {thresholds.values[key]:g} {thresholds.entries[key].unit} | {thresholds.entries[key].why} |\n"
        for key in sorted(keys)
    )
    return f"\n## Thresholds\n\n| threshold | value | why |\n|---|---|---|\n{''.join(rows)}"


def _section(name: str, rules: Sequence[Alert]) -> str:
    parts = [f"\n## {name}\n\n"]
    for rule in rules:
        parts.append(f"**{rule.severity}**: {rule.words}\n\n")
        parts.append(f"```promql\n{rule.condition}\n```\n\n")
    if rules[0].muted_by:
        parts.append(
            f"Muted while one of these fires for the same engine: {', '.join(map(_link, rules[0].muted_by))}.\n\n"
        )
    if rules[0].thresholds:
        parts.append(f"[Thresholds](#thresholds): `{'`, `'.join(rules[0].thresholds)}`.\n\n")
    parts.append(f"Template `rules/{rules[0].file}`, runbook [{name}](runbooks/{name}.md).\n")
    return "".join(parts)


def _right(measured: Mapping[str, Sequence[int]]) -> str:
    """Return the line that says how often an alert was right, and where."""
    each = [f"{right} of {total} {where}" for where, (right, total) in measured.items()]
    right, total = (sum(counts) for counts in zip(*measured.values(), strict=True))
    sums = f"{right} of {total}: " if len(each) > 1 else ""
    return f"\nRight in {sums}{', '.join(each)} (docs/detection.md).\n"


def _link(name: str) -> str:
    return f"[{name}](#{name.lower()})"
