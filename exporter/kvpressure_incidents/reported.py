"""What an exporter reported of the engines at the time.

It polls every second, reads GPUs, logs and pods, and may send requests of its own: it reports trouble that the engines'
own series do not show, and trouble that is over between two scrapes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from kvpressure.model.family import PREFIX
from kvpressure.model.verdict import DETAILS
from kvpressure.model.view import LOSING
from kvpressure.printable import distinct
from kvpressure.prometheus.client import Prometheus
from kvpressure.prometheus.names import Json, Target, quoted
from kvpressure.prometheus.paging import Span, ranged

EVERY_SECONDS: Final = 30.0


class Key(NamedTuple):
    """An engine by the labels that an exporter's series have."""

    cluster: str
    namespace: str
    pod: str
    target: str
    model_name: str
    engine: str


WHO: Final = Key._fields
_OTHERS: Final = ("exported_namespace", "exported_pod")
"""The engine's labels where Prometheus does not honor labels and uses the exporter's own pod for the others."""

Rows = list[tuple[dict[str, str], list[tuple[float, float, int]]]]
"""Labels of series, and begin, end and number of the samples of each stretch."""

ENGINE_LABELS: Final = (*WHO, *_OTHERS)
"""The labels that `key_of` reads."""

_LOSING: Final = {cause.value: cause for cause in LOSING}
_CAUSES: Final = "|".join(sorted(_LOSING))
_EXPR: Final = (
    f"max by ({', '.join(ENGINE_LABELS)}, cause, detail) "
    f"(max_over_time({PREFIX}bottleneck_info{{cause=~{quoted(_CAUSES)}}}[{EVERY_SECONDS:.0f}s]))"
)


@dataclass(slots=True)
class Reported:
    """Trouble of one engine as the exporter reported it, to half a minute."""

    began: float
    ended: float
    causes: Counter[tuple[str, str]] = field(default_factory=Counter)
    """How often each cause and detail was reported."""


def known_names(targets: Iterable[Target]) -> frozenset[str]:
    """Return the pods and addresses of the targets."""
    return frozenset(name for target in targets for name in (target.pod, target.get("instance")) if name)


def read_page(server: Prometheus, page: Span, known: frozenset[str]) -> Rows:
    """Return the verdicts on engines of `known_names` in a page, and their times. Raises PrometheusError."""
    rows = ((key_of(row[0]), row) for row in rows_of(server, _EXPR, page))
    return [row for key, row in rows if not known.isdisjoint((key.pod, _address(key)))]


def rows_of(server: Prometheus, expression: str, page: Span) -> Rows:
    """Return the series of an expression in a page, and when each had a value. Raises PrometheusError."""
    answer = ranged(server, expression, page, EVERY_SECONDS)
    return [(series["metric"], spans_of(t for t, _ in series["values"])) for series in answer]


def spans_of(times: Iterable[float]) -> list[tuple[float, float, int]]:
    """Return begin, end and number of times that follow each other, instead of millions of times.

    >>> spans_of([30.0, 60.0, 120.0, 300.0])
    [(30.0, 120.0, 3), (300.0, 300.0, 1)]
    """
    stretches: list[tuple[float, float, int]] = []
    for t in times:
        if stretches and t - stretches[-1][1] <= 2 * EVERY_SECONDS:
            begin, _, count = stretches[-1]
            stretches[-1] = (begin, t, count + 1)
        else:
            stretches.append((t, t, 1))
    return stretches


def troubles(answers: Iterable[Rows], gap: float) -> dict[Key, list[Reported]]:
    """Return the trouble of each engine, oldest first; what comes back within `gap` seconds is the same."""
    rows: dict[Key, list[tuple[float, float, int, tuple[str, str]]]] = {}
    for labels, spans in (row for answer in answers for row in answer):
        detail = labels.get("detail", "")
        if (cause := _LOSING.get(labels.get("cause", ""))) is None:
            continue  # not in the query
        # The detail may be one of another version.
        kind = (cause.value, detail if detail in DETAILS[cause] else "")
        rows.setdefault(key_of(labels), []).extend((begin, end, count, kind) for begin, end, count in spans)
    by_engine: dict[Key, list[Reported]] = {}
    for engine, stretches in rows.items():
        reported = by_engine.setdefault(engine, [])
        for begin, end, count, kind in sorted(stretches):
            # A value at `t` is of some moment of the half minute before.
            first, last = begin - EVERY_SECONDS / 2, end - EVERY_SECONDS / 2
            if not reported or first - reported[-1].ended > gap + EVERY_SECONDS:
                reported.append(Reported(first, last))
            reported[-1].ended = max(last, reported[-1].ended)
            reported[-1].causes[kind] += count
    return by_engine


