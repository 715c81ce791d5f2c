"""Start commands to declared limits: never an error, never more than the budget, and what argparse would make of it.

An input is JSON: `command`, `args`, `env` and maybe `files` of a container.
"""

import argparse
import json
import math
import re
import shlex
from collections.abc import Sequence
from random import Random
from typing import Any

from kvpressure.commandline.options import human, share, whole
from kvpressure.commandline.words import Budget
from kvpressure.launch import Start, declared, read_limits, read_start, runtime_of, serving_port
from kvpressure.model.environment import LIMIT_NAMES
from tests.fuzz import starts
from tests.fuzz.target import Target, expect

_WORK = 40_000
_READ = {
    "max_model_len": human,
    "max_num_seqs": whole,
    "max_num_batched_tokens": human,
    "gpu_memory_utilization": share,
}
_SPELLED = re.compile(r"--(max[-_]model[-_]len|max-mo|max[-_]num[-_]seqs|max-num-se|gpu[-_]memory[-_]utilization"
                      r"|max[-_]num[-_]batched[-_]tokens|max-num-ba|port)(=[0-9A-Za-z.]+)?")  # fmt: skip
_VALUE = re.compile(r"[0-9][0-9A-Za-z.]*")


def check(data: bytes) -> tuple[object, ...]:
    """A container that is none is skipped: what the API server gives has these types."""
    try:
        container = json.loads(data)
        command, args = _texts(container["command"]), _texts(container["args"])
        env, files = _mapping(container["env"]), _mapping(container.get("files", {}))
    except (ValueError, KeyError, TypeError, RecursionError):
        return ("no container",)
    start = _start(command, args, env, files)
    reading = read_limits(start)
    for name, limit in reading.limits.items():
        expect(name in LIMIT_NAMES and math.isfinite(limit.value) and limit.value >= 0, "a limit that is none", limit)
        expect(limit.value > 0 or name == "kv_watermark_ratio", "a limit of nothing", limit)
        expect(len(limit.where) <= 200, "a source without an end", limit)
    expect(not (reading.limits.keys() & reading.unclear.keys()), "a limit is given and unclear", reading)
    port = serving_port(start)
    expect(port is None or 0 < port <= 65535, "a port that is none", port)
    images = ("vllm/vllm-openai:v0.11.0", "lmsysorg/sglang:v0.5.5", "")
    served = tuple(None if (one := runtime_of(image, start)) is None else one.name for image in images)
    if command[:2] == ["vllm", "serve"] and not env:
        _against_argparse([*command[2:], *args])
    given = declared(reading, command_is_known=start.is_known)
    limits = None if given is None else len(given)
    return (bool(start.cut), start.is_known, len(start.servers), served, port is None, limits)


def _start(command: Sequence[str], args: Sequence[str], env: dict[str, str], files: dict[str, str]) -> Start:
    budget = Budget(_WORK)
    start = read_start(command, args, env, budget, files)
    expect(bool(start.cut) or budget.left >= 0, "the budget is spent and the reading is not cut")
    made = sum(len(word) for server in start.servers for word in server.words)
    expect(made <= 3 * _WORK, "more is made of a command than was paid for", made)
    return start


def _texts(value: Any) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
        raise TypeError
    return value


def _mapping(value: Any) -> dict[str, str]:
    if not isinstance(value, dict) or not all(isinstance(one, str) for one in value.values()):
        raise TypeError
    return value


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> Any:
        raise ValueError(message)


def _against_argparse(words: list[str]) -> None:
    """Well-formed options only; the same words through a shell are the same limits."""
    rest = iter(words[1:])
    for word in rest:
        match = _SPELLED.fullmatch(word)
        if match is None or (match[2] is None and not _VALUE.fullmatch(next(rest, ""))):
            return
    parser = _Parser(add_help=False)
    parser.add_argument("model")
    for name in (*_READ, "port"):
        parser.add_argument(f"--{name.replace('_', '-')}")
    spelled = [re.sub(r"^--[a-z_-]+", lambda found: found[0].replace("_", "-"), word) for word in words]
    if not words or not _VALUE.fullmatch(words[0].replace("m", "1")):
        return
    known = vars(parser.parse_args(spelled))
    expected = {name: read(known[name]) for name, read in _READ.items() if known[name] is not None}
    for start in (
        _start(["vllm", "serve"], words, {}, {}),
        _start(["sh", "-c", f"exec {shlex.join(['vllm', 'serve', *words])}"], [], {}, {}),
    ):
        reading = read_limits(start)
        found = {name: limit.value for name, limit in reading.limits.items()}
        expect(
            found == {n: v for n, v in expected.items() if v is not None},
            "other limits than argparse's",
            (words, found),
        )
        port = None if known["port"] is None else whole(known["port"])
        expect(
            serving_port(start) == (int(port) if port is not None and port <= 65535 else None), "another port", words
        )


def make(random: Random) -> bytes:
    """A container; half of them well-formed, for argparse."""
    if random.getrandbits(1):
        options = [option for _ in range(random.getrandbits(3)) for option in starts.option(random)]
        return json.dumps({"command": ["vllm", "serve", "m"], "args": options, "env": {}}).encode()
    container = starts.container(random)
    if random.getrandbits(2) == 0:
        lines = [f"{' '.join(starts.option(random))[2:].replace(' ', ': ').replace('=', ': ')}" for _ in range(3)]
        container["files"] = {"/c.yaml": "\n".join(lines), "/g/generation_config.json": '{"max_new_tokens": 7}'}
    return json.dumps(container).encode()


TARGET = Target(
    about="a container's command, arguments and variables as an engine's limits, with argparse as the oracle",
    make=make,
    check=check,
    words=(
        *(piece.encode() for piece in starts.PIECES),
        b'","',
        b'"command"',
        b"--config",
        *(f"--{o}".encode() for o in starts.OPTIONS),
    ),
    longest_bytes=1500,
)
