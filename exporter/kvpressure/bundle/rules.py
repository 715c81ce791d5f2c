"""A rendered rules file: Prometheus' own format with a few keys more for each alert.

These are `words` (its expression in plain words), `muted_by` (alerts that explain it and inhibit it in Alertmanager),
`off_because` (why it is written with --all-alerts only), and `exporter_answers: false` where the alert is about an
exporter that is gone. Annotations are `summary`, `facts`, one line, and `run`, one command; `description` is made of
the last two, and links are added.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from textwrap import indent
from typing import Any, Final

from kvpressure.bundle.options import SCRAPE_SECONDS, Options
from kvpressure.config import strict_yaml

SEVERITIES: Final = ("critical", "warning", "info")
"""critical wakes someone, warning makes a ticket, info is read when someone looks."""

_LIMIT: Final = re.compile(r"\blimits\.([a-z0-9_]+)")

SCRAPES_IN_A_RANGE: Final = 4
"""Two for a rate, one that may be missed, and one because a range seldom begins with a scrape."""

SCRAPES_TO_WAIT: Final = 2
"""A `for` lasts two scrapes, or one bad sample would be enough; a shorter one as many as it has of 15 s."""

_UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_DURATION: Final = re.compile(r"(?:[0-9]+[smhd])+")
_RANGE: Final = re.compile(rf"\[({_DURATION.pattern})\]")


_ENGINE: Final = {
    "namespace": "namespace",
    "pod": "pod",
    "target": "target",
    "model": "model_name",
    "engine": "engine",
    "instance": "instance",
}
_LABELS: Final[dict[str, dict[str, str]]] = {
    "deployment": {"namespace": "namespace", "model": "model_name"},
    "engine": _ENGINE,
    "gpu": _ENGINE,
    "limits": _ENGINE,
    "node": _ENGINE,
    "target": {name: label for name, label in _ENGINE.items() if name not in {"model", "engine"}},
    "container": {"namespace": "namespace", "pod": "pod", "instance": "instance"},
    "exporter": {"target": "target", "instance": "instance"},
    "vllm": {name: label for name, label in _ENGINE.items() if name != "target"},
}
"""By component: the parameters of a runbook's URL, and the label that each comes from."""

_ONCE: Final = "unless on (cluster, instance, target)\ntarget:kvpressure_duplicate:bool"
"""Ends the expression of an alert on a target: of two exporters that read one server, one tells."""

COMPONENTS: Final = tuple(_LABELS)
BOARDS: Final = {"exporter": "kvpressure-exporter", "deployment": "kvpressure-fleet", "vllm": "kvpressure-vllm-only"}
"""Grafana uid by component; the engine's board for all others."""

_VARIABLES: Final = {"namespace": "namespace", "target": "target", "instance": "instance", "model": "model_name"}
_OF_A_BOARD: Final = {"deployment": {"namespace", "model"}, "vllm": {"namespace", "model", "instance"}}


@dataclass(frozen=True, slots=True)
class Alert:
    """One alerting rule. `rule` is Prometheus' own mapping, complete; `thresholds` names those its file uses.

    `condition` is its expression as its template has it, without what is common to all alerts on a target.
    `off_because` is why it is left out by default, "" where it is not.
    """

    file: str
    rule: Mapping[str, Any]
    condition: str
    words: str
    muted_by: tuple[str, ...]
    thresholds: tuple[str, ...]
    off_because: str = ""

    @property
    def name(self) -> str:
        """The alert's name; several rules of different severity share one."""
        return str(self.rule["alert"])

    @property
    def severity(self) -> str:
        """One of SEVERITIES."""
        return str(self.rule["labels"]["severity"])

    @property
    def component(self) -> str:
        """What the alert is about: one of `COMPONENTS`."""
        return str(self.rule["labels"]["component"])


@dataclass(frozen=True, slots=True)
class RuleFile:
    """One file of rules as Prometheus reads it, `groups`, and the alerts among them."""

    path: str
    groups: tuple[Mapping[str, Any], ...]
    alerts: tuple[Alert, ...]

    @property
    def place(self) -> str:
        """The path without the folder of its flavour: a bundle has one flavour."""
        return "/".join(self.path.split("/")[-2:])


def seconds(duration: str) -> int:
    """Return the seconds of a duration as Prometheus writes it, such as 1m30s. Raises ValueError."""
    if not _DURATION.fullmatch(duration):
        raise ValueError(f"{duration!r} is no duration such as 30s or 1m30s")
    return sum(int(count) * _UNITS[unit] for count, unit in re.findall(r"([0-9]+)([smhd])", duration))