def key_of(labels: Mapping[str, str]) -> Key:
    """Return the engine that the labels of an exporter's series name, "" for what they do not."""
    own = dict(labels)
    if own.get("exported_pod"):
        own |= {"pod": own["exported_pod"], "namespace": own.get("exported_namespace", "")}
    return Key(*(own.get(name, "") for name in WHO))


def _address(key: Key) -> str:
    """Return host and port at which the exporter polls the engine."""
    try:
        return urlsplit(key.target if "//" in key.target else f"//{key.target}").netloc
    except ValueError:  # a bracket without the other
        return ""


def is_of(key: Key, target: Target) -> bool:
    """Whether an exporter's engine is on the page of a target: by its pod, or by its address where it has none."""
    if key.cluster and target.get("cluster") not in {"", key.cluster}:
        return False
    if key.pod and target.pod:
        return key.pod == target.pod and (not key.namespace or target.namespace in {"", key.namespace})
    return target.get("instance") == _address(key) != ""


def page_of(key: Key, targets: Iterable[Target]) -> set[str]:
    """Return the names of the targets whose page an exporter's engine is on.

    Of several ports of one pod only its own.
    """
    own = [target for target in targets if is_of(key, target)]
    exact = [target for target in own if target.get("instance") == _address(key) != ""]
    return {target.name for target in exact or own}


def _together(
    by_engine: Mapping[Key, Sequence[Reported]], targets: Sequence[Target]
) -> dict[tuple[tuple[str, ...], str, str], list[Reported]]:
    """Return the trouble by names of targets, model and rank, once where several exporters reported it."""
    whole: dict[tuple[tuple[str, ...], str, str], list[Reported]] = {}
    near: dict[str, list[Target]] = {}
    for target in targets:
        for name in filter(None, {target.pod, target.get("instance")}):
            near.setdefault(name, []).append(target)
    for key, reported in by_engine.items():
        if names := page_of(key, (*near.get(key.pod, ()), *near.get(_address(key), ()))):
            whole.setdefault((tuple(sorted(names)), key.model_name, key.engine), []).extend(reported)
    for engine, reported in whole.items():
        merged: list[Reported] = []
        for trouble in sorted(reported, key=lambda trouble: trouble.began):
            if merged and trouble.began <= merged[-1].ended + EVERY_SECONDS:
                last = merged[-1]
                merged[-1] = Reported(last.began, max(last.ended, trouble.ended), last.causes + trouble.causes)
            else:
                merged.append(trouble)
        whole[engine] = merged
    return whole


def attach(
    incidents: Sequence[Json], by_engine: Mapping[Key, Sequence[Reported]], targets: Sequence[Target], shortest: float
) -> list[Json]:
    """Add to each incident what the exporter reported of it, and return the trouble that only the exporter reported."""
    alone: list[Json] = []
    for (names, model, rank), reported in _together(by_engine, targets).items():
        own = [
            incident
            for incident in incidents
            # A long name was cut where the exporter exported it.
            if incident["target"] in names
            and incident["engine"] == rank
            and distinct(incident["model_name"], len(model)) == model
        ]
        for trouble in reported:
            met = [incident for incident in own if _overlap(incident, trouble)]
            (cause, detail), _ = trouble.causes.most_common(1)[0]
            row = {"cause": cause, "detail": detail or None, "began": trouble.began, "ended": trouble.ended}
            row["seconds"] = seconds = trouble.ended - trouble.began
            for incident in met:
                if incident["exporter"] is None or seconds > incident["exporter"]["seconds"]:
                    incident["exporter"] = row
            if not met and seconds >= shortest - EVERY_SECONDS:
                alone.append({"target": names[0], "model_name": model, "engine": rank, **row})
    return sorted(alone, key=lambda incident: (incident["began"], incident["target"], incident["engine"]))


def _overlap(incident: Json, trouble: Reported) -> bool:
    """Whether both overlap, as far as their times are exact."""
    late = EVERY_SECONDS + 3 * float(incident["step_seconds"])
    end = incident["began"] + incident["seconds"]
    return bool(trouble.began <= end + late and incident["began"] <= trouble.ended + late)
