from __future__ import annotations

import signal
import sys
from collections.abc import Iterator

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


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("slow"):
            item.add_marker(pytest.mark.timeout(SLOW_TIMEOUT_SECONDS))