def duration(total_seconds: int) -> str:
    """Return seconds as Prometheus writes them: 90 is 1m30s."""
    parts = []
    for unit, size in reversed(_UNITS.items()):
        count, total_seconds = divmod(total_seconds, size)
        parts += [f"{count}{unit}"] if count else []
    return "".join(parts) or "0s"


def ranges(expr: str, scrape_seconds: int) -> str:
    """Return an expression, or a template with queries in it, with each range at least four scrapes long.

    One sample in a range proves nothing, and has no `rate`. Templates are written for the shortest interval.
    """
    return _RANGE.sub(lambda match: f"[{at_least(match[1], SCRAPES_IN_A_RANGE * scrape_seconds)}]", expr)


def at_least(given: str, least_seconds: int) -> str:
    """Return the longer one of a duration and the least."""
    return given if seconds(given) >= least_seconds else duration(least_seconds)


def read_rules(path: str, template: str, rendered: str, options: Options) -> RuleFile:
    """Read one rendered file; `path` is relative to `rules/`. Raises ConfigError for what is no YAML.

    A test checks the keys of all of them.
    """
    used = tuple(dict.fromkeys(_LIMIT.findall(template)))
    alerts: list[Alert] = []
    groups: list[Mapping[str, Any]] = []
    for group in strict_yaml.load(rendered, path).data["groups"]:
        rules = []
        for given in group["rules"]:
            if "record" in given:
                rules.append({**given, "expr": _expr(given, options)})
            elif options.all_alerts or "off_because" not in given:
                rules.append(_complete(given, options))
                words, off = (" ".join(given.get(key, "").split()) for key in ("words", "off_because"))
                alerts.append(
                    Alert(path, rules[-1], _expr(given, options), words, tuple(given.get("muted_by", ())), used, off)
                )
        if rules:
            groups.append({**group, "rules": rules})
    return RuleFile(path, tuple(groups), tuple(alerts))


def _complete(rule: Mapping[str, Any], options: Options) -> dict[str, Any]:
    """Return Prometheus' own keys in its order, with windows that are long enough, and with the links."""
    name, component, every = rule["alert"], rule["labels"]["component"], options.scrape_seconds
    texts = {key: " ".join(ranges(text, every).split()) for key, text in rule["annotations"].items()}
    annotations = {"summary": texts["summary"], "description": f"{texts['facts']}\nRun: {texts['run']}"}
    annotations = {key: _short(text) for key, text in annotations.items()}
    annotations |= links(options, name, component, exporter_answers=rule.get("exporter_answers", True))
    waits = at_least(rule["for"], min(SCRAPES_TO_WAIT, seconds(rule["for"]) // SCRAPE_SECONDS) * every)
    complete = {"alert": name, "expr": _once(_expr(rule, options), component), "for": waits}
    if "keep_firing_for" in rule:  # bridges missed scrapes
        complete["keep_firing_for"] = at_least(rule["keep_firing_for"], SCRAPES_IN_A_RANGE * every)
    return {**complete, "labels": rule["labels"], "annotations": annotations}


def _short(text: str) -> str:
    """Return a template with its labels under a short name, where that is shorter: people read it in Prometheus."""
    short = "{{ $l := $labels }}" + text.replace("$labels.", "$l.")
    return short if len(short) < len(text) else text


def links(options: Options, alert: str, component: str, *, exporter_answers: bool) -> dict[str, str]:
    """Return the annotations `runbook_url`, or `runbook` in the bundle without a base URL, and `dashboard_url`."""
    found, labels = {}, _LABELS[component]
    if options.runbook_url:
        found["runbook_url"] = f"{options.runbook_url.rstrip('/')}/{alert}?{_query(labels)}"
    else:
        found["runbook"] = f"runbooks/{alert}.md"
    if options.dashboard_url:
        board = f"{options.dashboard_url.rstrip('/')}/d/{BOARDS.get(component, 'kvpressure-engine')}"
        variables = _OF_A_BOARD.get(component, {"namespace", "target", "instance"})
        values = {_VARIABLES[name]: label for name, label in labels.items() if name in variables}
        found["dashboard_url"] = f"{board}?{_query(values, prefix='var-')}" if exporter_answers else board
    return found


def _query(labels: dict[str, str], prefix: str = "") -> str:
    return "&".join(f"{prefix}{name}={{{{ $labels.{label} | urlquery }}}}" for name, label in labels.items())


def _expr(rule: Mapping[str, Any], options: Options) -> str:
    return ranges(rule["expr"].strip(), options.scrape_seconds)


def _once(expr: str, component: str) -> str:
    """Return the expression of an alert, of a target only as one exporter tells of it."""
    if "target" not in _LABELS[component] or component == "exporter":
        return expr
    return f"(\n{indent(expr, '  ')}\n)\n{_ONCE}"
