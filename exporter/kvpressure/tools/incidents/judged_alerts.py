"""Which alerts would have fired: the bundle's, judged from the verdicts, and the rules that people copy.

The bundle's windows and shares are those of `rules/alerts`; a test compares them with what the bundle renders. The
copied rules are on vLLM's own series, and the Prometheus evaluates them; the benchmark uses the same list.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from kvpressure.config.thresholds import Thresholds
from kvpressure.model.catalogue import CATALOGUE
from kvpressure.model.verdict import Diagnosis
from kvpressure.tools.incidents.client import Prometheus
from kvpressure.tools.incidents.names import (
    EngineName,
    Json,
    RuleRows,
    Selection,
    Spelled,
    engine_of,
    labelled_engine,
    rank_of,
    target_of,
)
from kvpressure.tools.incidents.paging import Span, joined, ranged

CACHE_TOO_SMALL: Final = "KVPressureCacheTooSmall"

LATE_SECONDS: Final = 300.0
"""An alert that fires so shortly after an incident fires because of it."""

Holds = Callable[[Diagnosis], bool]


@dataclass(frozen=True, slots=True)
class Fired:
    """An alert that would have fired: from `at` to `ended` (unix seconds; None where it still did at the end).

    `copied` says that it is one of the rules that people copy, and not one of the bundle's.
    """

    rule: str
    at: float
    ended: float | None
    severity: str = ""
    copied: bool = False

    def json(self) -> Json:
        """Return the entry under `fired` of an incident."""
        by = "copied" if self.copied else "kvpressure"
        return {"rule": self.rule, "by": by, "severity": self.severity or None, "at": self.at, "ended": self.ended}


@dataclass(frozen=True, slots=True)
class Judged:
    """An alert: fires once `holds` was true in the share of the last `window_seconds` for `for_seconds`.

    `at_once` fires without a window, as the alert that pages does where one scrape is enough.
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
    """Return a test for verdicts whose cause has this alert."""
    return lambda diagnosis: CATALOGUE[diagnosis.cause].alert == alert


def _shows(*symptoms: str) -> Holds:
    """Return a test for verdicts with one of these symptoms."""

    def holds(diagnosis: Diagnosis) -> bool:
        shown = map(diagnosis.symptoms.get, symptoms)
        return any(one is not None and one.state is True for one in shown)

    return holds


def _plain(diagnosis: Diagnosis) -> bool:
    return _of_cause(CACHE_TOO_SMALL)(diagnosis) and _shows("admission_blocked", "kv_saturated")(diagnosis)


def ours(limits: Thresholds) -> tuple[Judged, ...]:
    """Return the bundle's alerts that one engine's verdicts decide: without other replicas, GPUs and logs."""
    often = limits.alert.symptom_min_ratio
    ten = (600.0, limits.alert.cause_min_ratio, 300.0, 600.0)
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
        """Add the next verdict."""
        rule = self.rule
        if self._window and t - self._window[-1][0] > max(rule.window_seconds, rule.keep_seconds):
            self.close(self._window[-1][0])
            self._window.clear()
            self._since = None
        self._window.append((t, rule.holds(diagnosis)))
        while self._window[0][0] <= t - rule.window_seconds:
            self._window.popleft()
        share = sum(true for _, true in self._window) / len(self._window)
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
        """Record that it stopped firing at `t`, if it fired."""
        if self._at is not None:
            self.fired.append(Fired(self.rule.name, self._at, t, self.rule.severity))
            self._at = None

    def shown(self) -> Sequence[Fired]:
        """Return what fired so far, including what still does."""
        firing = [] if self._at is None else [Fired(self.rule.name, self._at, None, self.rule.severity)]
        return [*self.fired, *firing]


USAGE: Final = "vllm:kv_cache_usage_perc"
PREEMPTIONS: Final = "vllm:num_preemptions_total"
MEMORY: Final = "gpu_memory_used_ratio"

