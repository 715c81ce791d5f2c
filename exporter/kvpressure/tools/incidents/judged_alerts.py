"""Which alerts would have fired: ours, judged from the verdicts, and those that people copy from one another.

Windows and shares of ours are those of `rules/alerts`; a test compares them with what the bundle renders. The copied
ones are on vLLM's own series: one list for the benchmark and for what `incidents` says would have fired, which the
Prometheus itself evaluates.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from kvpressure.config.thresholds import Thresholds
from kvpressure.model.catalogue import CATALOGUE
from kvpressure.model.verdict import Diagnosis
from kvpressure.tools.incidents.client import Prometheus
from kvpressure.tools.incidents.journal import RuleRows
from kvpressure.tools.incidents.names import EngineName, Json, Selection, Spelled, target_of
from kvpressure.tools.incidents.paging import Span, joined, ranged

CACHE_TOO_SMALL: Final = "KVPressureCacheTooSmall"
Holds = Callable[[Diagnosis], bool]


@dataclass(frozen=True, slots=True)
class Fired:
    """An alert that would have fired: from `at` to `ended` (unix seconds; None while it still did at the end).

    `copied` ones are those that people copy, evaluated by the Prometheus itself; ours are judged from the verdicts.
    """

    rule: str
    at: float
    ended: float | None
    severity: str = ""
    copied: bool = False

    def json(self) -> Json:
        """Return it as an incident has it under `fired`."""
        by = "copied" if self.copied else "kvpressure"
        return {"rule": self.rule, "by": by, "severity": self.severity or None, "at": self.at, "ended": self.ended}


@dataclass(frozen=True, slots=True)
class Judged:
    """An alert: fires once `holds` was true in the share of the last `window_seconds` for `for_seconds`.

    `at_once` fires without a window, as the page does where one scrape is plain.
    """

    name: str
    severity: str
    holds: Holds
    window_seconds: float
    share: float
    for_seconds: float
    keep_seconds: float
    at_once: Holds | None = None
    above: bool = False
    """Whether the share has to be more than that, not just as much."""


def _of_cause(alert: str) -> Holds:
    """Whether the verdict's cause is the one that the alert is of."""
    return lambda diagnosis: CATALOGUE[diagnosis.cause].alert == alert


def _shows(*symptoms: str) -> Holds:
    """Whether one of these symptoms is there."""

    def holds(diagnosis: Diagnosis) -> bool:
        shown = map(diagnosis.symptoms.get, symptoms)
        return any(one is not None and one.state is True for one in shown)

    return holds


def _plain(diagnosis: Diagnosis) -> bool:
    return _of_cause(CACHE_TOO_SMALL)(diagnosis) and _shows("admission_blocked", "kv_saturated")(diagnosis)


def ours(limits: Thresholds) -> tuple[Judged, ...]:
    """Return the alerts that one engine's verdicts decide: no other replicas, no GPUs and no logs."""
    often = limits.alert_symptom_min_ratio
    ten = (600.0, limits.alert_cause_min_ratio, 300.0, 600.0)
    stuck, deferred, host = "KVPressureEngineStuck", "KVPressureEngineDeferred", "KVPressureEngineHostBound"
    cap = "KVPressureSequenceCapReached"
    return (
        Judged(CACHE_TOO_SMALL, "warning", _of_cause(CACHE_TOO_SMALL), 60.0, often, 0.0, 180.0, _plain, above=True),
        Judged(stuck, "warning", _of_cause(stuck), 60.0, often, 60.0, 120.0, above=True),
        Judged(deferred, "warning", _of_cause(deferred), *ten),
        Judged(host, "warning", _of_cause(host), *ten),
        Judged(cap, "info", _of_cause(cap), *ten),
        Judged("KVPressurePreemptionThrash", "warning", _shows("preempting"), 180.0, often, 60.0, 60.0, above=True),
    )


class Alarm:
    """One alert over one engine's verdicts, oldest first."""

    def __init__(self, rule: Judged) -> None:
        self.rule = rule
        self.fired: list[Fired] = []
        self._window: deque[tuple[float, bool]] = deque()
        self._since: float | None = None
        self._at: float | None = None
        self._last_true = float("-inf")

    def add(self, t: float, diagnosis: Diagnosis) -> None:
        """Take the next verdict in."""
        rule = self.rule
        if self._window and t - self._window[-1][0] > max(rule.window_seconds, rule.keep_seconds):
            self.close(self._window[-1][0])
            self._window.clear()
            self._since = None
        self._window.append((t, rule.holds(diagnosis)))
        while self._window[0][0] <= t - rule.window_seconds:
            self._window.popleft()
        share = sum(fired for _, fired in self._window) / len(self._window)
        enough = share > rule.share if rule.above else share >= rule.share
        now = self._window[-1][1] or not rule.above
        true = (enough and now) or (rule.at_once is not None and rule.at_once(diagnosis))
        if true:
            self._last_true = t
            self._since = t if self._since is None else self._since
            if self._at is None and t - self._since >= rule.for_seconds:
                self._at = t
        else:
            self._since = None
            if t - self._last_true >= rule.keep_seconds:
                self.close(t)

    def close(self, t: float | None) -> None:
        """Note that it ends at `t`, or has not ended."""
        if self._at is not None:
            self.fired.append(Fired(self.rule.name, self._at, t, self.rule.severity))
            self._at = None

    def shown(self) -> Sequence[Fired]:
        """Return what fired so far, that which still does too."""
        going = [] if self._at is None else [Fired(self.rule.name, self._at, None, self.rule.severity)]
        return [*self.fired, *going]


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


def fired_copied(rule: Rule, answers: Sequence[RuleRows], until: float) -> dict[EngineName, list[Fired]]:
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
