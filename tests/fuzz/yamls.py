"""YAML for the targets that read it: data written in any style, and what makes YAML dangerous."""

import json
import os
import tempfile
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import yaml

FIXTURES = Path(__file__).parents[1] / "fixtures"
WORDS = (
    *(
        b"&a ",
        b"*a",
        b"<<: ",
        b"!!str ",
        b"!!python/object:os.system ",
        b"? ",
        b"- ",
        b": ",
        b"|\n ",
        b">-\n ",
        b"---\n",
        b"...\n",
    ),
    *(
        b"null",
        b"~",
        b"true",
        b"yes",
        b"1:30",
        b"0o17",
        b"0x1f",
        b".inf",
        b"-.INF",
        b".nan",
        b"1e400",
        b"1_000",
        b"2024-13-45",
    ),
    *(
        b"2024-01-01T00:00:00Z",
        b'"\\ud800"',
        b'"\\0"',
        b"'",
        b'"',
        b"{",
        b"}",
        b"[",
        b"]",
        b",",
        b"#",
        b"%YAML 1.1\n",
        b"\t",
    ),
    *(
        b"[[[[[[[[",
        b"{a: {a: {a: {a: ",
        b"&a [*a, *a]",
        b"\xef\xbb\xbf",
        "\u2028\u0085".encode(),
        b"9" * 30,
        b"1e400Gi",
    ),
)
SCALARS: tuple[Any, ...] = (
    *(
        None,
        True,
        False,
        0,
        1,
        -1,
        15,
        0.5,
        1e-3,
        1e308,
        float("inf"),
        float("nan"),
        2**63,
        10**400,
        "",
        " ",
        "a",
        "yes",
        "1:30",
    ),
    *(
        "0x1f",
        "1e400",
        "1_000",
        "~",
        "null",
        "\x00",
        "\x1b[0m",
        "\u2028",
        "\ufeff",
        "x" * 200,
        "/dev/null",
        "../x",
        "localhost",
    ),
    *(
        "http://localhost:8000",
        "https://u:p@h",
        "http://[::1]:1",
        "all",
        "auto",
        ":10405",
        "[::]:0",
        "GPU-1",
        "INF",
        ".inf",
    ),
    *([], {}, [1], {"a": 1}, [[]], "a: b", "- a", "#", "*a", "&a", "!x", "2024-13-45", "\U0001f600", "a\nb", "\udcff"),
)
_STYLES: tuple[dict[str, Any], ...] = (
    {},
    {},
    {"default_flow_style": True},
    {"default_style": '"'},
    {"default_style": "|"},
)


def written(random: Random, data: Any) -> bytes:
    """`data` as YAML in one of its styles, or as JSON."""
    style = random.getrandbits(3)
    try:
        if style >= len(_STYLES):
            return json.dumps(data, indent=None if style == 5 else 1).encode()
        return yaml.dump(data, Dumper=yaml.CSafeDumper, sort_keys=False, allow_unicode=True, **_STYLES[style]).encode()
    except (ValueError, yaml.YAMLError):  # some of `SCALARS` cannot be written
        return repr(data).encode("utf-8", "replace")


def altered(random: Random, data: Any) -> Any:
    """A copy of `data` with some of its values, keys and entries replaced, doubled or left out."""
    if random.getrandbits(5) == 0:
        return random.choice(SCALARS)
    if isinstance(data, dict):
        pairs = [(key, altered(random, value)) for key, value in data.items() if random.getrandbits(4)]
        if random.getrandbits(4) == 0:
            pairs.append((random.choice(("x", "", "<<", "name", "value", "null")), random.choice(SCALARS)))
        return dict(pairs)
    if isinstance(data, list):
        return [altered(random, item) for item in data for _ in range((1, 1, 1, 1, 1, 1, 2, 0)[random.getrandbits(3)])]
    return data


def anything(random: Random, depth: int = 4) -> Any:
    """Some data."""
    choice = random.getrandbits(2) if depth else 3
    if choice == 0:
        return [anything(random, depth - 1) for _ in range(random.getrandbits(2))]
    if choice == 1:
        return {str(random.choice(SCALARS)): anything(random, depth - 1) for _ in range(random.getrandbits(2))}
    return random.choice(SCALARS)


def files(*folders: str) -> list[bytes]:
    """The YAML and JSON files of these folders of fixtures, and the first bytes of long ones."""
    found: Iterable[Path] = (path for folder in folders for path in sorted((FIXTURES / folder).glob("*")))
    return [path.read_bytes()[:8000] for path in found if path.suffix in (".yaml", ".yml", ".json")]


@cache
def folder() -> tempfile.TemporaryDirectory[str]:
    """A folder for files that a target has to be given by name; it goes with the process."""
    return tempfile.TemporaryDirectory(prefix="fuzz-", dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None)


def file(name: str, data: bytes) -> Path:
    """A file with that content."""
    path = Path(folder().name) / name
    path.write_bytes(data)
    return path
