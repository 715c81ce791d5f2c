"""`kvpressure check-config`: everything that is wrong with the settings, at once."""

from __future__ import annotations

import os

import click

from kvpressure.cli.options import given, refuse, settings_flags
from kvpressure.cli.say import say
from kvpressure.config.settings import ConfigError, Problem, load_settings
from kvpressure.config.settings.load import load
from kvpressure.web.config import WebGuard


@click.command()
@settings_flags
def command(**flags: str | None) -> None:
    """Check kvpressure.yaml, KVPRESSURE_ variables, thresholds and the web configuration.

    Prints every problem with its file and line and ends with exit code 2, or says what would be in force.
    """
    # Sources bring sections along, and load what they read with: not for --help.
    from kvpressure.daemon.node_sources import settings_model  # noqa: PLC0415

    try:
        settings = load_settings(given(flags), os.environ, settings_model())
    except ConfigError as error:
        refuse(error)
    problems: list[Problem] = []
    for check in (lambda: load(lambda: settings), lambda: WebGuard(settings.web.config_file)):
        try:
            check()
        except ConfigError as error:
            problems += error.problems
    if problems:
        refuse(ConfigError(problems))
    source = settings.config_file or "no file"
    fixed, listed = len(settings.engines.targets), len(settings.engines.file_sd)
    engines = (
        "an engine on localhost:8000" if settings.single_machine else f"{fixed} fixed targets, {listed} file_sd entries"
    )
    say(f"settings are good ({source}): {engines}; thresholds {load(lambda: settings).thresholds.hash}")
