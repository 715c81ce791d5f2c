"""Overrides of thresholds: refused with lines, or values within their ranges that can be written again."""

from random import Random
from typing import Any
from unittest.mock import patch

import yaml

from kvpressure.config import strict_yaml
from kvpressure.config.strict_yaml import ConfigError
from kvpressure.config.thresholds import _UNIT_OF, ASCENDING, UNITS, Thresholds, load_thresholds, packaged_text
from tests.fuzz.target import Target, expect
from tests.fuzz.yamls import SCALARS, WORDS, files, written

_DEFAULTS = load_thresholds()
_BASE = "\n".join(f"{n}: {{value: {v!r}, unit: {_UNIT_OF[n]}, why: x, source: x}}" for n, v in _DEFAULTS.values.items())


_PACKAGED = _DEFAULTS.values
_READ = strict_yaml.load(_BASE, "thresholds.yaml")
_load = strict_yaml.load


def _loaded(text: str) -> Thresholds:
    """With what is overridden read once: it is the same for all inputs, and reading it takes thirty times as long."""
    with patch.object(
        strict_yaml, "load", lambda text, name, **more: _READ if text is _BASE else _load(text, name, **more)
    ):
        return load_thresholds(text, base=_BASE)


def check(data: bytes) -> tuple[object, ...]:
    """An override that is accepted."""
    text = data.decode("utf-8", "replace")
    try:
        found = _loaded(text)
    except ConfigError as error:
        expect(error.problems and len(str(error)) < 200_000, "problems without an end, or none")
        return ("refused", error.problems[0].message[:20])
    values = found.values
    changed = {name: value for name, value in values.items() if value != _PACKAGED[name]}
    for name, value in values.items():
        low, high = UNITS[_UNIT_OF[name]]
        expect(low <= value <= high, "a value out of its unit's range", (name, value))
    expect(all(values[low] < values[high] for low, high in ASCENDING), "a pair that contradicts itself")
    again = _loaded(yaml.safe_dump(changed)) if changed else found
    expect(again == found and again.hash == found.hash, "values written again are others")
    expect((found.hash == _DEFAULTS.hash) == (not changed), "equal values, another hash, or the reverse")
    return ("accepted", len(changed))


def make(random: Random) -> bytes:
    """Some names with values, mostly of the right unit."""
    data: dict[str, Any] = {}
    for _ in range(random.getrandbits(2)):
        name = random.choice(list(_UNIT_OF))
        low, high = UNITS[_UNIT_OF[name]]
        value: Any = random.choice((low, high, random.uniform(low, high), round(random.uniform(low, high), 2)))
        value = value if random.getrandbits(2) else random.choice((*SCALARS, low - 1e-9, high + 1, 10**17, "0.5"))
        unit = _UNIT_OF[name] if random.getrandbits(3) else random.choice(list(UNITS))
        data[name] = value if random.getrandbits(1) else {"value": value, "unit": unit}
    return written(random, data)


TARGET = Target(
    about="an operator's overrides of thresholds",
    make=make,
    check=check,
    seeds=lambda: [*files("config/thresholds"), packaged_text()[:3000].encode()],
    words=(*WORDS, *(name.encode() for name in _UNIT_OF), b"value: ", b"unit: ratio"),
    longest_bytes=1500,
    slow_seconds=0.5,
)
