"""Options that several commands share, and the output for invalid settings."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import click

from kvpressure.cli.say import fail, say
from kvpressure.config.files import read_text
from kvpressure.config.strict_yaml import ConfigError
from kvpressure.config.thresholds import Thresholds, load_thresholds

Decorator = Callable[[Any], Any]

EXISTING_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)

_FLAGS = {
    "--config": "Settings file; without it kvpressure.yaml in the working directory, if there is one.",
    "--web.listen-address": "Address to listen on, such as :10405 or 127.0.0.1:10405.",
    "--web.config.file": "TLS and basic auth of the server, in the exporter-toolkit's format.",
    "--log.level": "debug, info, warning or error.",
    "--log.format": "logfmt or json.",
}
_ALSO = {"--config": ("--config.file",)}
"""Other names of a flag: those of Prometheus, which manifests use."""


def together(*options: Decorator) -> Decorator:
    """Return a decorator for all of `options`, in the order of the help text."""
    return lambda function: functools.reduce(lambda made, option: option(made), reversed(options), function)


class UsualFirst(click.Command):
    """A command of many options: `--help` shows those named in `usual`, in that order, `--help-all` the others too."""

    def __init__(self, *args: Any, usual: Sequence[str], **extra: Any) -> None:
        super().__init__(*args, **extra)
        self._usual = {name: at for at, name in enumerate(usual)}
        eager: dict[str, Any] = {"is_flag": True, "is_eager": True, "expose_value": False, "callback": self._show_all}
        self.params.append(click.Option(["--help-all"], help="Show every option and exit.", **eager))

    def _show_all(self, ctx: click.Context, _: click.Parameter, given: bool) -> None:
        if given:
            self._usual = {}
            say(*self.get_help(ctx).splitlines())
            ctx.exit()

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options as one list."""
        usual = self._usual
        shown = [each for each in self.get_params(ctx) if not usual or each.name in {*usual, "help", "help_all"}]
        shown.sort(key=lambda each: usual.get(each.name or "", len(usual)))
        rows = [row for each in shown if (row := each.get_help_record(ctx)) is not None]
        with formatter.section("Usual options" if usual else "Options"):
            formatter.write_dl(rows)


def _parameter(flag: str) -> str:
    return flag.strip("-").replace(".", "_").replace("-", "_")


settings_flags = together(
    *(
        click.option(flag, *_ALSO.get(flag, ()), _parameter(flag), default=None, metavar="TEXT", help=text)
        for flag, text in _FLAGS.items()
    )
)
"""The command gets them as keyword arguments, from which `given` makes flags again."""


def given(parameters: Mapping[str, str | None]) -> dict[str, str]:
    """Return the flags given, by their names in the settings."""
    texts = ((_ALSO.get(flag, (flag,))[0], parameters.get(_parameter(flag))) for flag in _FLAGS)
    return {flag: value for flag, value in texts if value is not None}


def thresholds_of(overrides: Path | None) -> Thresholds:
    """Return the thresholds, with those of a file in force. Raises ConfigError."""
    return load_thresholds(None if overrides is None else read_text(overrides), override_name=str(overrides))


def refuse(error: ConfigError, see: str = "see docs/configuration.md for every key") -> NoReturn:
    """Print every problem, and where to read on, and exit with code 2."""
    count = len(error.problems)
    fail(*error.problems, f"{count} problem{'s' if count > 1 else ''} found; {see}")
