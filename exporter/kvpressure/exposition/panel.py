"""PURE: an engine and a GPU on the page, as rows for the templates."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from markupsafe import Markup

from kvpressure.exposition.charts import Line, bar, chart, fitted, minutes, strip
from kvpressure.exposition.wording import (
    NOT_KNOWN,
    STAGES,
    Shown,
    by_time,
    duration,
    failures_text,
    incident_text,
    meaning,
    percent,
    quantity,
    seconds,
    shown,
    standing_text,
    without_gpu_text,
)
from kvpressure.model.action import Action
from kvpressure.model.catalogue import CATALOGUE
from kvpressure.model.samples import SourceHealth
from kvpressure.model.target_status import replica_state, status_of_silent
from kvpressure.model.values import at, clock
from kvpressure.model.verdict import Cause, Diagnosis, Stage
from kvpressure.model.view import CALM, EngineKey, EngineView, GpuView, cause_of, role_of
from kvpressure.signals.history import History

SHOWN_CHANGES = 8
DAY_AFTER_SECONDS = 43_200.0
"""An older time is shown with its date."""


@dataclass(frozen=True, slots=True)
class Plot:
    """A chart of the page: its lines as (row of a history, caption), their unit, and the symptom whose limit is marked.

    A ratio or score is drawn from 0 to 1, anything else from 0 to the highest point.
    """

    lines: tuple[tuple[str, str], ...]
    unit: str = ""
    symptom: str = ""


PLOTS = (
    Plot((("kv", "KV used"),), "ratio", "kv_saturated"),
    Plot((("blocked", "admission blocked"),), "ratio", "admission_blocked"),
    Plot((("running", "running"), ("waiting", "waiting")), "requests"),
    Plot((("batch", "batch p95"),), "sequences", "batch_collapse"),
    Plot((("tokens", "generated tokens/s"),)),
    Plot((("latency", "end-to-end p95"),), "seconds"),
    Plot((("gpu_memory", "GPU memory"), ("gpu_busy", "GPU busy")), "ratio"),
    Plot((("score", "pressure score"),), "score"),
)


def engine_panel(
    view: EngineView,
    now: float,
    past: History | None,
    actions: Sequence[Action],
    runbook: str,
    *,
    selected: bool,
    unread: SourceHealth | None = None,
) -> dict[str, object]:
    """Return an engine's panel: open when in trouble or `selected`, without charts when `past` is None.

    `runbook` is the address of its runbook, "" without one; `unread` is the health of a target that cannot be read. The
    values of a silent engine are those of its last answer.
    """
    diagnosis, silence = view.diagnosis, view.silence
    cause = cause_of(view)
    status = status_of_silent(unread)
    calm = cause in CALM and silence is None
    numbered = [replace(action, order=order) for order, action in enumerate(actions, 1)]
    key, since = ident(view.key), diagnosis.since if diagnosis else 0.0
    return {
        "id": key,
        "key": view.key,
        "role": role_of(view.derived),
        "cause": cause.value,
        "label": CATALOGUE[cause].label,
        "meaning": meaning(diagnosis, view.runtime) if diagnosis else "No diagnosis has been made yet.",
        "stage": STAGES[diagnosis.stage] if diagnosis else "",
        "detail": diagnosis.detail if diagnosis else "",
        "grounds": diagnosis.grounds if diagnosis else "",
        "missing": diagnosis.missing if diagnosis else (),
        "calm": calm,
        "silent": f"{status.state} for {duration(silence.seconds)}" if silence else "",
        "state": replica_state(view, status) or "",
        "failures": failures_text(view.derived),
        "error": unread.error if unread else "",
        "uncharted": past is None,
        "open": selected or not calm,
        "since": clock(since, day=now - since > DAY_AFTER_SECONDS) if since > 0 else "",
        "incident": incident_text(view.incident, now),
        "facts": _facts(view, now if silence is None else view.t, calm=calm),
        "evidence": _evidence(diagnosis),
        "working_set": working_set(view),
        "actions": by_time(numbered),
        "without_gpu": without_gpu_text(numbered),
        "standing": standing_text(actions[0] if actions else None),
        "runbook": runbook,
        **_past(key, past, diagnosis),
    }


def gpu_card(view: GpuView, past: History | None) -> dict[str, object]:
    """Return a GPU's card: memory and utilization, and their history."""
    sample = view.sample
    used, total = sample.memory_used_bytes, sample.memory_total_bytes
    memory = used / total if used is not None and total else None
    busy = at(view.derived, "gpu_utilization_ratio")
    texts = shown(memory, "ratio").text, shown(busy, "ratio").text
    return {
        "sample": sample,
        "memory": f"{texts[0]} of {total / 2**30:,.0f} GiB" if memory is not None and total else NOT_KNOWN,
        "busy": texts[1],
        "memory_bar": bar(memory, "a", f"memory {texts[0]}"),
        "busy_bar": bar(busy, "b", f"utilization {texts[1]}"),
        "chart": _gpu_chart(view, past) if past else "",
    }


