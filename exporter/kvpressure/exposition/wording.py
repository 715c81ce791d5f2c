"""PURE: verdicts, incidents, numbers, units and times in words for people."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final

from kvpressure.model.action import AFTER, NOW, Action, step_without_gpu, why_none_without_gpu
from kvpressure.model.catalogue import CATALOGUE
from kvpressure.model.incident import Incident
from kvpressure.model.values import Value, at, clock
from kvpressure.model.verdict import DETAILS, Cause, Diagnosis, Stage
from kvpressure.runtimes.registry import named

STAGES: dict[Stage, str] = {
    Stage.NONE: "",
    Stage.BUILDING: "pressure building",
    Stage.COLLAPSED: "collapsed",
    Stage.FAILING: "failing",
}
TIMES: Final = {NOW: "Now, without a restart", AFTER: "After the incident", "": "To know"}
"""When to take an action, in words."""
_RESTARTS: Final = frozenset({"apply", "restart"})
"""Actions that restart the server, taken now where it is stuck."""
NOT_KNOWN = "not known"
SHOWN_SECONDS: Final = 86_400.0
"""An incident that ended longer ago is not shown."""


def by_time(actions: Iterable[Action]) -> list[tuple[str, list[Action]]]:
    """Return the actions in their order, grouped by when to take them."""
    groups = [(when, list(group)) for when, group in groupby(actions, key=lambda action: action.when)]
    restarts = [when == NOW and any(action.key in _RESTARTS for action in group) for when, group in groups]
    return [("Now" if now else TIMES[when], group) for now, (when, group) in zip(restarts, groups, strict=True)]


def standing_text(first: Action | None) -> str:
    """Return since when the first step has stood, and why it replaced another; "" before it is settled."""
    if first is None or first.since is None:
        return ""
    revised = f"; another was advised before, and {first.revised}" if first.revised else ""
    return f"The first step has been the same since {clock(first.since)}{revised}."


def without_gpu_text(actions: Sequence[Action]) -> str:
    """Return the best step that needs no more GPUs with its prediction, or why there is none; "" where none is needed.

    It stands beside a first step that needs some.
    """
    if not actions or not actions[0].needs_gpu:
        return ""
    step = step_without_gpu(actions)
    if step is None:
        return f"Without a GPU: {why_none_without_gpu(actions)}"
    change = f": {' -> '.join(filter(None, (step.current, step.new)))}" if step.new else ""
    effect = f"; {step.expectation}" if step.expectation else ""
    return f"Without a GPU: step {step.order}, {step.title}{change}{effect}."


def meaning(diagnosis: Diagnosis, runtime: str = "") -> str:
    """Return the verdict as a sentence: the detail of its cause where there is one, by its flags, else the cause."""
    text = DETAILS[diagnosis.cause].get(diagnosis.detail, "")
    for name, own in named(runtime).advice.words.limits.items():
        text = text if own.replace("-", "_") == name else text.replace(name, own)
    return f"{text[:1].upper()}{text[1:]}." if text else CATALOGUE[diagnosis.cause].meaning


@dataclass(frozen=True, slots=True)
class Shown:
    """A number in words, and `raw` for programs: the value in the JSON document."""

    text: str
    raw: str = ""
    before: str = ""


def shown(value: float | None, unit: str = "", before: str = "") -> Shown:
    """Return a value in its unit, `before` being a caption; "not known" for None and NaN."""
    if value is None or math.isnan(value):
        return Shown(NOT_KNOWN, "", before)
    return Shown(quantity(value, unit), repr(float(value)), before)


def quantity(value: float, unit: str = "") -> str:
    """Return a value in its unit.

    >>> quantity(0.934, "ratio"), quantity(2.25, "factor"), quantity(0.034, "seconds"), quantity(28.1, "sequences")
    ('93%', '2.2x', '34 ms', '28')
    """
    if math.isinf(value):
        return "-∞" if value < 0 else "∞"
    if unit in _FORMS:
        return _FORMS[unit](value)
    return f"{count(value)} {unit.replace('_', ' ')}"


def percent(value: float) -> str:
    """Return a share in percent; one that is neither 0 nor 1 is not rounded to 0% or 100%.

    >>> percent(0.934), percent(0.9996), percent(0.00006), percent(0.0)
    ('93%', '>99%', '<1%', '0%')
    """
    if 0.0 < value < 0.005:
        return "<1%"
    return ">99%" if 0.995 <= value < 1.0 else f"{value:.0%}"


def seconds(value: float) -> str:
    """Return a latency in ms or s.

    >>> seconds(0.034), seconds(1.5), seconds(75.0), seconds(0.0)
    ('34 ms', '1.5 s', '75 s', '0 s')
    """
    if 0 < abs(value) < 1:
        return f"{value * 1000:.0f} ms" if value >= 0.01 else f"{value * 1000:.2g} ms"
    return f"{value:.1f} s" if 0 < abs(value) < 10 else f"{value:,.0f} s"


def count(value: float) -> str:
    """Return a number with as many digits as it needs.

    >>> count(12345.6), count(28.12), count(2.96), count(3.0), count(0.004)
    ('12,346', '28', '3.0', '3', '0.004')
    """
    if value == int(value) or abs(value) >= 10:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 0.1 else f"{value:.2g}"


def requests(value: float) -> str:
    """Return a mean number of requests.

    >>> requests(0.03), requests(0.0), requests(12.6)
    ('<0.1', '0', '13')
    """
    return "<0.1" if 0 < value < 0.1 else count(value)


def duration(total: float) -> str:
    """Return a length of time in its two largest units.

    >>> duration(42.0), duration(151.0), duration(7300.0), duration(200000.0)
    ('42 s', '2 min 31 s', '2 h 1 min', '2 d 7 h')
    """
    whole = max(0, int(total))
    for size, name, below, below_name in ((86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if whole >= size:
            return f"{whole // size} {name} {whole % size // below} {below_name}"
    return f"{whole} s"


_FAILURES: Final = {
    "server_error": "answered with an error (5xx)",
    "error": "ended by an error",
    "abort": "aborted",
    "gateway": "failed at the gateway, of each engine",
}


def failures_text(derived: Mapping[str, Value]) -> str:
    """Return how many requests a second fail, and how; "" while none does."""
    rates = {kind: at(derived, "failed_requests_per_second", kind) or 0.0 for kind in _FAILURES}
    return ", ".join(f"{rate:.2g} requests/s {_FAILURES[kind]}" for kind, rate in rates.items() if rate > 0)


def incident_text(incident: Incident | None, now: float) -> str:
    """Return the current or the last incident as text; "" without one, or where it ended a day ago."""
    if incident is None or (incident.ended is not None and now - incident.ended > SHOWN_SECONDS):
        return ""
    if incident.ended is None:
        return f"This incident: {duration(incident.seconds)}{_lost(incident)}{_again(incident)}."
    span = f"{clock(incident.began)} to {clock(incident.ended)}"
    head = f"Last incident: {CATALOGUE[incident.cause].label}, {span}, {duration(incident.seconds)}"
    head += f"{_lost(incident)}{_again(incident)}."
    return f"{head} {earned}" if (earned := _earned(incident)) else head


def rough(tokens: float) -> str:
    """Return tokens rounded to two significant digits.

    >>> rough(412_345), rough(2_345_678), rough(840)
    ('410 k', '2.3 M', '840')
    """
    digits = float(f"{tokens:.2g}")
    for size, unit in ((1e6, "M"), (1e3, "k")):
        if digits >= size:
            return f"{digits / size:.3g} {unit}"
    return f"{digits:.0f}"


def incident_json(incident: Incident | None) -> Mapping[str, object] | None:
    """Return the incident as JSON; None without one."""
    if incident is None:
        return None
    since = incident.since
    return {
        "cause": incident.cause.value,
        "began": incident.began,
        "ended": incident.ended,
        "seconds": round(incident.seconds, 3),
        "tokens_per_second": round(incident.tokens_per_second, 3),
        "lost_tokens": None if incident.lost_tokens is None else round(incident.lost_tokens),
        "lost_seconds": None if incident.lost_seconds is None else round(incident.lost_seconds, 3),
        "lost_money": _rounded(incident.money, 4),
        "recomputed_tokens": None if incident.recomputed_tokens is None else round(incident.recomputed_tokens),
        "recomputed_seconds": _rounded(incident.recomputed_seconds, 3),
        "recomputed_money": _rounded(incident.recomputed_money, 4),
        "currency": incident.price.currency if incident.price else None,
        "restarted": incident.restarted,
        "since": since and {"seconds": round(since.seconds, 3), "tokens_per_second": round(since.tokens_per_second, 3)},
        "earned_tokens_per_second": incident.earned_tokens_per_second,
    }


def _lost(incident: Incident) -> str:
    tokens, time = incident.lost_tokens, incident.lost_seconds
    if tokens is None or time is None:
        return ", lost tokens not known (its healthy rate is not known yet)"
    if tokens < 1:
        return ", no tokens lost"
    paid = _paid(incident, incident.money)
    return f", about {rough(tokens)} tokens lost ({seconds(time)} of healthy output){paid}"


def _again(incident: Incident) -> str:
    """Return what was computed again, "" where nothing was."""
    tokens, time = incident.recomputed_tokens, incident.recomputed_seconds
    if tokens is None or time is None:
        return ""
    paid = _paid(incident, incident.recomputed_money)
    return f", about {rough(tokens)} prompt tokens computed again ({seconds(time)} of its time){paid}"


def _paid(incident: Incident, money: float | None) -> str:
    return "" if money is None or incident.price is None else f": {money:,.2f} {incident.price.currency}"


def _rounded(value: float | None, digits: int) -> float | None:
    return None if value is None else round(value, digits)


def _earned(incident: Incident) -> str:
    more, since = incident.earned_tokens_per_second, incident.since
    if more is None or since is None:
        return ""
    after = "a restart" if incident.restarted else "its end"
    gained = f" (+{percent(more / incident.tokens_per_second)})" if incident.tokens_per_second else ""
    return (
        f"Since {after}: {count(since.tokens_per_second)} tokens/s over {duration(since.seconds)}, "
        f"{count(incident.tokens_per_second)} during it{gained}."
    )


_FORMS: Mapping[str, Callable[[float], str]] = {
    "": count,
    "sequences": count,
    "requests": requests,
    "ratio": percent,
    "score": "{:.2f}".format,
    "factor": "{:.1f}x".format,
    "seconds": seconds,
    "bytes": lambda value: f"{value / 2**30:,.1f} GiB",
}


_SERIES: Final = r'kvpressure_(\w+)(?:\{(?:[^"}]|"(?:[^"\\]|\\.)*")*\})?'
_QUERY: Final = re.compile(rf"(absent\()?{_SERIES}")
_RATE: Final = re.compile(rf"rate\({_SERIES}\[\w+\]\)")


def query_in_words(check: str) -> str:
    """Return a query in the words of `triage --full` and `triage --json`, any other sentence as it is.

    >>> query_in_words('kvpressure_preempted_request_ratio{namespace="prod"} < 0.01  # now 0.2')
    '- preempted_request_ratio < 0.01  (now 0.2)'
    >>> query_in_words('rate(kvpressure_tokens_total{kind="generation"}[2m]) > 0')
    '- tokens_per_second > 0'
    """
    if rate := _RATE.match(check):
        check = check.replace(rate[0], f"kvpressure_{rate[1].removesuffix('_total')}_per_second")
    if (query := _QUERY.match(check)) is None:
        return check
    if query[2] == "bottleneck" and (cause := re.search('cause="([a-z_]+)"', query[0])):
        return f"- the verdict is not {CATALOGUE[Cause(cause[1])].label}"
    if query[1]:
        return f"- no {query[2]}"
    name = query[2].replace("_quantile", " p95") if 'quantile="0.95"' in query[0] else query[2]
    return "- " + re.sub(r"#\s*(.*)$", r"(\1)", check.replace(query[0], name))
