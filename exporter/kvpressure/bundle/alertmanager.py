"""The Alertmanager example: routes by severity, and inhibitions that follow from `muted_by`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from kvpressure.bundle.options import Options
from kvpressure.bundle.rules import Alert, shown
from kvpressure.bundle.templates import render

_SAME: Final = {
    "exporter": ("instance", "source"),
    "gpu": ("instance", "namespace", "pod"),  # muted by what a container's log tells, which names no target
}
_SAME_ENGINE: Final = ("namespace", "target", "model_name", "engine")


@dataclass(frozen=True, slots=True)
class Inhibition:
    """While one of `sources` fires, `targets` stay silent where the labels `equal` are the same."""

    sources: tuple[str, ...]
    targets: tuple[str, ...]
    equal: tuple[str, ...]


def inhibitions(alerts: Iterable[Alert]) -> tuple[Inhibition, ...]:
    """One for each set of alerts that mutes others, in the order of the alerts."""
    found: dict[tuple[tuple[str, ...], tuple[str, ...]], list[str]] = {}
    for alert in alerts:
        if alert.muted_by:
            targets = found.setdefault((alert.muted_by, _SAME.get(alert.component, _SAME_ENGINE)), [])
            if alert.name not in targets:
                targets.append(alert.name)
    return tuple(Inhibition(sources, tuple(targets), equal) for (sources, equal), targets in found.items())


def alertmanager_config(path: str, template: str, options: Options, alerts: Sequence[Alert]) -> str:
    """The whole file. `path` is the template's name in messages; raises ConfigError."""
    more = {
        "inhibitions": inhibitions(alerts),
        "shown": lambda name: shown(name, options),
        "page_url": options.page_url,
        "ticket_url": options.ticket_url,
    }
    return render(path, template, options, more)
