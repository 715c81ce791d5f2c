"""PURE: the texts of a look back that every output shares."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final, NamedTuple

from kvpressure.exposition.wording import duration, percent, quantity, rough, seconds
from kvpressure.model.catalogue import CATALOGUE as CAUSES
from kvpressure.model.catalogue import NOT_KNOWN, those
from kvpressure.model.values import clock
from kvpressure.model.verdict import DETAILS, Cause
from kvpressure.prometheus.names import Json

INDENT: Final = "  "
_CAPTION_COLUMNS: Final = 12
BEHIND_CAPTION: Final = INDENT + " " * _CAPTION_COLUMNS
_FOR_ROOM: Final = those(lambda row: row.for_room)
"""Their loss is counted from step times and the requests that wait, not from healthy time."""
COUNTED_RATIO: Final = 0.75
"""Share of an incident that must be judged for its lost tokens to be more than a guess."""
SURE_SAMPLES: Final = 8
"""With fewer samples, an incident's begin and end are too vague for its length."""
NO_ACTION: Final = (
    "nothing that is known: look at the engine's log of that time, and record its metrics (kvpressure record)"
)


class EngineName(NamedTuple):
    """An engine as reports name it."""

    target: str
    model_name: str
    rank: str


def engine_of(incident: Json) -> EngineName:
    """Return the engine of an incident."""
    return EngineName(incident["target"], incident["model_name"], incident["engine"])


def engine_name(place: Json) -> str:
    """Return the engine's name: target, model and rank."""
    return f"{place['target']} ({place['model_name']}, engine {place['engine']})"


def cause_label(incident: Json) -> str:
    """Return the cause and its detail."""
    return f"{CAUSES[Cause(incident['cause'])].label}{'/' + incident['detail'] if incident['detail'] else ''}"


def meaning(incident: Json) -> str:
    """Return what the cause means, as a sentence."""
    cause = Cause(incident["cause"])
    meaning = DETAILS[cause].get(incident["detail"] or "")
    return f"{meaning[:1].upper()}{meaning[1:]}." if meaning else CAUSES[cause].meaning


def when(incident: Json) -> str:
    """Return begin, end and length."""
    end = "still going on at the end" if incident["ended"] is None else f"to {clock(incident['ended'], day=True)}"
    text = f"{clock(incident['began'], day=True)} {end}, {duration(incident['seconds'])}"
    few = incident["seconds"] < SURE_SAMPLES * incident.get("step_seconds", 0.0)
    return f"{text}, exact to {duration(incident['step_seconds'])} at best" if few else text


def lost(incident: Json) -> str:
    """Return what it cost."""
    return f"{_lost(incident)}{_again(incident)}"


def _lost(incident: Json) -> str:
    tokens, time = incident["lost_tokens"], incident["lost_seconds"]
    if tokens is None or time is None:
        judged = incident.get("judged_seconds")
        if judged is not None and judged < COUNTED_RATIO * incident["seconds"]:
            return f"not counted: verdicts cover {duration(judged)} of it"
        return f"not known: {_why_not_known(incident)}"
    return f"about {rough(tokens)} tokens ({seconds(time)} of its output)" if tokens >= 1 else "no tokens"


def _why_not_known(incident: Json) -> str:
    """Return why it is not known what an engine would have generated without the incident."""
    if Cause(incident["cause"]) in _FOR_ROOM:
        return "its step times do not show what it would have generated with room for all"
    if (healthy := incident["healthy_seconds"]) > 0:
        return f"{duration(healthy)} of healthy time before it are not enough to compare with"
    return "no healthy time was seen before it to compare with"


def _again(incident: Json) -> str:
    """Return what was recomputed after evictions; "" for nothing, and for an incident of an older version."""
    tokens, time = incident.get("recomputed_tokens"), incident.get("recomputed_seconds")
    if tokens is None or time is None:
        return ""
    took = [f"{seconds(time)} of its time"]
    if (whole := incident.get("recomputed_gpu_seconds")) is not None:
        took.append(f"{whole:,.0f} GPU-seconds")
    if (money := incident.get("recomputed_money")) is not None:
        took.append(f"{money:,.2f} {incident['currency']}")
    return f"; about {rough(tokens)} prompt tokens computed again ({', '.join(took)})"


def alert_name(fired: Json) -> str:
    """Return the name of an alert, and its severity."""
    return f"{fired['alert']} ({fired['severity']})" if fired["severity"] else str(fired["alert"])


def fired(incident: Json) -> Iterator[str]:
    """Yield the alerts of kvpressure that fired, or that none did; nothing where that is not known."""
    if incident["fired"] is None:
        return
    if not incident["fired"]:
        yield "no alert of kvpressure named this engine or its model"
    for alert in incident["fired"]:
        late = alert["began"] - incident["began"]
        delay = f"{duration(late)} after it began" if late >= 0 else f"{duration(-late)} before it began"
        long = f"for {duration(alert['seconds'])}{' so far' if alert['ended'] is None else ''}"
        yield f"{alert_name(alert)}: {clock(alert['began'], day=True)}, {delay}, {long}"


