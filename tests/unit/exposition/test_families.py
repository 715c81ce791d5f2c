"""Where families are declared: beside what gives their values, and nowhere twice."""

from __future__ import annotations

import inspect
import pkgutil
import re
from collections import Counter
from importlib import import_module
from types import ModuleType

import pytest

from kvpressure import signals
from kvpressure.advice import limits
from kvpressure.bundle import Options, load_rules
from kvpressure.config.thresholds import load_thresholds
from kvpressure.exposition import families
from kvpressure.exposition.families import EXPORTER, FAMILIES, JSON_VALUES, STABLE
from kvpressure.model.family import Family
from kvpressure.signals import past, reading
from kvpressure.simulation import unconstrained

OF_THE_VERDICT = (signals, past, reading)
"""Put values beside those of every module: the newest polls as the verdict counts them, and the batches so far."""


def declared_in(module: ModuleType) -> tuple[Family, ...]:
    """The families of the tuples that a module holds."""
    held = [value for value in vars(module).values() if isinstance(value, tuple)]
    return tuple(family for value in held for family in value if isinstance(family, Family))


OF_SIGNALS = [import_module(f"{signals.__name__}.{info.name}") for info in pkgutil.iter_modules(signals.__path__)]
DECLARED: dict[ModuleType, tuple[Family, ...]] = {
    **{module: found for module in (*OF_SIGNALS, unconstrained, limits) if (found := declared_in(module))},
    families: (*families.VERDICTS, *families.TARGETS, *families.SOURCES, *families.CONTAINERS),
}


@pytest.mark.parametrize("module", DECLARED, ids=lambda module: module.__name__)
def test_what_is_declared_in_a_module_is_given_there(module: ModuleType) -> None:
    text = "".join(map(inspect.getsource, (module, *OF_THE_VERDICT)))
    assert [one.key for one in DECLARED[module] if text.count(f'"{one.key}"') < 2] == []


def test_the_table_has_all_of_them_once() -> None:
    declared = [one for given in DECLARED.values() for one in given]
    table = Counter(one.key for one in (*FAMILIES, *JSON_VALUES))
    assert table == Counter(one.key for one in (*declared, *EXPORTER))
    assert max(table.values()) == 1


def test_what_pages_is_stable() -> None:
    files = load_rules(Options(load_thresholds()))
    alerts = [alert.rule["expr"] for file in files for alert in file.alerts if alert.severity != "info"]
    asked = set(re.findall(r"(?<![:\w])kvpressure_(\w+)", " ".join(alerts)))
    assert asked - STABLE == set()
    assert {one.key for one in FAMILIES} >= STABLE
