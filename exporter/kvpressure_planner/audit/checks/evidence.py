"""Checks of what surrounds an engine: monitoring, alerts, and where its limits come from."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from kvpressure.launch import ANNOTATION_PREFIX
from kvpressure.runtimes.registry import TABLES
from kvpressure_planner.audit.checks.context import Context, annotation_fix, quoted
from kvpressure_planner.audit.engine import Engine
from kvpressure_planner.audit.manifests import Item, get, mapping, sequence, strings, text
from kvpressure_planner.audit.model import Verdict

LIMITS: Final = f"{ANNOTATION_PREFIX}limits"
"""Annotation: where the limits come from, as an address or a sentence."""

LOAD_TEST: Final = f"{ANNOTATION_PREFIX}load-test"
"""Annotation: the address of a load test's result, or the day it was run, and after a blank what was tried."""

_ANYTHING: Final = re.compile(r".*", re.DOTALL)
_EVIDENCE: Final = re.compile(r"https?://\S+( .*)?|\d{4}-\d{2}-\d{2}([T ].*)?")
_PREFIXES: Final = sorted({re.escape(spelling) for table in TABLES for spelling in table.spellings})
_SERIES: Final = re.compile(rf"\b(kvpressure_|{'|'.join(_PREFIXES)})")
_EXPORTER: Final = re.compile(r"(^|/)kvpressure([:@]|$)")


def documented(engine: Engine, context: Context) -> Verdict:  # noqa: ARG001 - every check gets both
    """Check: It is written down where the limits come from.

    A limit that nobody can explain is removed in the next incident, or kept for ever.
    """
    return _annotated(engine, LIMITS)


def load_tested(engine: Engine, context: Context) -> Verdict:  # noqa: ARG001 - every check gets both
    """Check: There is evidence of a load test.

    Limits are guesses until traffic as long and as bursty as the real one has run against them.
    """
    return _annotated(engine, LOAD_TEST, _EVIDENCE)


def _annotated(engine: Engine, name: str, form: re.Pattern[str] = _ANYTHING) -> Verdict:
    value = engine.annotations.get(name, "").strip()
    fix = annotation_fix(name, f"https://wiki.example.com/llm/{name.removeprefix(ANNOTATION_PREFIX)}")
    if not value:
        return Verdict("fail", f"annotation {name} is missing", fix)
    if not form.fullmatch(value):
        return Verdict("fail", f"{value[:60]!r} is neither an address nor a day such as 2025-06-30", fix)
    return Verdict("pass", value[:100])


def monitored(engine: Engine, context: Context) -> Verdict | None:
    """Check: The engine is monitored.

    KV cache pressure is invisible from outside until requests time out.
    """
    # A PodMonitor or ServiceMonitor that selects the engine, or kvpressure on the nodes.
    for monitor in _monitors(engine, context):
        return Verdict("pass", monitor)
    if others := [f"{item.kind} {item.name}" for item in context.given.of("PodMonitor", "ServiceMonitor")]:
        return Verdict("fail", f"not selected by {', '.join(others[:3])}", _pod_monitor(engine))
    reason = "no PodMonitor, ServiceMonitor or kvpressure DaemonSet in the cluster"
    return Verdict("fail", reason, _pod_monitor(engine)) if context.given.complete else None


def alerted(engine: Engine, context: Context) -> Verdict | None:  # noqa: ARG001 - every check gets both
    """Check: There are alerts on it.

    Series that nobody looks at prevent nothing.
    """
    # Rules on series of kvpressure or of a runtime, in an object or in a file as Prometheus reads it.
    objects, files = context.given.of("PrometheusRule"), context.given.of("")
    rules = [(item, get(item.data, "spec", "groups")) for item in objects]
    rules += [(item, groups) for item in files if isinstance(groups := item.data.get("groups"), list)]
    for item, groups in rules:
        alerts = (alert for group in sequence(groups) for alert in sequence(get(group, "rules")))
        if any(_SERIES.search(text(get(alert, "expr"))) for alert in alerts):
            who = f"PrometheusRule {item.name}" if item.kind else f"rules in {item.source.name}"
            return Verdict("pass", who, place=item.place())
    if not rules and not context.given.complete:
        return None
    fix = "kvpressure generate --out kvpressure && kubectl apply -f kvpressure/kubernetes"
    return Verdict("fail", "no rule uses series of kvpressure or of the engine", fix)


def _monitors(engine: Engine, context: Context) -> Iterator[str]:
    given = context.given
    for item in given.of("DaemonSet"):
        images = [
            text(get(container, "image"))
            for container in sequence(get(item.data, "spec", "template", "spec", "containers"))
        ]
        if any(_EXPORTER.search(image) for image in images):
            yield f"DaemonSet {item.name} of kvpressure"
    for item in given.of("PodMonitor"):
        if _reaches(item, engine) and selects(get(item.data, "spec", "selector"), engine.labels):
            yield f"PodMonitor {item.name}"
    for item in given.of("ServiceMonitor"):
        for service in given.of("Service"):
            chosen = strings(get(service.data, "spec", "selector"))
            selected = bool(chosen) and chosen.items() <= engine.labels.items() and _near(service, engine)
            labels = strings(get(service.data, "metadata", "labels"))
            if selected and _reaches(item, engine) and selects(get(item.data, "spec", "selector"), labels):
                yield f"ServiceMonitor {item.name}"
    if engine.scraped:
        yield "servingEngineSpec.serviceMonitor is enabled"
    if engine.annotations.get("prometheus.io/scrape", "").lower() == "true":
        yield "annotation prometheus.io/scrape"


def selects(selector: Any, labels: Mapping[str, str]) -> bool:
    """Whether a label selector matches; an empty one matches everything."""
    if not strings(get(selector, "matchLabels")).items() <= labels.items():
        return False
    return all(_matches(mapping(expression), labels) for expression in sequence(get(selector, "matchExpressions")))


def _matches(expression: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    key, operator = text(expression.get("key")), text(expression.get("operator"))
    listed = labels.get(key) in [text(value) for value in sequence(expression.get("values"))]
    matches = {"In": listed, "NotIn": not listed, "Exists": key in labels, "DoesNotExist": key not in labels}
    return matches.get(operator, False)


def _reaches(monitor: Item, engine: Engine) -> bool:
    selector = get(monitor.data, "spec", "namespaceSelector")
    if get(selector, "any") is True:
        return True
    names = [text(name) for name in sequence(get(selector, "matchNames"))]
    return engine.namespace in names if names and engine.namespace else bool(names) or _near(monitor, engine)


def _near(item: Item, engine: Engine) -> bool:
    """Return whether both are in one namespace, as far as the manifests name it."""
    return not item.namespace or not engine.namespace or item.namespace == engine.namespace


def _pod_monitor(engine: Engine) -> str:
    """Return a PodMonitor for this engine, with two of its labels at most."""
    labels = [f"      {key}: {quoted(value)}" for key, value in list(engine.labels.items())[:2]]
    chosen = "\n".join(["    matchLabels:", *labels]) if labels else "    matchLabels: {}"
    return (
        "apiVersion: monitoring.coreos.com/v1\nkind: PodMonitor\nmetadata:\n"
        f"  name: {engine.item.name or engine.runtime.name}\nspec:\n  selector:\n{chosen}\n"
        "  podMetricsEndpoints:\n    - path: /metrics\n      interval: 15s"
    )
