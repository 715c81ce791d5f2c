"""What an exporter that was there told at the time, of the engines that are looked back at.

It polls every second, sees GPUs, logs and pods, and may send requests of its own: it tells of trouble that shows in
none of the engines' own series, and of trouble that is over between two scrapes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import urlsplit

from kvpressure.exposition.families import PREFIX
from kvpressure.lookback.client import Prometheus
from kvpressure.lookback.names import Target, quoted
from kvpressure.lookback.paging import Series, Span, asked, pages
from kvpressure.model.incident import LOSING
from kvpressure.model.verdict import DETAILS, Cause

EVERY_SECONDS: Final = 30.0
PAGE_SECONDS: Final = 86_400.0
SHORTEST_PAGE_SECONDS: Final = 900.0

Json = dict[str, Any]
Key = tuple[str, str, str, str, str, str]
"""Values of WHO."""

WHO: Final = ("cluster", "namespace", "pod", "target", "model_name", "engine")
_CAUSES: Final = "|".join(sorted(cause.value for cause in LOSING))
_EXPR: Final = (
    f"max by ({', '.join(WHO)}, cause, detail) "
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
    """The pages in which to ask."""
    return pages(span, EVERY_SECONDS, PAGE_SECONDS)


def ask(server: Prometheus, page: Span) -> list[Json]:
    """Who was told to be in which trouble in a page, and when. Raises PrometheusError."""

    def answer(span: Span) -> Series:
        return server.range(_EXPR, span.start, span.end, EVERY_SECONDS)

    return [
        {"labels": one.get("metric", {}), "times": [float(t) for t, _ in one.get("values", ())]}
        for _, series in asked(page, EVERY_SECONDS, SHORTEST_PAGE_SECONDS, answer)
        for one in series
    ]


def troubles(answers: Iterable[Sequence[Json]], gap: float) -> dict[Key, list[Reported]]:
    """By engine, oldest first; trouble that comes back within `gap` seconds is the same."""
    seen: dict[Key, dict[float, tuple[str, str]]] = {}
    for row in (row for answer in answers for row in answer):
        labels: Mapping[str, str] = row["labels"]
        key = tuple(labels.get(name, "") for name in WHO)
        moments = seen.setdefault((key[0], key[1], key[2], key[3], key[4], key[5]), {})
        cause, detail = Cause(labels.get("cause", "")), labels.get("detail", "")
        # Another version's word for a kind of it would mean nothing here.
        told = (cause.value, detail if detail in DETAILS[cause] else "")
        moments.update((t, told) for t in row["times"])
    found: dict[Key, list[Reported]] = {}
    for engine, moments in seen.items():
        its = found.setdefault(engine, [])
        for t, kind in sorted(moments.items()):
            # A value at `t` is of some moment of the half minute before.
            if not its or t - EVERY_SECONDS / 2 - its[-1].ended > gap + EVERY_SECONDS:
                its.append(Reported(t - EVERY_SECONDS / 2, t - EVERY_SECONDS / 2))
            its[-1].ended = t - EVERY_SECONDS / 2
            its[-1].told[kind] += 1
    return found


def is_of(key: Key, target: Target) -> bool:
    """Whether an exporter's engine is on the page of a target: by its pod, or by its address where it has none."""
    cluster, namespace, pod, polled = key[:4]
    if cluster and target.get("cluster") and cluster != target.get("cluster"):
        return False
    if pod and target.pod:
        return pod == target.pod and (not namespace or not target.namespace or namespace == target.namespace)
    address = urlsplit(polled if "//" in polled else f"//{polled}").netloc
    return bool(address) and address == target.get("instance")


def attach(
    incidents: Sequence[Json], found: Mapping[Key, Sequence[Reported]], targets: Sequence[Target], shortest: float
) -> list[Json]:
    """Puts to each incident what the exporter told of it, and gives the trouble that it alone told of."""
    alone: list[Json] = []
    for key, its in found.items():
        names = {target.name for target in targets if is_of(key, target)}
        mine = [one for one in incidents if one["target"] in names and one["engine"] == key[5]]
        for trouble in its:
            met = [one for one in mine if _overlap(one, trouble)]
            for one in met:
                known = one["exporter"]
                if known is None or trouble.seconds > known["seconds"]:
                    one["exporter"] = _told(trouble)
            if names and not met and trouble.seconds >= shortest - EVERY_SECONDS:
                who = {"target": min(names), "model_name": key[4], "engine": key[5]}
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