def peak(incident: Json) -> str:
    """Return the highest values."""
    words = {
        "running": ("running", "sequences"),
        "waiting": ("waiting", "sequences"),
        "kv_usage_ratio": ("KV cache used", "ratio"),
        "preemptions_per_second": ("preemptions/s", "score"),
        "desired_replicas": ("replicas needed in its place", "sequences"),
    }
    known = ((incident["peak"].get(name), *shown) for name, shown in words.items())
    return ", ".join(f"{word} {quantity(value, unit)}" for value, word, unit in known if value is not None)


def exporter(incident: Json) -> str:
    """Return what an exporter reported of it at the time; "" where none did."""
    reported = incident["exporter"]
    return (
        ""
        if reported is None
        else f"reported {cause_label(reported)} from {clock(reported['began'])}, {duration(reported['seconds'])}"
    )


def change(action: Json, arrow: str) -> str:
    """Return what an action sets, behind a colon; "" where it sets nothing."""
    before = f"{action['current']} {arrow} " if action["current"] else ""
    return f": {before}{action['new']}" if action["new"] else ""


def _expected(action: Json) -> str:
    if action["expected"]:
        return str(action["expected"]["text"])
    return f"not predicted: {action['not_predicted']}" if action["not_predicted"] else ""


def lines(incident: Json) -> Iterator[str]:
    """Yield the lines of one incident, one for each thing that is known."""
    yield f"{cause_label(incident)}: {engine_name(incident)}"
    yield from (f"{INDENT}{caption:<{_CAPTION_COLUMNS}}{text}" for caption, text in _known(incident) if text)


def _known(incident: Json) -> Iterator[tuple[str, str]]:
    """Yield captions and texts, "" for what is not known."""
    yield "when", when(incident)
    yield "what", meaning(incident)
    yield "evidence", incident["grounds"]
    yield "exporter", exporter(incident)
    others = ((cause, time) for cause, time in incident["causes"].items() if cause != incident["cause"])
    yield "also", ", ".join(f"{CAUSES[Cause(cause)].label} {duration(time)}" for cause, time in others)
    if incident["confidence"] is not None:
        apart = f"from samples {incident['step_seconds']:.0f} s apart"
        yield "confidence", f"{percent(incident['confidence'])}, {apart}"
    yield "lost", lost(incident)
    yield "at most", peak(incident)
    for place, alert in enumerate(fired(incident)):
        yield "" if place else "alerts", alert
    if not incident["actions"]:
        yield "do", NO_ACTION
    for action in incident["actions"]:
        first = "do" if action["order"] == 1 else ""
        yield first, f"{action['order']}. {action['title']}{change(action, '->')}"
        yield "", f"   expected: {expected}" if (expected := _expected(action)) else ""
    yield from (("unknown", f"{missing['what']}: {missing['how']}") for missing in incident["missing"])


def summary(document: Json) -> Iterator[str]:
    """Yield the lines of the summary."""
    incidents = document["incidents"]
    span = f"{clock(document['since'], day=True)} to {clock(document['until'], day=True)}"
    yield f"{document['prometheus']}: {document['targets']} target{'s' * (document['targets'] != 1)}, {span}"
    if not incidents:
        yield f"No incident of {duration(document['shortest_seconds'])} or longer."
    else:
        known = [row["lost_tokens"] for row in incidents if row["lost_tokens"] is not None]
        cost = f", about {rough(sum(known))} tokens lost" if known else ""
        counts = Counter(CAUSES[Cause(row["cause"])].label for row in incidents)
        kinds = ", ".join(f"{count} {label}" for label, count in counts.most_common())
        time = duration(sum(row["seconds"] for row in incidents))
        plural = "incident" if len(incidents) == 1 else "incidents"
        yield f"{len(incidents)} {plural} ({kinds}), {time} together{cost}."
    if document["backtest"] is not None:
        yield from _backtest(document["backtest"], len(incidents))
    if document["has_rules"] is False:
        yield f"{INDENT}no rules of kvpressure in this Prometheus"
    for row in document["exporter_alone"]:
        yield f"{INDENT}only the exporter reported: {cause_label(row)}, {engine_name(row)}, {when(row)}"
    for row in document["unjudged"]:
        why = DETAILS[NOT_KNOWN].get(row["detail"] or "", "the evidence contradicts itself")
        yield f"{INDENT}unknown: {engine_name(row)}, {duration(row['seconds'])} with requests waiting: {why}"
    for row in document["unread"]:
        yield f"{INDENT}not read: {row['target']}: {row['why']}"
    for warning in document["warnings"]:
        yield f"{INDENT}the server warns: {warning}"


def _backtest(backtest: Json, before: int) -> Iterator[str]:
    """Yield how the other setting of thresholds differs."""
    changes = ", ".join(
        f"{name} {change['before']:g} -> {change['after']:g}" for name, change in backtest["changed_thresholds"].items()
    )
    yield f"With {changes or 'the same thresholds'}: {len(backtest['incidents'])} incidents instead of {before}."
    yield f"{INDENT}{backtest['same']} are the same"
    for key, text in (("only_before", "no longer found"), ("only_after", "found only then")):
        for row in backtest[key]:
            yield f"{INDENT}{text}: {cause_label(row)}, {engine_name(row)}, {when(row)}"
    for row in backtest["changed_cause"]:
        yield f"{INDENT}now {cause_label(row['after'])}: {cause_label(row['before'])}, {engine_name(row)}, {when(row)}"
