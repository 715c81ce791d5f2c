"""Alertmanager's configuration: routes by severity, and inhibitions that follow from `muted_by`.

The same inhibitions go into the example of a whole configuration and into an AlertmanagerConfig object.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from kvpressure.bundle.options import EXPORTER, Options
from kvpressure.bundle.rules import Alert
from kvpressure.bundle.templates import render

DEPLOYMENT: Final = "deployment"
"""The component of alerts about all replicas of a model in a namespace."""

_SAME: Final = {
    DEPLOYMENT: ("cluster", "namespace", "model_name"),
    "exporter": ("cluster", "instance", "source"),
    "target": ("cluster", "instance", "namespace", "target"),
    "vllm": ("cluster", "instance", "namespace", "pod", "model_name", "engine"),
    "gpu": ("cluster", "instance", "namespace", "pod"),  # muted by alerts on a container's log, which have no target
}
_SAME_ENGINE: Final = ("cluster", "instance", "namespace", "target", "model_name", "engine")
_SAME_THING: Final = (*_SAME_ENGINE[:3], "pod", "container", *_SAME_ENGINE[3:])


@dataclass(frozen=True, slots=True)
class Matcher:
    """One matcher of Alertmanager: `name`, the operator as it is written, `value`."""

    name: str
    operator: str
    value: str

    def __str__(self) -> str:
        """Return the matcher as written in `source_matchers`."""
        return f'{self.name}{self.operator}"{self.value}"'


@dataclass(frozen=True, slots=True)
class Inhibition:
    """While an alert that `source` matches fires, those that `target` matches stay silent where `equal` is the same."""

    why: str
    source: tuple[Matcher, ...]
    target: tuple[Matcher, ...]
    equal: tuple[str, ...]


def _one_of(name: str, *values: str) -> Matcher:
    return Matcher(name, "=~" if len(values) > 1 else "=", "|".join(values))


_OURS: Final = Matcher("component", "=~", ".+")
_OF_THE_EXPORTER: Final = (
    Inhibition(
        "The louder severity of an alert mutes the quieter one of the same engine or container.",
        (_one_of("severity", "critical"), _OURS),
        (_one_of("severity", "warning", "info"), _OURS),
        ("alertname", *_SAME_THING),
    ),
    Inhibition(
        "The same, for alerts that are never critical.",
        (_one_of("severity", "warning"), _OURS),
        (_one_of("severity", "info"), _OURS),
        ("alertname", *_SAME_THING),
    ),
    Inhibition(
        "No exporter of a namespace answers: one page, not one ticket for each of them.",
        (_one_of("alertname", "KVPressureExporterDown"), _one_of("severity", "critical")),
        (_one_of("alertname", "KVPressureExporterDown"), _one_of("severity", "warning")),
        ("cluster", "namespace", "job"),
    ),
    Inhibition(
        "A model's page mutes the tickets of its replicas.",
        (_one_of("alertname", "KVPressureCacheTooSmall"), Matcher("component", "=", DEPLOYMENT)),
        (
            _one_of("alertname", "KVPressureCacheTooSmall", "KVPressureQueueNotServed"),
            Matcher("component", "=", "engine"),
        ),
        _SAME[DEPLOYMENT],
    ),
)
_BESIDE_THE_EXPORTER: Final = Inhibition(
    "Where the exporter runs too, what it says of a pod's engine goes before what vLLM's own series let one guess.",
    (Matcher("alertname", "=~", "KVPressure.+"), Matcher("component", "=", "engine")),
    (Matcher("component", "=", "vllm"),),
    ("cluster", "namespace", "pod", "model_name"),
)
"""By pod: the exporter's alerts name an engine's address by other labels."""


def inhibitions(alerts: Iterable[Alert], options: Options) -> tuple[Inhibition, ...]:
    """Return the inhibitions of any alerts, then one for each set of alerts that mutes others, in the alerts' order."""
    usual = _OF_THE_EXPORTER if options.flavour is EXPORTER else (_BESIDE_THE_EXPORTER,)
    return (*usual, *_causes(list(alerts)))


def alertmanager_config(path: str, template: str, options: Options, alerts: Sequence[Alert]) -> str:
    """Return one file of the example, whole. `path` is the template's name in messages; raises ConfigError."""
    more = {
        "inhibitions": inhibitions(alerts, options),
        "page_url": options.page_url,
        "ticket_url": options.ticket_url,
    }
    return render(path, template, options, more)


def alertmanager_object(alerts: Sequence[Alert], options: Options) -> dict[str, Any]:
    """Return an `AlertmanagerConfig` of prometheus-operator with nothing but the inhibitions."""

    def match(matcher: Matcher) -> dict[str, str]:
        # An expression that is a name matches that name; a bare `=` is no plain word in every YAML.
        return {"name": matcher.name, "value": matcher.value, "matchType": "=~"}

    rules = [
        {
            "sourceMatch": [*map(match, inhibition.source)],
            "targetMatch": [*map(match, inhibition.target)],
            "equal": list(inhibition.equal),
        }
        for inhibition in inhibitions(alerts, options)
    ]
    labels = {"app.kubernetes.io/name": "kvpressure", "app.kubernetes.io/component": "inhibition", **options.labels}
    return {
        "apiVersion": "monitoring.coreos.com/v1alpha1",
        "kind": "AlertmanagerConfig",
        "metadata": {"name": f"kvpressure{options.flavour.suffix}-inhibition", "labels": labels},
        "spec": {"inhibitRules": rules},
    }


def _causes(alerts: Sequence[Alert]) -> Iterable[Inhibition]:
    of_deployments = {alert.name for alert in alerts if alert.component == DEPLOYMENT}
    of_others = {alert.name for alert in alerts if alert.component != DEPLOYMENT}
    by_source: dict[tuple[tuple[str, ...], str], list[str]] = {}
    for alert in alerts:
        for about in (DEPLOYMENT, alert.component):
            by = of_deployments if about == DEPLOYMENT else of_others
            sources = tuple(name for name in alert.muted_by if name in by)
            if about == DEPLOYMENT and alert.component != DEPLOYMENT:
                sources = tuple(name for name in sources if name not in of_others)
            targets = by_source.setdefault((sources, about), []) if sources else []
            if alert.name not in targets:
                targets.append(alert.name)
    for (sources, about), targets in by_source.items():
        named, of = [_one_of("alertname", *dict.fromkeys(sources))], "engine"
        if about == DEPLOYMENT:
            named, of = [*named, Matcher("component", "=", DEPLOYMENT)], "model and namespace"
        why, muted = f"A cause mutes its symptoms, here of the same {of}.", _one_of("alertname", *targets)
        yield Inhibition(why, tuple(named), (muted,), _SAME.get(about, _SAME_ENGINE))
