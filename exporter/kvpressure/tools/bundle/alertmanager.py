"""What Alertmanager is told: routes by severity, and inhibitions that follow from `muted_by`.

The same inhibitions go into the example of a whole configuration and into an AlertmanagerConfig object.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from kvpressure.tools.bundle.flavours import EXPORTER
from kvpressure.tools.bundle.options import Options
from kvpressure.tools.bundle.rules import Alert
from kvpressure.tools.bundle.templates import render

DEPLOYMENT: Final = "deployment"
"""The component of alerts about all replicas of a model in a namespace."""

_SAME: Final = {
    DEPLOYMENT: ("cluster", "namespace", "model_name"),
    "exporter": ("cluster", "instance", "source"),
    "vllm": ("cluster", "instance", "namespace", "pod", "model_name", "engine"),
    "gpu": ("cluster", "instance", "namespace", "pod"),  # muted by what a container's log tells: it names no target
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


def inhibitions(alerts: Iterable[Alert], options: Options) -> tuple[Inhibition, ...]:
    """Return the inhibitions of any alerts, then one for each set of alerts that mutes others, in the alerts' order."""
    known = list(alerts)
    usual = _of_the_exporter() if options.flavour is EXPORTER else (_beside_the_exporter(),)
    return (*usual, *_causes(known))


def alertmanager_config(path: str, template: str, options: Options, alerts: Sequence[Alert]) -> str:
    """Return the whole file. `path` is the template's name in messages; raises ConfigError."""
    more = {
        "inhibitions": inhibitions(alerts, options),
        "page_url": options.page_url,
        "ticket_url": options.ticket_url,
    }
    return render(path, template, options, more)


def alertmanager_object(alerts: Sequence[Alert], options: Options) -> dict[str, Any]:
    """Return an `AlertmanagerConfig` of prometheus-operator with nothing but the inhibitions."""

    def match(one: Matcher) -> dict[str, str]:
        # An expression that is a name matches that name; a bare `=` is no plain word in every YAML.
        return {"name": one.name, "value": one.value, "matchType": "=~"}

    rules = [
        {
            "sourceMatch": [match(one) for one in rule.source],
            "targetMatch": [match(one) for one in rule.target],
            "equal": list(rule.equal),
        }
        for rule in inhibitions(alerts, options)
    ]
    labels = {"app.kubernetes.io/name": "kvpressure", "app.kubernetes.io/component": "inhibition", **options.labels}
    return {
        "apiVersion": "monitoring.coreos.com/v1alpha1",
        "kind": "AlertmanagerConfig",
        "metadata": {"name": f"kvpressure{options.flavour.suffix}-inhibition", "labels": labels},
        "spec": {"inhibitRules": rules},
    }


def _of_the_exporter() -> tuple[Inhibition, ...]:
    down = "KVPressureExporterDown"
    replicas = "KVPressureCacheTooSmall|KVPressureExhaustionPredicted"
    ours = Matcher("component", "=~", ".+")
    return (
        Inhibition(
            "The louder severity of an alert mutes the quieter one of the same engine or container.",
            (_severity("critical"), ours),
            (_severity("warning", "info"), ours),
            ("alertname", *_SAME_THING),
        ),
        Inhibition(
            "The same, for alerts that are never critical.",
            (_severity("warning"), ours),
            (_severity("info"), ours),
            ("alertname", *_SAME_THING),
        ),
        Inhibition(
            "No exporter of a namespace answers: one page, not one ticket for each of them.",
            (_named(down), _severity("critical")),
            (_named(down), _severity("warning")),
            ("cluster", "namespace", "job"),
        ),
        Inhibition(
            "A model's page mutes the tickets of its replicas.",
            (_named("KVPressureCacheTooSmall"), Matcher("component", "=", DEPLOYMENT)),
            (_named(replicas), Matcher("component", "=", "engine")),
            _SAME[DEPLOYMENT],
        ),
    )


def _beside_the_exporter() -> Inhibition:
    """Return the inhibition beside the exporter, by pod: its alerts name an engine's address by other labels."""
    return Inhibition(
        "Where the exporter runs too, what it says of a pod's engine goes before what vLLM's own series let one guess.",
        (Matcher("alertname", "=~", "KVPressure.+"), Matcher("component", "=", "engine")),
        (Matcher("component", "=", "vllm"),),
        ("cluster", "namespace", "pod", "model_name"),
    )


def _causes(alerts: Sequence[Alert]) -> Iterable[Inhibition]:
    of_deployments = {alert.name for alert in alerts if alert.component == DEPLOYMENT}
    of_others = {alert.name for alert in alerts if alert.component != DEPLOYMENT}
    found: dict[tuple[tuple[str, ...], str], list[str]] = {}
    for alert in alerts:
        for about in (DEPLOYMENT, alert.component):
            by = of_deployments if about == DEPLOYMENT else of_others
            sources = tuple(name for name in alert.muted_by if name in by)
            if about == DEPLOYMENT and alert.component != DEPLOYMENT:
                sources = tuple(name for name in sources if name not in of_others)
            targets = found.setdefault((sources, about), []) if sources else []
            if alert.name not in targets:
                targets.append(alert.name)
    for (sources, about), targets in found.items():
        named = (
            (_named(*sources), Matcher("component", "=", DEPLOYMENT)) if about == DEPLOYMENT else (_named(*sources),)
        )
        why = "A cause mutes its symptoms, here of the same " + {DEPLOYMENT: "model and namespace."}.get(
            about, "engine."
        )
        yield Inhibition(why, named, (_named(*targets),), _SAME.get(about, _SAME_ENGINE))


def _named(*names: str) -> Matcher:
    names = tuple(dict.fromkeys("|".join(names).split("|")))
    return Matcher("alertname", "=~" if len(names) > 1 else "=", "|".join(names))


def _severity(*names: str) -> Matcher:
    return Matcher("severity", "=~" if len(names) > 1 else "=", "|".join(names))
