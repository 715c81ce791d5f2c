"""Strict YAML: what it accepts is what PyYAML reads, scalars by the 1.2 core schema; anything else is a ConfigError."""

from fractions import Fraction
from random import Random
from typing import Any

import yaml

from kvpressure.config import strict_yaml
from kvpressure.config.strict_yaml import MAX_DEPTH, MAX_PROBLEMS, MAX_SHOWN, ConfigError
from tests.fuzz.target import Target, expect
from tests.fuzz.yamls import WORDS, altered, anything, files, written


def check(data: bytes) -> tuple[object, ...]:
    text = data.decode("utf-8", "replace")
    try:
        document = strict_yaml.load(text, "f.yaml")
    except ConfigError as error:
        _bounded(error)
        return ("refused", error.problems[0].message[:12])
    _same(document.data, yaml.load(text, Loader=yaml.CBaseLoader), 0)
    try:
        safe = yaml.load(text, Loader=yaml.CSafeLoader)
    except (yaml.YAMLError, ValueError):
        safe = document.data  # a date that is none
    _alike(document.data, safe)
    most = 2 + sum(map(text.count, "\n\r\u2028\u2029\x85"))
    expect(all(1 <= line <= most for line in document.lines.values()), "a line that the file does not have")
    return (type(document.data).__name__, min(len(document.lines), 9))


def _bounded(error: ConfigError) -> None:
    expect(0 < len(error.problems) <= MAX_PROBLEMS + 1, "too many problems, or none")
    expect(len(str(error)) < (MAX_PROBLEMS + 1) * 3 * (MAX_SHOWN + 8), "problems are longer than a page")


def _same(ours: Any, base: Any, depth: int) -> None:
    """The same structure; of a scalar, `base` is the text as it is written."""
    expect(depth <= MAX_DEPTH, "deeper than allowed")
    if isinstance(ours, dict):
        expect(isinstance(base, dict) and list(ours) == list(base), "other keys than PyYAML's", (ours, base))
        for key, value in ours.items():
            _same(value, base[key], depth + 1)
    elif isinstance(ours, list):
        expect(isinstance(base, list) and len(ours) == len(base), "another list than PyYAML's", (ours, base))
        for one, other in zip(ours, base, strict=True):
            _same(one, other, depth + 1)
    elif ours is None:
        expect(base in (None, "", "~", "null"), "null where something is written", base)
    elif isinstance(ours, bool):
        expect(base == str(ours).lower(), "a boolean that is none", base)
    elif isinstance(ours, int):
        expect(ours == int(base, 16 if base.startswith("0x") else 10), "another whole number", base)
    elif isinstance(ours, float):
        expect("inf" in base.lower() or "nan" in base.lower() or _near(ours, base), "another number", base)
    else:
        expect(ours == base, "another text than PyYAML's", (ours, base))


def _near(ours: float, written: str) -> bool:
    if not 1e-300 < abs(ours) < 1e308:
        return True  # at the ends of a float's range
    exact = Fraction(written.strip("+")) if "e" not in written.lower() or len(written) < 30 else Fraction(ours)
    return abs(Fraction(ours) - exact) <= abs(exact) / 2**52


def _alike(ours: Any, safe: Any) -> None:
    """Where YAML 1.1 means the same type, it means the same value."""
    if isinstance(ours, dict) and isinstance(safe, dict) and len(ours) == len(safe):
        for one, other in zip(ours.values(), safe.values(), strict=True):
            _alike(one, other)
    elif isinstance(ours, list) and isinstance(safe, list):
        for one, other in zip(ours, safe, strict=True):
            _alike(one, other)
    elif type(ours) is type(safe) and not isinstance(ours, dict | list | int):  # 012 is 12 here, and 10 in YAML 1.1
        expect(repr(ours) == repr(safe), "another value than safe_load's", (ours, safe))


def make(random: Random) -> bytes:
    """Some data, or that of a file, as YAML."""
    if random.getrandbits(2):
        return written(random, anything(random))
    try:
        data = yaml.load(random.choice(_SEEDS), Loader=yaml.CSafeLoader)
    except (yaml.YAMLError, ValueError):
        return random.choice(_SEEDS)
    return written(random, altered(random, data))[:4096]


_SEEDS = [
    one[:3000]
    for one in files("config/settings", "config/thresholds", "config/web", "config/file_sd", "kubernetes/pods")
]

TARGET = Target(
    about="YAML read strictly, with PyYAML as the oracle",
    make=make,
    check=check,
    seeds=lambda: _SEEDS,
    words=WORDS,
)
