"""The alert that is shipped, as the bundle renders it: expressions, durations, and the series that they ask for."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from typing import Any, Final

from bench.detection.today import Rule
from kvpressure.bundle import Options, load_rules
from kvpressure.config.thresholds import load_thresholds

ALERT: Final = "KVPressureCacheTooSmall"
PAGE: Final = f"{ALERT} (warning)"
"""The first that anybody hears of: it has the bars."""
_MODEL: Final = "cluster, namespace, model_name"
_EPISODE: Final = f"{_MODEL}, episode, engine"
"""Here each engine of an episode is a deployment of one replica: what is summed over a model keeps them apart."""

_UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400}


@functools.cache
def shipped() -> tuple[Rule, ...]:
    """Every severity of the alert, with the packaged thresholds; what it takes from recorded series is written out."""
    files = load_rules(Options(load_thresholds()))
    rules = [rule for file in files for group in file.groups for rule in group["rules"] if "record" in rule]
    recorded = {rule["record"]: rule["expr"] for rule in rules}
    alerts = [alert for file in files for alert in file.alerts if alert.name == ALERT]
    return tuple(_rule(f"{ALERT} ({alert.severity})", alert.rule, recorded) for alert in alerts)


@functools.cache
def asked() -> frozenset[str]:
    """The exporter's series that its expressions name."""
    return frozenset(name for rule in shipped() for name in re.findall(r"\bkvpressure_\w+", rule.expr))


def seconds(duration: str) -> float:
    """A duration as Prometheus writes it, such as 1m30s. ValueError for anything else."""
    if not re.fullmatch(r"(\d+[smhd])+", duration):
        raise ValueError(f"{duration!r} is no duration such as 30s or 1m30s")
    return float(sum(int(count) * _UNITS[unit] for count, unit in re.findall(r"(\d+)([smhd])", duration)))


def _rule(name: str, rule: Any, recorded: Mapping[str, str]) -> Rule:
    expr = rule["expr"]
    while used := re.search(r"\bnamespace_model:\w+:\w+", expr):
        expr = expr.replace(used[0], f"({recorded[used[0]].replace(_MODEL, _EPISODE)})")
    return Rule(name, expr, seconds(rule["for"]), seconds(rule.get("keep_firing_for", "0s")))