def ident(key: EngineKey | tuple[str, ...]) -> str:
    """Return a constant HTML id of the engine or GPU, whatever characters its names contain."""
    whole = "\0".join(key).encode("utf-8", "surrogatepass")
    return "e" + hashlib.blake2s(whole, digest_size=8).hexdigest()


def _facts(view: EngineView, now: float, *, calm: bool) -> list[Shown]:
    """Return the numbers of an engine's first line: those of the verdict first in trouble, last otherwise."""
    derived = view.derived
    state = [
        shown(at(derived, "requests_running"), "requests", "running"),
        shown(at(derived, "requests_waiting"), "requests", "waiting"),
        shown(at(derived, "kv_cache_usage_ratio"), "ratio", "KV used"),
        shown(at(derived, "tokens_per_second", "generation"), "", "tokens/s"),
    ]
    if (diagnosis := view.diagnosis) is None:
        return state
    verdict = [
        Shown(duration(now - diagnosis.since) if diagnosis.since > 0 else NOT_KNOWN, "", "for"),
        shown(diagnosis.confidence, "ratio", "confidence"),
        shown(diagnosis.score, "score", "score"),
    ]
    full_in = at(derived, "kv_exhaustion_seconds")
    if diagnosis.stage is Stage.BUILDING and full_in is not None:
        when = f"in {duration(full_in)}" if full_in >= 1 else "now"
        verdict.append(Shown(when, repr(full_in), "no room for a prompt"))
    return [*state, *verdict[-1:]] if calm else [*verdict, *state]


def _evidence(diagnosis: Diagnosis | None) -> dict[str, object]:
    """Return the symptoms' rows: true ones first, the rest below a line that counts them."""
    rows: list[dict[str, object]] = [
        {
            "symptom": evidence.symptom,
            "verdict": _VERDICTS[evidence.state],
            "value": None if evidence.value is None else shown(evidence.value, evidence.unit),
            "threshold": None if evidence.threshold is None else shown(evidence.threshold, evidence.unit),
            "text": evidence.text,
        }
        for evidence in (diagnosis.symptoms.values() if diagnosis else ())
    ]
    true, false, unknown = ([row for row in rows if row["verdict"] == verdict] for verdict in _VERDICTS.values())
    counts = [f"{len(symptoms)} {word}" for symptoms, word in ((false, "false"), (unknown, NOT_KNOWN)) if symptoms]
    return {"true": true, "rest": [*false, *unknown], "rest_label": "Other symptoms: " + ", ".join(counts)}


def _past(key: str, past: History | None, diagnosis: Diagnosis | None) -> dict[str, object]:
    if past is None:
        return {"charts": [], "strip": "", "changes": [], "minutes": 0}
    past = fitted(past)
    changes: list[dict[str, str]] = [
        {"cause": span.cause, "label": CATALOGUE[Cause(span.cause)].label, "since": clock(span.since)}
        for span in past.causes
    ]
    text = "; ".join(f"{change['label']} from {change['since']}" for change in changes)
    charts = [_plot(f"{key}-c{number}", plot, past, diagnosis) for number, plot in enumerate(PLOTS)]
    return {
        "charts": [each for each in charts if each],
        "strip": strip(f"{key}-causes", f"Causes over the last {minutes(past)} minutes: {text or NOT_KNOWN}", past),
        "changes": changes[-SHOWN_CHANGES:],
        "minutes": minutes(past),
    }


