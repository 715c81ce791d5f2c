"""`kvpressure check-config`: everything that is wrong with the settings, at once."""

from __future__ import annotations

import os

import click

from kvpressure.cli.options import given, refuse, settings_flags
from kvpressure.daemon import load
from kvpressure.settings import ConfigError, load_settings
from kvpressure.webconfig import load_web_config


@click.command()
@settings_flags
def command(**flags: str | None) -> None:
    """Check kvpressure.yaml, KVPRESSURE_ variables, thresholds and the web configuration.

    Prints every problem with its file and line and ends with exit code 2, or says what would be in force.
    """
    try:
        loaded = load(lambda: load_settings(given(flags), os.environ))
        if loaded.settings.web.config_file is not None:
            load_web_config(loaded.settings.web.config_file)
    except ConfigError as error:
        refuse(error)
    settings = loaded.settings
    source = settings.config_file or "no file"
    engines = "vLLM on localhost:8000" if settings.single_machine else f"{len(settings.engines.targets)} fixed targets"
    discovery = f", {len(settings.engines.file_sd)} file_sd entries" if settings.engines.file_sd else ""
    click.echo(f"settings are good ({source}): {engines}{discovery}; thresholds {loaded.thresholds.hash}")
