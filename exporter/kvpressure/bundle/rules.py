"""A rendered rules file, read strictly: Prometheus' own format, and what we say of an alert beside it.

An alert has four keys more than in Prometheus: `words` (its expression in plain words), `muted_by` (alerts that explain
it, so that Alertmanager leaves it out beside them), and `exporter_answers: false` where the alert says that no exporter
is there to serve its runbook. `runbook_url` and `dashboard_url` are added here and never written by hand.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from kvpressure.bundle import links
from kvpressure.bundle.options import Options
from kvpressure.config import strict_yaml
from kvpressure.config.strict_yaml import ConfigError, Document, Path
from kvpressure.model.alert_names import FORMERLY

SEVERITIES: Final = ("critical", "warning", "info")
"""critical wakes someone, warning makes a ticket, info is read when someone looks."""

_REQUIRED: Final = ("alert", "expr", "for", "labels", "annotations", "words")
_ALLOWED: Final = (*_REQUIRED, "keep_firing_for", "muted_by", "exporter_answers")
_LIMIT: Final = re.compile(r"\blimits\.([a-z0-9_]+)")


@dataclass(frozen=True, slots=True)
class Alert:
    """One alerting rule. `rule` is Prometheus' own mapping, complete; `thresholds` names those its file uses."""

    file: str
    rule: Mapping[str, Any]
    words: str
    muted_by: tuple[str, ...]
    thresholds: tuple[str, ...]

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
        """What the alert is about: one of `links.COMPONENTS`."""
        return str(self.rule["labels"]["component"])


@dataclass(frozen=True, slots=True)
class RuleFile:
    """One file of rules as Prometheus reads it: `groups`; `alerts` says more of the alerts among them."""

    path: str
    groups: tuple[Mapping[str, Any], ...]
    alerts: tuple[Alert, ...]


def read_rules(path: str, template: str, rendered: str, options: Options) -> RuleFile:
    """Read one rendered file; `path` is relative to `rules/`. Raises ConfigError with everything wrong in it."""
    document = strict_yaml.load(rendered, path)
    problems = [document.problem(where, message) for where, message in _problems(document)]
    if problems:
        raise ConfigError(problems)
    used = tuple(dict.fromkeys(_LIMIT.findall(template)))
    alerts: list[Alert] = []
    groups: list[Mapping[str, Any]] = []
    for group in document.data["groups"]:
        rules = [rule if "record" in rule else _complete(rule, options) for rule in group["rules"]]
        groups.append({**group, "rules": rules})
        for given, rule in zip(group["rules"], rules, strict=True):
            if "alert" in given:
                muted_by = tuple(shown(name, options) for name in given.get("muted_by", ()))
                alerts.append(Alert(path, rule, " ".join(given["words"].split()), muted_by, used))
    return RuleFile(path, tuple(groups), tuple(alerts))


def _complete(rule: Mapping[str, Any], options: Options) -> dict[str, Any]:
    """Prometheus' own keys in Prometheus' order, with the links."""
    name, component = rule["alert"], rule["labels"]["component"]
    annotations = {key: text.strip() for key, text in rule["annotations"].items()}
    if name in FORMERLY and not options.old_names:
        annotations["formerly"] = FORMERLY[name]
    answers = rule.get("exporter_answers", True)
    annotations["runbook_url"] = links.runbook_url(options, name, component, exporter_answers=answers)
    annotations["dashboard_url"] = links.dashboard_url(options, component, exporter_answers=answers)
    kept = {key: rule[key] for key in ("alert", "expr", "for", "keep_firing_for", "labels") if key in rule}
    return {**kept, "alert": shown(name, options), "expr": rule["expr"].strip(), "annotations": annotations}


def shown(name: str, options: Options) -> str:
    """The alert's name as this bundle writes it."""
    return FORMERLY.get(name, name) if options.old_names else name


def _problems(document: Document) -> Iterator[tuple[Path, str]]:
    groups = document.data.get("groups") if isinstance(document.data, dict) else None
    if not isinstance(groups, list) or not groups:
        yield (), "must hold a list of groups"
        return
    for number, group in enumerate(groups):
        where: Path = ("groups", number)
        if not isinstance(group, dict) or not group.get("name") or not isinstance(group.get("rules"), list):
            yield where, "must have a name and a list of rules"
            continue
        for position, rule in enumerate(group["rules"]):
            yield from _rule_problems((*where, "rules", position), rule)


def _rule_problems(where: Path, rule: Any) -> Iterator[tuple[Path, str]]:
    if not isinstance(rule, dict):
        yield where, "must be a mapping"
    elif "record" in rule:
        for key in rule.keys() - {"record", "expr", "labels"}:
            yield (*where, key), "is no key of a recording rule"
    else:
        for key in rule.keys() - set(_ALLOWED):
            yield (*where, key), f"is no key of an alert; known are {', '.join(_ALLOWED)}"
        missing = [key for key in _REQUIRED if key not in rule]
        if missing:
            yield where, f"lacks {', '.join(missing)}"
        else:
            yield from _alert_problems(where, rule)


def _alert_problems(where: Path, rule: Mapping[str, Any]) -> Iterator[tuple[Path, str]]:
    labels, annotations = rule["labels"], rule["annotations"]
    if not isinstance(labels, dict) or labels.get("severity") not in SEVERITIES:
        yield (*where, "labels"), f"severity must be one of {', '.join(SEVERITIES)}"
    elif labels.get("component") not in links.COMPONENTS:
        yield (*where, "labels"), f"component must be one of {', '.join(links.COMPONENTS)}"
    if not isinstance(annotations, dict) or sorted(annotations) != ["description", "summary"]:
        yield (*where, "annotations"), "must be summary and description; links are added"
