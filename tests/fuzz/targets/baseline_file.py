"""Files of baselines: nothing but ValueError is raised, and every number that is believed is in its range."""

from __future__ import annotations

import json
from random import Random

from kvpressure.daemon.baseline_file import FORMAT, MAX_VALUE, parsed
from kvpressure.signals.baseline import NAMES
from tests.fuzz.target import Target, expect

_NOW = 1.8e9
_VALUES = (0, 1, 2.5, -1, 1e7, 1e8, float("nan"), float("inf"), True, None, "1", [], 10**400)


def check(data: bytes) -> tuple[object, ...]:
    """What is read has names, and pairs of numbers."""
    try:
        found = parsed(data, _NOW, 8)
    except (ValueError, RecursionError):
        return ("refused",)
    expect(len(found) <= 8, "more engines than may be held")
    for key, healthy in found.items():
        expect(all(isinstance(one, str) for one in (key.target, key.model_name, key.rank)), "a label that is no text")
        expect(set(healthy) <= NAMES, "a value of no name", healthy)
        numbers = [value for pair in healthy.values() for value in pair]
        expect(all(isinstance(one, float) and 0 <= one <= MAX_VALUE for one in numbers), "a number", numbers)
    return ("read", bool(found), any(found.values()))


def make(random: Random) -> bytes:
    """A file, altered in places."""
    names = (*sorted(NAMES), "other", "")
    engine = {
        "target": random.choice(("t", "t", 5, None, "x" * 2000)),
        "model_name": "m",
        "engine": "0",
        "healthy": {random.choice(names): [random.choice(_VALUES) for _ in range(random.choice((2, 2, 2, 1, 3)))]},
    }
    written = random.choice((_NOW, _NOW, _NOW - 1e6, _NOW + 1e6, 10**400, None, "now"))
    file = {"format": random.choice((FORMAT, FORMAT, "other")), "written": written, "engines": [engine] * 3}
    return json.dumps(file).encode()


_EXAMPLE = json.dumps(
    {
        "format": FORMAT,
        "written": _NOW,
        "engines": [{"target": "t", "model_name": "m", "engine": "0", "healthy": {"e2e": [1.5, 60.0]}}],
    }
).encode()

TARGET = Target(
    about="files of baselines",
    make=make,
    check=check,
    seeds=lambda: [_EXAMPLE],
    words=(b"[", b"]", b"{", b"NaN", b"Infinity", b"1e999", b'"healthy":', b'"engines":', b'"written":'),
)
