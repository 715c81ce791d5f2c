"""Rules beside exporters of a smaller profile: without those that never have a value, with averages of what is told.

A cause or symptom that is not there has no series under `fleet`, so the average of one over a range is that of the ones
in it: always 1. There it is their sum over the scrapes at which the engine answered.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from kvpressure.exposition.profile import Profile, families
from kvpressure.tools.bundle.rules import RuleFile

_EXPORTED: Final = re.compile(r"(?<![:\w])kvpressure_\w+")
_RECORDED: Final = re.compile(r"\b\w+:\w+:\w+")
_MATCHERS: Final = r'(?:[^"}]|"(?:[^"\\]|\\.)*")*'
_AVERAGE: Final = re.compile(rf"avg_over_time\((kvpressure_(?:bottleneck|symptom)){{({_MATCHERS})}}(\[\w+\])\)")
_OWN: Final = re.compile(r',?\s*\b(?:cause|symptom)(?:=~|!~|!=|=)"(?:[^"\\]|\\.)*"')
_PARTS: Final = ("", "_bucket", "_sum", "_count")


def of_profile(files: Sequence[RuleFile], profile: Profile) -> tuple[RuleFile, ...]:
    """Return the files with only the rules whose series the profile exports or records; all for `full`."""
    if profile is Profile.FULL:
        return tuple(files)
    exported = {family.name + part for family in families(profile) for part in _PARTS}
    rules = [rule for file in files for group in file.groups for rule in group["rules"] if "record" in rule]
    recorded = {rule["record"] for rule in rules}
    lost = recorded
    while lost:
        lost = {rule["record"] for rule in rules if not _reads(rule, exported, recorded)} & recorded
        recorded = recorded - lost
    return tuple(_less(file, exported, recorded) for file in files)


def _reads(rule: Mapping[str, Any], exported: set[str], recorded: set[str]) -> bool:
    """Return whether every series that the rule reads is exported or recorded."""
    expr = rule["expr"]
    return exported.issuperset(_EXPORTED.findall(expr)) and recorded.issuperset(_RECORDED.findall(expr))


def of_sparse(expr: str) -> str:
    """Return an expression whose averages of causes and symptoms are right with zeros exported and without.

    >>> print(of_sparse('avg_over_time(kvpressure_bottleneck{job="a", cause="stuck"}[1m]) > 0.5'))
    (
      sum_over_time(kvpressure_bottleneck{job="a", cause="stuck"}[1m])
      / ignoring (cause, symptom) group_left ()
      sum_over_time(kvpressure_engine_up{job="a"}[1m])
    ) > 0.5
    """
    return _AVERAGE.sub(_share, expr)


def _share(average: re.Match[str]) -> str:
    name, matchers, window = average.groups()
    line = average.string[: average.start()].rpartition("\n")[2]
    indent = "\n" + " " * (len(line) - len(line.lstrip()))
    return (
        f"({indent}  sum_over_time({name}{{{matchers}}}{window})"
        f"{indent}  / ignoring (cause, symptom) group_left ()"
        f"{indent}  sum_over_time(kvpressure_engine_up{{{_OWN.sub('', matchers)}}}{window}){indent})"
    )


def _less(file: RuleFile, exported: set[str], recorded: set[str]) -> RuleFile:
    def less(rules: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
        return [
            {**one, "expr": of_sparse(one["expr"])}
            for one in rules
            if (one["record"] in recorded if "record" in one else _reads(one, exported, recorded))
        ]

    groups = tuple({**group, "rules": rules} for group in file.groups if (rules := less(group["rules"])))
    alerts = tuple(dataclasses.replace(one, rule=rule) for one in file.alerts for rule in less([one.rule]))
    return dataclasses.replace(file, groups=groups, alerts=alerts)
