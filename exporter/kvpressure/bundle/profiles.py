"""Rules that never have a value beside exporters of a smaller profile are left out."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from kvpressure.bundle.rules import RuleFile
from kvpressure.exposition.profile import Profile, families

_EXPORTED: Final = re.compile(r"(?<![:\w])kvpressure_\w+")
_RECORDED: Final = re.compile(r"\b\w+:\w+:\w+")
_PARTS: Final = ("", "_bucket", "_sum", "_count")


def of_profile(files: Sequence[RuleFile], profile: Profile) -> tuple[RuleFile, ...]:
    """The files with the rules that read exported series alone, and records that are recorded; all for `full`."""
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
    """Whether all that it reads is there."""
    expr = rule["expr"]
    return exported.issuperset(_EXPORTED.findall(expr)) and recorded.issuperset(_RECORDED.findall(expr))


def _less(file: RuleFile, exported: set[str], recorded: set[str]) -> RuleFile:
    groups = []
    for group in file.groups:
        rules = [rule for rule in group["rules"] if _kept(rule, exported, recorded)]
        groups += [{**group, "rules": rules}] if rules else []
    return dataclasses.replace(
        file,
        groups=tuple(groups),
        alerts=tuple(alert for alert in file.alerts if _reads(alert.rule, exported, recorded)),
    )


def _kept(rule: Mapping[str, Any], exported: set[str], recorded: set[str]) -> bool:
    return rule["record"] in recorded if "record" in rule else _reads(rule, exported, recorded)