def _plot(key: str, plot: Plot, past: History, diagnosis: Diagnosis | None) -> dict[str, object] | None:
    """Return a chart with its captions, None while no point of it is known."""
    lines = [Line(label, past.values[row], style) for (row, label), style in zip(plot.lines, "ab", strict=False)]
    known = [value for line in lines for value in line.known]
    if not known:
        return None
    evidence = diagnosis.symptoms.get(plot.symptom) if diagnosis else None
    low, high = quantity(min(known), plot.unit), quantity(max(known), plot.unit)
    now = " · ".join(_latest(line, plot.unit) for line in lines)
    what = " and ".join(line.label for line in lines)
    described = f"{what} over the last {minutes(past)} minutes: now {now}, {low} to {high}"
    top = 1.0 if plot.unit in ("ratio", "score") else max(*known, 1e-9)
    mark = evidence.threshold if evidence and evidence.unit == plot.unit else None
    return {
        "lines": lines,
        "now": now,
        "low": f"min {low}",
        "high": f"max {high}",
        "svg": chart(key, described, lines, top, past, mark),
    }


def _latest(line: Line, unit: str) -> str:
    newest = line.values[-1]
    return NOT_KNOWN if math.isnan(newest) else quantity(newest, unit)


def _gpu_chart(view: GpuView, past: History) -> Markup | str:
    past = fitted(past)
    lines = [Line("memory", past.values["memory"], "a"), Line("utilization", past.values["busy"], "b")]
    if not any(line.known for line in lines):
        return ""
    text = ", ".join(f"{line.label} now {_latest(line, 'ratio')}" for line in lines)
    return chart(ident(view.labels), f"Over the last {minutes(past)} minutes: {text}", lines, 1.0, past, None)


_VERDICTS: Mapping[bool | None, str] = {True: "true", False: "false", None: NOT_KNOWN}


LEAST_RATIO: Final = 0.01
"""Share of prompt tokens computed again, below which nothing is shown."""


def working_set(view: EngineView) -> dict[str, str]:
    """Return the known rows by their caption, none where (nearly) nothing is computed again."""
    again, computed = (at(view.derived, f"{what}_prompt_tokens_per_second") for what in ("recomputed", "computed"))
    if again is None or not computed or again < LEAST_RATIO * computed:
        return {}
    share, takes = min(1.0, again / computed), at(view.derived, "recomputed_time_ratio")
    time = "" if takes is None else f", {percent(takes)} of the engine's time"
    rows = {
        "computed again": f"{percent(share)} of the prompt tokens computed{time}",
        "prefix hits": ", ".join(_hits(view)),
        "with a larger pool": ", ".join(_larger(view)),
        "turnover": ", ".join(_ages(view)),
    }
    return {caption: text for caption, text in rows.items() if text}


def _hits(view: EngineView) -> Iterator[str]:
    hits = at(view.derived, "prefix_cache_hit_ratio")
    before = None if view.observed is None else view.observed.hit_ratio_before
    if hits is not None:
        yield f"{percent(hits)} now"
        if before is not None and before > hits:
            yield f"{percent(before)} at a slower turnover"


def _larger(view: EngineView) -> Iterator[str]:
    pools = view.derived.get("prefix_cache_pool_hit_ratio")
    for pool in sorted(pools, key=float) if isinstance(pools, Mapping) else ():
        if (ratio := at(view.derived, "prefix_cache_pool_hit_ratio", pool)) is not None:
            yield f"{percent(ratio)} at {pool}x"


def _ages(view: EngineView) -> Iterator[str]:
    turnover, least, most, timed = (
        at(view.derived, f"cache_{name}_seconds")
        for name in ("turnover", "eviction_age_min", "eviction_age_max", "eviction_age")
    )
    if turnover is not None:
        yield seconds(turnover)
    if timed is not None:
        yield f"unused blocks are kept {seconds(timed)} on average, as the engine times them"
    elif least is not None and most is not None:
        yield f"unused blocks are kept {seconds(least)} to {seconds(most)}"
