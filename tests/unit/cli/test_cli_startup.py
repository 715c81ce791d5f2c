"""What each command loads before it does anything: `--help` next to nothing, the others what they work with."""

import os
import resource
import subprocess
import sys

import pytest

from kvpressure.cli import COMMANDS, installed
from tests.support.tools import ROOT

pytestmark = pytest.mark.process

EXPORTER = ROOT / "exporter"
COSTLY = frozenset(
    (
        "aiohttp",
        "amdsmi",
        "asyncio",
        "bcrypt",
        "google",
        "grpclib",
        "jinja2",
        "lightkube",
        "markdown_it",
        "matplotlib",
        "msgspec",
        "prometheus_client",
        "pynvml",
        "rich",
        "ssl",
        "structlog",
        "yaml",
    )
)
"""Modules that take more than a few milliseconds to load."""

_HTTP = {"aiohttp", "asyncio", "ssl"}
_SERVER = {*_HTTP, "msgspec", "prometheus_client", "structlog", "yaml"}
_SAMPLER = {*_HTTP, "msgspec", "rich", "structlog", "yaml"}
USED = {
    "": set(),
    "run": _SERVER,
    "demo": {*_SERVER, "rich"},
    "triage": {"yaml"},  # a refused connection needs no more
    "record": _SAMPLER,
    "incidents": {*_HTTP, "jinja2", "yaml"},  # names are resolved as polls resolve them
    "whatif": _SAMPLER,
    "plan": {"yaml"},
    "audit": {"rich", "yaml"},
    "generate": {"jinja2", "yaml"},
    "replay": {"yaml"},
    "check-config": {"ssl", "yaml"},
}
ROOMS = {
    "kvpressure.bundle": {"generate"},
    "kvpressure_planner.audit": {"audit"},
    "kvpressure.kubernetes.watch.connection": set(),
    "kvpressure.kubernetes.kubectl": set(),
    "kvpressure.daemon.exporter": {"run", "demo"},
    "kvpressure.daemon.pollers": {"run", "demo", "whatif"},
    "kvpressure.diagnosis.symptoms": {"run", "demo", "incidents", "whatif", "replay"},
}
"""Rooms of our own, and the commands that enter them."""

LARGEST_RATIO = 15
"""`--help` takes five times the CPU of a Python that does nothing; a machine where that takes 30 ms has 0.5 s."""

_LISTING = """
import sys
sys.argv = ["kvpressure", *sys.argv[1:], "--help"]
from kvpressure.cli import main
try:
    main()
finally:
    print("\\n--modules--", *sys.modules)
"""


def python(*arguments: str) -> str:
    environment = os.environ | {"PYTHONPATH": str(EXPORTER)}
    done = subprocess.run([sys.executable, *arguments], env=environment, capture_output=True, text=True, check=True)
    return done.stdout


def loaded(name: str) -> set[str]:
    said, _, modules = python("-c", _LISTING, *([name] if name else [])).partition("--modules--")
    assert said.startswith("Usage: kvpressure")
    return set(modules.split())


def cpu_seconds(*arguments: str) -> float:
    """The least of five runs: what others do on the machine only ever adds."""

    def once() -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        python(*arguments)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    return min(once() for _ in range(5))


def test_every_command_is_looked_at() -> None:
    assert USED.keys() == {"", *COMMANDS}


@pytest.mark.parametrize("name", ["", *installed()])
def test_a_command_loads_what_it_uses_and_nothing_else(name: str) -> None:
    modules = loaded(name)
    assert modules & COSTLY == USED[name]
    assert {room for room in ROOMS if room in modules} == {room for room, users in ROOMS.items() if name in users}


def test_help_costs_little_more_than_python_itself() -> None:
    ratio = cpu_seconds("-m", "kvpressure", "--help") / cpu_seconds("-c", "pass")
    assert ratio < LARGEST_RATIO
