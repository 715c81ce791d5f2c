"""Settings from a file, variables and flags: refused with places, or the same when they are written again."""

import json
from functools import cache
from random import Random
from typing import Any

from kvpressure.config.settings import FLAGS, ConfigError, ListenAddress, Settings, load_settings
from kvpressure.config.settings.keys import Key, keys
from kvpressure.config.settings.section import Section, fields_of
from tests.fuzz.target import Target, expect
from tests.fuzz.yamls import SCALARS, WORDS, altered, file, files, written

_BETWEEN = b"\x1e"
_PLAUSIBLE: tuple[Any, ...] = (
    0.5,
    1,
    2,
    5.0,
    10,
    30,
    60,
    300,
    600,
    8000,
    True,
    False,
    "true",
    "auto",
    "info",
    "json",
    "/metrics",
)


@cache
def _keys() -> tuple[Key, ...]:
    return tuple(keys(Settings))


def check(data: bytes) -> tuple[object, ...]:
    """An input is a file, then lines of variables and of flags, a control character between them."""
    text, _, rest = data.partition(_BETWEEN)
    variables, _, given = rest.partition(_BETWEEN)
    flags = {"config.file": str(file("settings.yaml", text))} | _pairs(given)
    environ = {name: value for name, value in _pairs(variables).items() if name != "KVPRESSURE_CONFIG_FILE"}
    try:
        found = load_settings(flags, environ)
    except ConfigError as error:
        expect(error.problems and len(str(error)) < 200_000, "problems without an end, or none")
        return ("refused", error.problems[0].message[:16])
    repr(found)
    again = json.dumps(_plain(found))
    if "\\ud" in again:  # a path may be any bytes, a file of settings may not
        return ("accepted", "bytes")
    path = file("again.json", again.encode())
    try:
        reread = load_settings({"config.file": str(path)}, {})
    except ConfigError as error:
        expect(False, "accepted settings, written again, are refused", (again, str(error)))
    expect(reread.with_file(None) == found.with_file(None), "accepted settings, written again, are others", again)
    return ("accepted", *sorted(_plain(found))[:5])


def _pairs(lines: bytes) -> dict[str, str]:
    pairs = (line.partition("=") for line in lines.decode("utf-8", "surrogateescape").split("\n"))
    return {
        name: value for name, equals, value in pairs if equals and name != "config.file" and "\0" not in name + value
    }


def _plain(value: Any) -> Any:
    if isinstance(value, Section):
        given = {name: getattr(value, name) for name in fields_of(type(value))}
        return {name: _plain(inner) for name, inner in given.items() if inner != fields_of(type(value))[name].default}
    if isinstance(value, ListenAddress):
        return str(value)
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    return value if value is None or isinstance(value, bool | int | float) else str(value)


def make(random: Random) -> bytes:
    """Keys that there are, with values that they may have."""
    data: dict[str, Any] = {}
    for key in random.choices(_keys(), k=random.getrandbits(2)):
        _put(data, key.path, random.choice(_PLAUSIBLE if random.getrandbits(1) else SCALARS))
    if random.getrandbits(1):
        target = {
            "url": f"http://h{random.getrandbits(2)}:{random.choice((8000, 1, 0, 70000))}",
            "name": random.choice(("a", "b", 5)),
        }
        data["engines"] = {"targets": [altered(random, target) for _ in range(random.getrandbits(2))]}
    env = [
        f"{key.env}={random.choice((*_PLAUSIBLE, *SCALARS))}"
        for key in random.choices(_keys(), k=random.getrandbits(1))
    ]
    flags = [f"{random.choice(list(FLAGS))}={random.choice(SCALARS)}" for _ in range(random.getrandbits(1))]
    others = (one.encode("utf-8", "replace") for one in ("\n".join(env), "\n".join(flags)))
    return _BETWEEN.join((written(random, altered(random, data)), *others))


def _put(data: dict[str, Any], path: tuple[str, ...], value: Any) -> None:
    for part in path[:-1]:
        inner = data.setdefault(part, {})
        if not isinstance(inner, dict):
            return
        data = inner
    data[path[-1]] = value


TARGET = Target(
    about="settings from kvpressure.yaml, variables and flags together",
    make=make,
    check=check,
    seeds=lambda: files("config/settings"),
    words=(
        *WORDS,
        _BETWEEN,
        b"KVPRESSURE_",
        *(key.env.encode() for key in _keys()),
        *(key.path[-1].encode() for key in _keys()),
    ),
    longest_bytes=1500,
    slow_seconds=0.5,
)
