"""What an exporter that was there told at the time, of the engines that are looked back at.

It polls every second, sees GPUs, logs and pods, and may send requests of its own: it tells of trouble that shows in
none of the engines' own series, and of trouble that is over between two scrapes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

from kvpressure.model.family import PREFIX
from kvpressure.model.verdict import DETAILS
from kvpressure.model.view import LOSING
from kvpressure.printable import distinct
from kvpressure.tools.incidents.client import Prometheus
from kvpressure.tools.incidents.names import Target, quoted
from kvpressure.tools.incidents.paging import Series, Span, asked, pages
from kvpressure.tools.incidents.remembered import ToldRows

EVERY_SECONDS: Final = 30.0
PAGE_SECONDS: Final = 86_400.0
SHORTEST_PAGE_SECONDS: Final = 900.0

Json = dict[str, Any]


class Key(NamedTuple):
    """An engine by the labels that an exporter's series have."""

    cluster: str
    namespace: str
    pod: str
    target: str
    model_name: str
    engine: str


Engine = tuple[tuple[str, ...], str, str]
"""Names of targets, model and rank."""

WHO: Final = Key._fields
_OTHERS: Final = ("exported_namespace", "exported_pod")
"""What a Prometheus that does not honor labels calls an engine's, beside those of the exporter's own pod."""

_LOSING: Final = {cause.value: cause for cause in LOSING}
_CAUSES: Final = "|".join(sorted(_LOSING))
_EXPR: Final = (
    f"max by ({', '.join((*WHO, *_OTHERS))}, cause, detail) "
    f"(max_over_time({PREFIX}bottleneck_info{{cause=~{quoted(_CAUSES)}}}[{EVERY_SECONDS:.0f}s]))"
)


@dataclass(slots=True)
class Reported:
    """Trouble of one engine as the exporter told it, to half a minute."""

    began: float
    ended: float
    told: Counter[tuple[str, str]] = field(default_factory=Counter)
    """How often each cause and detail was seen."""

    @property
    def seconds(self) -> float:
        """How long it took."""
        return self.ended - self.began


def page_list(span: Span) -> Iterator[Span]:
    """Return the pages in which to ask."""
    return pages(span, EVERY_SECONDS, PAGE_SECONDS)


@dataclass(frozen=True, slots=True)
class Known:
    """Pods and addresses of the engines that are looked at: what is told of others is let go at once."""

    pods: frozenset[str]
    addresses: frozenset[str]

    @classmethod
    def of(cls, targets: Iterable[Target]) -> Known:
        """Those of targets."""
        both = [(target.pod, target.get("instance")) for target in targets]
        return cls(frozenset(pod for pod, _ in both if pod), frozenset(address for _, address in both if address))

    def may_be(self, key: Key) -> bool:
        """Whether this may be an engine of theirs."""
        return key.pod in self.pods or _address(key) in self.addresses


def ask(server: Prometheus, page: Span, known: Known) -> ToldRows:
    """Who was told to be in which trouble in a page, and when. Raises PrometheusError."""

    def answer(span: Span) -> Series:
        return server.range(_EXPR, span.start, span.end, EVERY_SECONDS)

    return [
        (one["metric"], spans_of(t for t, _ in one["values"]))
        for _, series in asked(page, EVERY_SECONDS, SHORTEST_PAGE_SECONDS, answer)
        for one in series
        if known.may_be(_key(one["metric"]))
    ]


def spans_of(times: Iterable[float]) -> list[tuple[float, float, int]]:
    """Begin, end and number of times that follow each other, however often the exporter is scraped.

    A month of a fleet in trouble would be millions of times.

    >>> spans_of([30.0, 60.0, 120.0, 300.0])
    [(30.0, 120.0, 3), (300.0, 300.0, 1)]
    """
    found: list[tuple[float, float, int]] = []
    for t in times:
        if found and t - found[-1][1] <= 2 * EVERY_SECONDS:
            begin, _, count = found[-1]
            found[-1] = (begin, t, count + 1)
        else:
            found.append((t, t, 1))
    return found


