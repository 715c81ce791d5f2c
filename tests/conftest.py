import signal
import sys
from collections.abc import Iterator
from typing import Any, Final

import pytest
import structlog
from dashboards.__main__ import main as build_dashboards
from hypothesis import HealthCheck, settings

SLOW_TIMEOUT_SECONDS = 3600
"""Tests that take minutes of real time are given an hour before they count as hanging."""

# No test depends on how busy the machine is.
settings.register_profile("unhurried", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("unhurried")

# A shell starts background jobs with SIGINT ignored, and so would be every program that a test starts and interrupts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def its_own_log_level() -> Iterator[None]:
    """No test hears less of the log because one before it ran a command that is quiet."""
    yield
    structlog.reset_defaults()


def pytest_configure(config: pytest.Config) -> None:
    """Build the dashboards' templates, which are not in git, once and before any worker starts."""
    if not hasattr(config, "workerinput") and (changed := build_dashboards()):
        sys.stderr.write(f"built dashboards/templates: {changed} files changed\n")
    if config.getoption("--quick"):
        sys.addaudithook(_refuse)


NOT_QUICK: Final = {"recorded", "process", "exhaustive"}
_STARTS: Final = {"subprocess.Popen", "os.fork", "os.posix_spawn", "os.exec"}
_RECORDINGS: Final = (".jsonl.xz", ".jsonl.gz")


class UnmarkedError(AssertionError):
    """A test under `make quick` that does what its marks do not say."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--quick", action="store_true", help="only tests without recordings, processes and long searches")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("slow"):
            item.add_marker(pytest.mark.timeout(SLOW_TIMEOUT_SECONDS))
    if config.getoption("--quick"):
        left_out = [item for item in items if any(item.get_closest_marker(name) for name in NOT_QUICK)]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in set(left_out)]


@pytest.fixture(autouse=True)
def as_its_marks_say(request: pytest.FixtureRequest) -> Iterator[None]:
    """Under `make quick`, a test neither starts a process nor opens a recording."""
    _watched[:] = [request.node.nodeid] if request.config.getoption("--quick") else []
    yield
    _watched.clear()


_watched: list[str] = []


def _refuse(event: str, arguments: tuple[Any, ...]) -> None:
    """Fail a test that starts a process or opens a recording: its file lacks the mark, and would slow `make quick`."""
    if not _watched:
        return
    if event in _STARTS:
        raise UnmarkedError("starts a process: mark it `process`")
    if event == "open" and str(arguments[0]).endswith(_RECORDINGS):
        raise UnmarkedError(f"opens {arguments[0]}: mark it `recorded`")
