"""The flags that `run`, `demo` and `check-config` share, and how wrong settings are shown."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any, NoReturn, TypeVar

import click

from kvpressure.cli.say import say
from kvpressure.config.strict_yaml import ConfigError

F = TypeVar("F", bound=Callable[..., Any])

_FLAGS = {
    "--config": "Settings file; without it kvpressure.yaml in the working directory, if there is one.",
    "--web.listen-address": "Address to listen on, such as :10405 or 127.0.0.1:10405.",
    "--web.telemetry-path": "Path of the metrics page.",
    "--web.config.file": "TLS and basic auth of the server, in the exporter-toolkit's format.",
    "--port": "Port to scrape on pods that declare none.",
    "--log.level": "debug, info, warning or error.",
    "--log.format": "logfmt or json.",
}
_ALSO = {"--config": ("--config.file",)}
"""Other names of a flag: Prometheus' own spelling, which manifests are written with."""


def settings_flags(function: F) -> F:
    """Add the flags; the command gets those that were given as keyword arguments, which `given` turns back."""
    for flag, text in reversed(_FLAGS.items()):
        names = (flag, *_ALSO.get(flag, ()), _parameter(flag))
        function = click.option(*names, default=None, metavar="TEXT", help=text)(function)
    return function


def given(parameters: Mapping[str, str | None]) -> dict[str, str]:
    """Return the flags that were given, by the names that the settings know them by."""
    found = ((_ALSO.get(flag, (flag,))[0], parameters.get(_parameter(flag))) for flag in _FLAGS)
    return {flag: value for flag, value in found if value is not None}


def refuse(error: ConfigError, see: str = "see docs/configuration.md for every key") -> NoReturn:
    """Show every problem, and where to read on unless `see` is empty, and end with exit code 2."""
    for problem in error.problems:
        say(problem, err=True)
    count = len(error.problems)
    say(f"{count} problem{'s' if count > 1 else ''} found{'; ' if see else ''}{see}", err=True)
    sys.exit(2)


def _parameter(flag: str) -> str:
    return flag.strip("-").replace(".", "_").replace("-", "_")