def troubles(answers: Iterable[ToldRows], gap: float) -> dict[Key, list[Reported]]:
    """By engine, oldest first; trouble that comes back within `gap` seconds is the same."""
    seen: dict[Key, list[tuple[float, float, int, tuple[str, str]]]] = {}
    for labels, spans in (row for answer in answers for row in answer):
        detail = labels.get("detail", "")
        if (cause := _LOSING.get(labels.get("cause", ""))) is None:
            continue  # nobody asked for that
        # Another version's word for a kind of it would mean nothing here.
        told = (cause.value, detail if detail in DETAILS[cause] else "")
        seen.setdefault(_key(labels), []).extend((begin, end, count, told) for begin, end, count in spans)
    found: dict[Key, list[Reported]] = {}
    for engine, stretches in seen.items():
        its = found.setdefault(engine, [])
        for begin, end, count, kind in sorted(stretches):
            # A value at `t` is of some moment of the half minute before.
            first, last = begin - EVERY_SECONDS / 2, end - EVERY_SECONDS / 2
            if not its or first - its[-1].ended > gap + EVERY_SECONDS:
                its.append(Reported(first, last))
            its[-1].ended = max(last, its[-1].ended)
            its[-1].told[kind] += count
    return found


def _key(labels: Mapping[str, str]) -> Key:
    own = dict(labels)
    if own.get("exported_pod"):
        own |= {"pod": own["exported_pod"], "namespace": own.get("exported_namespace", "")}
    return Key(*(own.get(name, "") for name in WHO))


def _address(key: Key) -> str:
    """Host and port at which the exporter asked the engine."""
    polled = key.target
    try:
        return urlsplit(polled if "//" in polled else f"//{polled}").netloc
    except ValueError:  # a bracket without the other: no address of ours
        return ""


def is_of(key: Key, target: Target) -> bool:
    """Whether an exporter's engine is on the page of a target: by its pod, or by its address where it has none."""
    cluster, namespace, pod = key.cluster, key.namespace, key.pod
    if cluster and target.get("cluster") and cluster != target.get("cluster"):
        return False
    if pod and target.pod:
        return pod == target.pod and (not namespace or not target.namespace or namespace == target.namespace)
    address = _address(key)
    return bool(address) and address == target.get("instance")


def page_of(key: Key, targets: Iterable[Target]) -> set[str]:
    """Return the names of the targets whose page an exporter's engine is on.

    Of several ports of one pod only its own.
    """
    its = [target for target in targets if is_of(key, target)]
    exact = [target for target in its if target.get("instance") == _address(key) != ""]
    return {target.name for target in exact or its}


def _together(found: Mapping[Key, Sequence[Reported]], targets: Sequence[Target]) -> dict[Engine, list[Reported]]:
    """By the engine as it is known here: several exporters, at several addresses, told the same trouble once."""
    whole: dict[Engine, list[Reported]] = {}
    near: dict[str, list[Target]] = {}
    for target in targets:
        for name in filter(None, {target.pod, target.get("instance")}):
            near.setdefault(name, []).append(target)
    for key, its in found.items():
        if names := page_of(key, (*near.get(key.pod, ()), *near.get(_address(key), ()))):
            whole.setdefault((tuple(sorted(names)), key.model_name, key.engine), []).extend(its)
    for engine, its in whole.items():
        merged: list[Reported] = []
        for one in sorted(its, key=lambda one: one.began):
            if merged and one.began <= merged[-1].ended + EVERY_SECONDS:
                last = merged[-1]
                merged[-1] = Reported(last.began, max(last.ended, one.ended), last.told + one.told)
            else:
                merged.append(one)
        whole[engine] = merged
    return whole


def attach(
    incidents: Sequence[Json], found: Mapping[Key, Sequence[Reported]], targets: Sequence[Target], shortest: float
) -> list[Json]:
    """Put to each incident what the exporter told of it, and give the trouble that it alone told of."""
    alone: list[Json] = []
    for (names, model, rank), its in _together(found, targets).items():
        mine = [
            one
            for one in incidents
            # A long name was cut where the exporter told it.
            if one["target"] in names and one["engine"] == rank and distinct(one["model_name"], len(model)) == model
        ]
        for trouble in its:
            met = [one for one in mine if _overlap(one, trouble)]
            for one in met:
                known = one["exporter"]
                if known is None or trouble.seconds > known["seconds"]:
                    one["exporter"] = _told(trouble)
            if not met and trouble.seconds >= shortest - EVERY_SECONDS:
                who = {"target": names[0], "model_name": model, "engine": rank}
                alone.append({**who, **_told(trouble)})
    return sorted(alone, key=lambda one: (one["began"], one["target"], one["engine"]))


def _told(trouble: Reported) -> Json:
    (cause, detail), _ = trouble.told.most_common(1)[0]
    return {
        "cause": cause,
        "detail": detail or None,
        "began": trouble.began,
        "ended": trouble.ended,
        "seconds": trouble.seconds,
    }


def _overlap(incident: Json, trouble: Reported) -> bool:
    """Within what either may be late."""
    late = EVERY_SECONDS + 3 * float(incident["step_seconds"])
    end = incident["began"] + incident["seconds"]
    return bool(trouble.began <= end + late and incident["began"] <= trouble.ended + late)
