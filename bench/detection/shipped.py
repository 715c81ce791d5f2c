"""The alerts that are shipped, as the bundles render them: expressions, durations, and the series that they ask for.

Beside them those that people use today, without an exporter, as the benchmark judges them.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from kvpressure.bundle import Options, load_rules
from kvpressure.bundle.options import EXPORTER, VLLM_ONLY, Flavour
from kvpressure.config.thresholds import load_thresholds

USAGE: Final = "vllm:kv_cache_usage_perc"
PREEMPTIONS: Final = "vllm:num_preemptions_total"
MEMORY: Final = "gpu_memory_used_ratio"

TODAY_SERIES: Final = frozenset({USAGE, PREEMPTIONS, "vllm:num_requests_waiting"})
"""What of vLLM's page these ask for."""


@dataclass(frozen=True, slots=True)
class Rule:
    """An alert: an expression, how long it has to be true, and how long it keeps firing after that.

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


ALERT: Final = "KVPressureCacheTooSmall"
TICKET: Final = "KVPressureQueueNotServed"
"""What tells of any other queue that is not served in time."""
SUFFERED: Final = "kvpressure_queue_drain_seconds"
"""What those who come wait, beside which the table of pages is read."""
PAGE: Final = f"{ALERT} (warning)"
"""The first that anybody hears of: it has the bars."""
ALERT_VLLM_ONLY: Final = "KVPressureVLLMCacheTooSmall"
"""The same on vLLM's own series, for those who have no exporter."""
_MODEL: Final = "cluster, namespace, model_name"
_EPISODE: Final = f"{_MODEL}, episode, engine"
"""Here each engine of an episode is a deployment of one replica: what is summed over a model keeps them apart."""

_UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_NOTHING: Final = "vector(0) > 1"
_LAST: Final = "last_over_time(timestamp(%s)[10m:15s])"
_REMEMBERED: Final = {
    "engine:kvpressure_answered:timestamp": _LAST % 'kvpressure_engine_up{job="kvpressure"} == 1',
    "engine:kvpressure_had_requests:timestamp": _LAST
    % 'kvpressure_requests_running{job="kvpressure"} + kvpressure_requests_waiting{job="kvpressure"} > 0',
    "engine:kvpressure_silent:seconds": "time() - (engine:kvpressure_answered:timestamp and "
    "engine:kvpressure_had_requests:timestamp >= engine:kvpressure_answered:timestamp) "
    'unless kvpressure_engine_up{job="kvpressure"} == 1',
    "target:kvpressure_exporter_gone:timestamp": _NOTHING,
    "target:kvpressure_duplicate:bool": _NOTHING,
}
"""What rules remember, without what they do for restarts: an episode has one exporter, which never restarts."""
_CAUSE: Final = re.compile(r'engine:kvpressure_cause:timestamp\{(cause="\w+")\}')
_RECORDED: Final = re.compile(r"\b(?:namespace_model|engine|target):\w+:\w+\b(?:\[(\w+)\])?( offset \w+)?")


@functools.cache
def shipped(scrape_seconds: int = 15) -> tuple[Rule, ...]:
    """Every severity of the alert, with the packaged thresholds; what it takes from recorded series is written out."""
    return _rules(EXPORTER, ALERT, scrape_seconds)


@functools.cache
def ticket(scrape_seconds: int = 15) -> tuple[Rule, ...]:
    """The ticket of a queue that is not served, in the same way."""
    return _rules(EXPORTER, TICKET, scrape_seconds)


@functools.cache
def vllm_only(scrape_seconds: int = 15, alert: str = ALERT_VLLM_ONLY) -> tuple[Rule, ...]:
    """An alert on vLLM's own series, in the same way."""
    return _rules(VLLM_ONLY, alert, scrape_seconds)


@functools.cache
def others(scrape_seconds: int = 15) -> tuple[Rule, ...]:
    """The alerts of `--all-alerts` that are off by default, in the same way."""
    return _rules(EXPORTER, "", scrape_seconds)


@functools.cache
def asked() -> frozenset[str]:
    """The exporter's series that their expressions name, and what is shown beside them."""
    rules = (*shipped(), *ticket(), *others())
    return frozenset(name for rule in rules for name in re.findall(r"\bkvpressure_\w+", rule.expr)) | {SUFFERED}


@functools.cache
def named_by(flavour: Flavour) -> frozenset[str]:
    """The series of the exporter, or of vLLM, that all rules of a flavour name."""
    files = load_rules(Options(load_thresholds(), flavour=flavour, selector=flavour.selector))
    expressions = (rule["expr"] for file in files for group in file.groups for rule in group["rules"])
    return frozenset(name for expr in expressions for name in re.findall(r"\b(?:vllm:|kvpressure_)\w+", expr))


def seconds(duration: str) -> float:
    """A duration as Prometheus writes it, such as 1m30s. ValueError for anything else."""
    if not re.fullmatch(r"(\d+[smhd])+", duration):
        raise ValueError(f"{duration!r} is no duration such as 30s or 1m30s")
    return float(sum(int(count) * _UNITS[unit] for count, unit in re.findall(r"(\d+)([smhd])", duration)))


def _rules(flavour: Flavour, name: str, scrape_seconds: int) -> tuple[Rule, ...]:
    """The alerts called `name`; "" for all that are off by default."""
    options = Options(
        load_thresholds(),
        flavour=flavour,
        selector=flavour.selector,
        scrape_seconds=scrape_seconds,
        all_alerts=not name,
    )
    files = load_rules(options)
    rules = [rule for file in files for group in file.groups for rule in group["rules"] if "record" in rule]
    recorded = {rule["record"]: rule["expr"] for rule in rules} | _REMEMBERED
    alerts = [alert for file in files for alert in file.alerts if (alert.name == name if name else alert.off_because)]
    return tuple(_rule(f"{alert.name} ({alert.severity})", alert.rule, recorded) for alert in alerts)


def _rule(alert: str, rule: Any, recorded: Mapping[str, str]) -> Rule:
    expr = _CAUSE.sub(_last_cause, rule["expr"].replace(_MODEL, _EPISODE))
    while used := _RECORDED.search(expr):
        name, duration = used[0].partition(" ")[0].partition("[")[0], used[1]
        recorded_as = _CAUSE.sub(_last_cause, recorded[name].replace(_MODEL, _EPISODE))
        # What a rule has recorded of itself is of before an episode, where there is nothing.
        itself = re.compile(rf"\b{name}\b(?:\[(\w+)\])?")
        recorded_as = itself.sub(lambda own: f"({_NOTHING})" + _steps(own[1]), recorded_as)
        stands_for = f"({recorded_as})" + _steps(duration) + (used[2] or "")
        if used[2] and not duration:  # an expression has no value of before, its subquery has
            stands_for = f"last_over_time(({recorded_as})[1s:15s]{used[2]})"
        expr = expr[: used.start()] + stands_for + expr[used.end() :]
    return Rule(alert, expr, seconds(rule["for"]), seconds(rule.get("keep_firing_for", "0s")))


def _steps(duration: str | None) -> str:
    """Return the range of an expression that stands for a recorded series: one is recorded every 15 s."""
    return f"[{duration}:15s]" if duration else ""


def _last_cause(found: re.Match[str]) -> str:
    return f"({_LAST})" % f'kvpressure_bottleneck{{job="kvpressure", {found[1]}}} == 1'
