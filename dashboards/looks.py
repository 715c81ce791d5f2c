"""Colours, thresholds and value mappings: what makes a state look the same on every dashboard and on the node page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, cast

from grafana_foundation_sdk.builders.dashboard import ThresholdsConfig
from grafana_foundation_sdk.models import dashboard as model

from kvpressure.config.thresholds import load_thresholds
from kvpressure.model.catalogue import CATALOGUE as CAUSES
from kvpressure.model.verdict import Cause

FIRST: Final = "#4a90d9"
"""The series a graph is about."""
SECOND: Final = "#e39a4f"
"""What it is compared with."""
REFERENCE: Final = "#8a939c"
"""What neither is good nor bad: demand, capacity, a median."""
SERIES: Final = (FIRST, SECOND, REFERENCE)

GOOD: Final = CAUSES[Cause.HEALTHY].fill
WARN: Final = CAUSES[Cause.HOST_BOUND].fill
BAD: Final = CAUSES[Cause.KV_CACHE_PRESSURE].fill
OFF: Final = CAUSES[Cause.UNKNOWN].fill
CALM: Final = CAUSES[Cause.IDLE].fill

CODES: Final[Mapping[Cause, int]] = {cause: row.code for cause, row in CAUSES.items()}
"""A cause as a number, so that one series per engine can carry it; 0 is none."""

_KNOWN: Final = frozenset(load_thresholds().values)


def limit(name: str) -> float:
    """Return the value of a threshold, filled in when a bundle is generated.

    LookupError names one that there is not.
    """
    return cast("float", shown(name))


def shown(name: str, how: str = "") -> str:
    """Return a threshold within a text; `how` is a filter of the templates, such as percent.

    LookupError as in `limit`.
    """
    if name not in _KNOWN:
        raise LookupError(f"a dashboard uses the threshold {name!r}, which thresholds.yaml does not have")
    return f"[[ limits.{name}{' | ' + how if how else ''} ]]"


def steps(base: str, *others: tuple[float, str]) -> ThresholdsConfig:
    """Return `base` below the first of `others`, each a value and the colour from there on."""
    all_steps = [model.Threshold(None, base), *(model.Threshold(value, colour) for value, colour in others)]
    return ThresholdsConfig().mode(model.ThresholdsMode.ABSOLUTE).steps(all_steps)


def cause_names() -> list[model.ValueMapping]:
    """Numbers of `CODES` to the causes' names and colours."""
    return [
        model.ValueMap(
            {str(code): model.ValueMappingResult(CAUSES[cause].label, CAUSES[cause].fill, index=code)
             for cause, code in CODES.items()}
        )
    ]  # fmt: skip


def states(zero: tuple[str, str], one: tuple[str, str]) -> list[model.ValueMapping]:
    """0 and 1 to a name and a colour each."""
    found = {str(value): model.ValueMappingResult(*look, index=value) for value, look in enumerate((zero, one))}
    return [model.ValueMap(found)]


SYMPTOM: Final = states(("no", OFF), ("yes", BAD))
KIND: Final = states(("", OFF), ("holds", FIRST))
UP: Final = states(("down", BAD), ("up", GOOD))

TOKENS_PER_SECOND: Final = "suffix: tok/s"
REQUESTS_PER_SECOND: Final = "suffix: req/s"
TIMES: Final = "suffix:×"  # noqa: RUF001 - as people write it
"""Units that Grafana has no name for: it writes what follows behind the number."""
