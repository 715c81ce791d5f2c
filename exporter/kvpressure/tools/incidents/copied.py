"""When the rules that people copy would have fired, asked of the Prometheus itself."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from kvpressure.tools.incidents.client import Prometheus
from kvpressure.tools.incidents.copied_rules import TODAY, Rule
from kvpressure.tools.incidents.found import Fired
from kvpressure.tools.incidents.names import EngineName, Selection, Spelled, target_of
from kvpressure.tools.incidents.paging import Series, Span, asked, pages
from kvpressure.tools.incidents.remembered import RuleRows

EVERY_SECONDS: Final = 60.0
"""Prometheus evaluates rules so often unless somebody says otherwise."""

PAGE_SECONDS: Final = 86_400.0
SHORTEST_PAGE_SECONDS: Final = 900.0
_NAME: Final = re.compile(r"\bvllm:\w+")
_FORMERLY: Final = {"vllm:kv_cache_usage_perc": "vllm:gpu_cache_usage_perc"}


@dataclass(slots=True)
class Holding:
    """A rule over the time of one engine: stretches in which its expression holds."""

    spans: list[Span] = field(default_factory=list)

    def add(self, t: float) -> None:
        """Note that it holds at `t`, which is not before the last."""
        if self.spans and t - self.spans[-1].end <= 1.5 * EVERY_SECONDS:
            self.spans[-1] = Span(self.spans[-1].start, max(t, self.spans[-1].end))
        else:
            self.spans.append(Span(t, t))

    def fired(self, rule: Rule, until: float) -> list[Fired]:
        """Where it held long enough."""
        return [
            Fired(
                rule.name,
                span.start + rule.for_seconds,
                None if span.end > until - EVERY_SECONDS else span.end,
                copied=True,
            )
            for span in self.spans
            if span.seconds >= rule.for_seconds
        ]


def askable(spelled: Spelled, selection: Selection) -> Iterator[tuple[Rule, str]]:
    """Return the rules for whose series there are any, with the expression that asks for the selected engines."""
    if spelled.table.prefix != "vllm:":
        return
    for rule in TODAY:
        names = {name: _there(name, spelled) for name in _NAME.findall(rule.expr)}
        if names and all(names.values()):
            chosen = {name: f"{there}{selection.and_also()}" for name, there in names.items()}
            yield rule, _NAME.sub(lambda match: chosen[match[0]], rule.expr)  # noqa: B023 - used at once


def ask(server: Prometheus, expr: str, spelled: Spelled, page: Span) -> RuleRows:
    """Return the times at which an expression holds in a page, by engine. Raises PrometheusError."""
    times: dict[EngineName, set[float]] = {}

    def answer(span: Span) -> Series:
        return server.range(expr, span.start, span.end, EVERY_SECONDS)

    for _, series in asked(page, EVERY_SECONDS, SHORTEST_PAGE_SECONDS, answer):
        for one in series:
            labels: Mapping[str, str] = one.get("metric", {})
            # Copies of several Prometheus servers are one engine's, and each begins anew.
            times.setdefault(engine_key(labels, spelled), set()).update(t for t, _ in one.get("values", ()))
    found = {key: Holding() for key in times}
    for key, its in times.items():
        for t in sorted(its):
            found[key].add(t)
    return [(key, [(span.start, span.end) for span in holding.spans]) for key, holding in found.items()]


def engine_key(labels: Mapping[str, str], spelled: Spelled) -> EngineName:
    """Target, model and rank of a series."""
    table = spelled.table
    model, rank = labels.get(table.model_label, ""), labels.get(table.engine_label, "0")
    return EngineName(target_of(labels, table).name, model, rank)


def fired(rule: Rule, answers: Sequence[RuleRows], until: float) -> dict[EngineName, list[Fired]]:
    """Return what the answers of all pages, in order, come to."""
    whole: dict[EngineName, Holding] = {}
    for answer in answers:
        for key, spans in answer:
            holding = whole.setdefault(EngineName(*key), Holding())
            for start, end in spans:
                holding.add(start)
                holding.spans[-1] = Span(holding.spans[-1].start, max(end, holding.spans[-1].end))
    return {key: found for key, holding in whole.items() if (found := holding.fired(rule, until))}


def page_list(span: Span) -> Iterator[Span]:
    """Return the pages in which to ask."""
    return pages(span, EVERY_SECONDS, PAGE_SECONDS)


def _there(name: str, spelled: Spelled) -> str | None:
    candidates = (name, _FORMERLY.get(name, name))
    found = (spelled.spelling + one.removeprefix("vllm:") for one in candidates)
    return next((one for one in found if one in spelled.present), None)
