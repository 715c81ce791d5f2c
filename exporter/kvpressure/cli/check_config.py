"""`kvpressure check-config`: prints all problems of the settings."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import click

from kvpressure.cli.options import given, refuse, thresholds_of
from kvpressure.cli.say import say
from kvpressure.config import strict_yaml
from kvpressure.config.settings import ConfigError, Problem, load_settings
from kvpressure.config.settings.load import files_named, load
from kvpressure.config.settings.section import Section, fields_of
from kvpressure.web.config import WebGuard


@click.command()
@click.argument("file", required=False)
@click.option("--config", "--config.file", "config", metavar="TEXT", help="The same as FILE, as `run` names it.")
def command(file: str | None, config: str | None) -> None:
    """Check kvpressure.yaml, KVPRESSURE_ variables, thresholds and the web configuration.

    FILE is the settings file; without it kvpressure.yaml in the working directory, if there is one. Prints every
    problem with its file and line and ends with exit code 2, or says what would be in force.
    """
    # Imports all sources, which register sections: not for --help.
    from kvpressure.daemon.node_sources import settings_model  # noqa: PLC0415

    if file and config:
        raise click.UsageError("give the settings file once: FILE or --config")
    read = given({"config": file or config}), os.environ, settings_model()
    problems: list[Problem] = []
    try:
        settings = load_settings(*read)
        loaded = load(lambda: settings)
        WebGuard(settings.web.config_file)
    except ConfigError as error:
        problems += error.problems
        thresholds, guard = files_named(*read)
        for check in (lambda: thresholds_of(thresholds), lambda: WebGuard(guard)):
            try:
                check()
            except ConfigError as also:
                problems += also.problems
        refuse(ConfigError(problems))
    source = settings.config_file or "no file"
    fixed, listed = len(settings.engines.targets or ()), len(settings.engines.file_sd or ())
    targets = f"targets: {fixed} in the settings, {listed} file_sd entries"
    engines = "an engine on localhost:8000" if settings.single_machine else targets
    say(f"settings are good ({source})\n  {engines}\n  thresholds {loaded.thresholds.hash}")
    for note in _unreadable(settings, ()):
        say(f"note: {note}", err=True)


def _unreadable(section: Section, path: strict_yaml.Path) -> Iterator[str]:
    """Yield a sentence for each file that cannot be read here; it may be there where the exporter runs."""
    for name in fields_of(type(section)):
        value = getattr(section, name)
        for at, part in enumerate(value) if isinstance(value, tuple) else ((None, value),):
            inner = (*path, name) if at is None else (*path, name, at)
            if isinstance(part, Section):
                yield from _unreadable(part, inner)
            elif isinstance(part, Path) and name.endswith("_file") and not os.access(part, os.R_OK):
                yield f"{strict_yaml.dotted(inner)}: {part} cannot be read on this machine"