EVERY_SECONDS: Final = 60.0
"""Prometheus' default interval for evaluating rules."""

_GAP_SECONDS: Final = 1.5 * EVERY_SECONDS
_NAME: Final = re.compile(r"\bvllm:\w+")
_FORMERLY: Final = {"vllm:kv_cache_usage_perc": "vllm:gpu_cache_usage_perc"}


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
"""The alerts that people have without an exporter."""


def applicable_rules(spelled: Spelled, selection: Selection) -> Iterator[tuple[Rule, str]]:
    """Yield the rules whose series the Prometheus has, with the expression for the selected engines."""
    if spelled.table.prefix != "vllm:":
        return
    present = {f"vllm:{name.removeprefix(spelled.spelling)}": name for name in spelled.present}
    for rule in TODAY:
        names = {name: present.get(name) or present.get(_FORMERLY.get(name, name)) for name in _NAME.findall(rule.expr)}
        if names and all(names.values()):
            selected = {name: f"{own}{selection.and_also()}" for name, own in names.items()}
            yield rule, _NAME.sub(lambda match: selected[match[0]], rule.expr)  # noqa: B023 - used at once


def read_page(server: Prometheus, expr: str, spelled: Spelled, page: Span) -> RuleRows:
    """Return the times at which an expression holds in a page, by engine. Raises PrometheusError."""
    table, times = spelled.table, dict[EngineName, list[Span]]()
    for one in ranged(server, expr, page, EVERY_SECONDS):
        labels = one.get("metric", {})
        # Several Prometheus servers may scrape one engine: their series are joined.
        spans = times.setdefault(EngineName(target_of(labels, table).name, *labelled_engine(labels, table)), [])
        spans.extend(Span(t, t) for t, _ in one.get("values", ()))
    return [(key, [(span.start, span.end) for span in joined(spans, _GAP_SECONDS)]) for key, spans in times.items()]


def fired_copied(rule: Rule, answers: Sequence[RuleRows], until: float) -> dict[EngineName, list[Fired]]:
    """Return when a rule was true for long enough, by engine, from the answers of all pages."""
    true_spans, found = dict[EngineName, list[Span]](), dict[EngineName, list[Fired]]()
    for key, rows in (row for answer in answers for row in answer):
        true_spans.setdefault(EngineName(*key), []).extend(Span(*span) for span in rows)
    for engine, spans in true_spans.items():
        for span in joined(spans, _GAP_SECONDS):
            if span.seconds >= rule.for_seconds:
                ended = None if span.end > until - EVERY_SECONDS else span.end
                fired = Fired(rule.name, span.start + rule.for_seconds, ended, copied=True)
                found.setdefault(engine, []).append(fired)
    return found


def attach(incidents: Sequence[Json], copied: Mapping[EngineName, Sequence[Fired]]) -> list[Json]:
    """Add every copied alert to the incidents in which it fired, and return those that fired in none."""
    by_engine: dict[EngineName, list[Json]] = {}
    for incident in incidents:
        name = engine_of(incident)
        by_engine.setdefault(name._replace(rank=rank_of(name.rank)), []).append(incident)
    elsewhere = []
    for engine, alerts in copied.items():
        for fired in alerts:
            overlapping = [incident for incident in by_engine.get(engine, ()) if _overlaps(incident, fired)]
            for incident in overlapping:
                incident["fired"].append(fired.json())
            if not overlapping:
                names = {"target": engine.target, "model_name": engine.model_name, "engine": engine.rank}
                elsewhere.append({**names, "rule": fired.rule, "at": fired.at, "ended": fired.ended})
    return sorted(elsewhere, key=lambda one: (one["at"], one["target"], one["engine"], one["rule"]))


def _overlaps(incident: Json, fired: Fired) -> bool:
    began, ended = incident["began"], incident["ended"]
    before = fired.ended is None or fired.ended >= began - LATE_SECONDS
    return before and (ended is None or fired.at <= ended + LATE_SECONDS)
