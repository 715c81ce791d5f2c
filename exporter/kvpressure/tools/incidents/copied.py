"""Alerts that people copy from one another, on vLLM's own series, and when they would have fired.

One list for the benchmark and for what `incidents` says would have fired, which the Prometheus itself evaluates.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from kvpressure.tools.incidents.client import Prometheus
from kvpressure.tools.incidents.journal import RuleRows
from kvpressure.tools.incidents.judged_alerts import Fired
from kvpressure.tools.incidents.names import EngineName, Selection, Spelled, target_of
from kvpressure.tools.incidents.paging import Span, joined, ranged

USAGE: Final = "vllm:kv_cache_usage_perc"
PREEMPTIONS: Final = "vllm:num_preemptions_total"
MEMORY: Final = "gpu_memory_used_ratio"

EVERY_SECONDS: Final = 60.0
"""Prometheus evaluates rules so often unless somebody says otherwise."""

_GAP_SECONDS: Final = 1.5 * EVERY_SECONDS
_NAME: Final = re.compile(r"\bvllm:\w+")
_FORMERLY: Final = {"vllm:kv_cache_usage_perc": "vllm:gpu_cache_usage_perc"}


@dataclass(frozen=True, slots=True)
class Rule:
    """An alert: an expression, and how long it has to hold; once it fires, it goes on for `keep_seconds` without.

    `needs` is a series of the engine without which the alert cannot be judged.
    """

    name: str
    expr: str
    for_seconds: float = 0.0
    keep_seconds: float = 0.0
    needs: str = USAGE


TODAY: Final = (
    Rule("kv_cache_usage > 0.9 for 5m", f"{USAGE} > 0.9", 300.0),
    Rule("avg_over_time(usage[5m]) > 0.95", f"avg_over_time({USAGE}[5m]) > 0.95"),
    Rule("rate(preemptions[5m]) > 0", f"rate({PREEMPTIONS}[5m]) > 0"),
    Rule("usage > 0.95 and rate(preemptions[10m]) > 0", f"{USAGE} > 0.95 and rate({PREEMPTIONS}[10m]) > 0"),
    Rule("GPU memory > 0.9", f"{MEMORY} > 0.9", needs=MEMORY),
    Rule("waiting > 50", "vllm:num_requests_waiting > 50"),
)
"""What people have without an exporter."""


def askable(spelled: Spelled, selection: Selection) -> Iterator[tuple[Rule, str]]:
    """Return the rules for whose series there are any, with the expression that selects the selected engines."""
    if spelled.table.prefix != "vllm:":
        return
    there = {f"vllm:{name.removeprefix(spelled.spelling)}": name for name in spelled.present}
    for rule in TODAY:
        names = {name: there.get(name) or there.get(_FORMERLY.get(name, name)) for name in _NAME.findall(rule.expr)}
        if names and all(names.values()):
            chosen = {name: f"{there}{selection.and_also()}" for name, there in names.items()}
            yield rule, _NAME.sub(lambda match: chosen[match[0]], rule.expr)  # noqa: B023 - used at once


def read_page(server: Prometheus, expr: str, spelled: Spelled, page: Span) -> RuleRows:
    """Return the times at which an expression holds in a page, by engine. Raises PrometheusError."""
    table, times = spelled.table, dict[EngineName, list[Span]]()
    for one in ranged(server, expr, page, EVERY_SECONDS):
        labels = one.get("metric", {})
        model, rank = labels.get(table.model_label, ""), labels.get(table.engine_label, "0")
        # Copies of several Prometheus servers are one engine's, and each begins anew.
        its = times.setdefault(EngineName(target_of(labels, table).name, model, rank), [])
        its.extend(Span(t, t) for t, _ in one.get("values", ()))
    return [(key, [(span.start, span.end) for span in joined(its, _GAP_SECONDS)]) for key, its in times.items()]


def fired(rule: Rule, answers: Sequence[RuleRows], until: float) -> dict[EngineName, list[Fired]]:
    """Return where it was true for long enough, by the answers of all pages."""
    true_spans, found = dict[EngineName, list[Span]](), dict[EngineName, list[Fired]]()
    for key, spans in (row for answer in answers for row in answer):
        true_spans.setdefault(EngineName(*key), []).extend(Span(*span) for span in spans)
    for engine, its in true_spans.items():
        for span in joined(its, _GAP_SECONDS):
            if span.seconds >= rule.for_seconds:
                ended = None if span.end > until - EVERY_SECONDS else span.end
                one = Fired(rule.name, span.start + rule.for_seconds, ended, copied=True)
                found.setdefault(engine, []).append(one)
    return found
