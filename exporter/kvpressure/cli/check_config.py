"""`kvpressure check-config`: everything that is wrong with the settings, at once."""

from __future__ import annotations

import os

import click

from kvpressure.cli.options import given, refuse, settings_flags
from kvpressure.daemon import load
from kvpressure.settings import ConfigError, load_settings
from kvpressure.webauth import WebGuard


@click.command()
@settings_flags
def command(**flags: str | None) -> None:
    """Check kvpressure.yaml, KVPRESSURE_ variables, thresholds and the web configuration.

    Prints every problem with its file and line and ends with exit code 2, or says what would be in force.
    """
    try:
        loaded = load(lambda: load_settings(given(flags), os.environ))
        WebGuard(loaded.settings.web.config_file)
    except ConfigError as error:
        refuse(error)
    settings = loaded.settings
    source = settings.config_file or "no file"
    fixed, listed = len(settings.engines.targets), len(settings.engines.file_sd)
    engines = (
        "vLLM on localhost:8000" if settings.single_machine else f"{fixed} fixed targets, {listed} file_sd entries"
    )
    click.echo(f"settings are good ({source}): {engines}; thresholds {loaded.thresholds.hash}")
