"""`kvpressure incidents`: reports the past incidents of the engines that a Prometheus scrapes."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from textwrap import wrap
from typing import Any, TypeVar

import click

from kvpressure.cli.access import http_config_option
from kvpressure.cli.options import EXISTING_FILE, refuse, thresholds_of
from kvpressure.cli.say import fail, say, say_json
from kvpressure.config.files import write_own
from kvpressure.config.strict_yaml import ConfigError
from kvpressure.config.thresholds import Thresholds
from kvpressure.model.errors import SourceError
from kvpressure.model.incident import Price
from kvpressure.printable import clean
from kvpressure.prometheus.names import Json, Selection
from kvpressure.prometheus.paging import Span
from kvpressure_incidents.collect import priced
from kvpressure_incidents.files import as_html, as_markdown
from kvpressure_incidents.look import look_back
from kvpressure_incidents.question import Question, moment_of, seconds_of
from kvpressure_incidents.words import BEHIND_CAPTION, INDENT, lines, summary

T = TypeVar("T")

FOUND = 1
_OUT = click.Path(dir_okay=False, path_type=Path)
_THRESHOLDS = "YAML of thresholds to judge by, as the exporter's thresholds_file."
MAX_WORKERS = 4


@click.command(epilog="Exit codes: 0 no incident, 1 incidents were found, 2 the Prometheus cannot be read.")
@click.option(
    "--prometheus",
    "url",
    required=True,
    metavar="URL",
    help="Prometheus, Thanos, Mimir or VictoriaMetrics, with its path.",
)
@click.option("--since", default="30d", show_default=True, help="How far back, such as 12h, or a date (UTC).")
@click.option("--until", default="now", show_default=True, help="Up to when: 2h is two hours ago; or a date (UTC).")
@click.option("--cluster", "clusters", multiple=True, metavar="NAME", help="The label cluster; may be repeated.")
@click.option("--selector", default="", metavar="MATCHERS", help='Label matchers of engines, such as namespace="prod".')
@click.option("--step", metavar="TIME", help="Time between samples, 15s to 60s; without it, as scraped.")
@click.option("--thresholds", type=EXISTING_FILE, help=_THRESHOLDS)
@click.option("--backtest", type=EXISTING_FILE, help="YAML of other thresholds: report how the incidents would differ.")
@click.option("--gpus-per-engine", type=click.IntRange(1), help="GPUs of one engine, for costs in GPU-seconds.")
@click.option("--price-per-hour", type=click.FloatRange(0), help="Price of one GPU, to give costs in money.")
@click.option("--currency", default="USD", show_default=True, help="Currency of the price.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document.")
@click.option("--html", type=_OUT, help="File to write as one HTML page, with pictures.")
@click.option("--markdown", type=_OUT, help="File to write as Markdown, for a post-mortem.")
@click.option("--workers", type=click.IntRange(1, 64), help="Processes that read; one for each CPU, at most 4.")
@http_config_option
def command(url: str, as_json: bool, **options: Any) -> None:
    """Report past incidents of the engines that a Prometheus scrapes: cause, cost, and what would have helped.

    Requires only the engines' own series, scraped every 15 to 60 seconds. Nothing is written to the Prometheus.
    """
    from kvpressure.cli.console import phases  # noqa: PLC0415 - what is refused needs none
    from kvpressure.prometheus.http_config import server_of  # noqa: PLC0415 - likewise

    try:
        thresholds, backtest = thresholds_of(options["thresholds"]), options["backtest"]
        server = server_of(url, options["http_config"])
        question = _question(options, thresholds, thresholds_of(backtest) if backtest else None)
        with phases() as show:
            workers = options["workers"] or min(MAX_WORKERS, len(os.sched_getaffinity(0)))
            document = look_back(server, question, show, workers=workers)
    except SourceError as error:
        fail(f"incidents: {error.sentence}")
    except ConfigError as error:
        refuse(error)
    except KeyboardInterrupt:
        fail("incidents: stopped")
    per_hour = options["price_per_hour"]
    price = None if per_hour is None else Price(per_hour, options["currency"])
    document = priced(document, options["gpus_per_engine"], price)
    if as_json:
        say_json(document)
    else:
        say(*_wrapped(summary(document), 2 * INDENT))
        for incident in document["incidents"]:
            say("", *_wrapped(lines(incident), BEHIND_CAPTION))
    _write(options["html"], as_html, document)
    _write(options["markdown"], as_markdown, document)
    sys.exit(FOUND if document["incidents"] or document["exporter_alone"] else 0)


def _wrapped(texts: Iterable[str], indent: str) -> Iterator[str]:
    """Yield the lines, on a terminal wrapped at its width, with what continues one behind `indent`."""
    from kvpressure.cli.console import console  # noqa: PLC0415 - what is refused needs none

    out = console()
    for text in texts:
        if out.is_terminal:
            yield from wrap(clean(text), out.width, subsequent_indent=indent, break_on_hyphens=False)
        else:
            yield text


def _write(path: Path | None, report: Callable[[Json], str], document: Json) -> None:
    if path is None:
        return
    try:
        write_own(path, report(document).encode())
    except OSError as error:
        fail(f"incidents: cannot write {path}: {error.strerror or error}")


def _question(options: dict[str, Any], thresholds: Thresholds, other: Thresholds | None) -> Question:
    """Return the question of the options. Raises click.UsageError."""
    now = time.time()

    def read(name: str, reader: Callable[[str], T]) -> T:
        try:
            return reader(options[name])
        except ValueError as error:
            raise click.BadParameter(str(error), param_hint=f"--{name.replace('_', '-')}") from None

    # Prometheus has no data of the future, nor of before the epoch.
    since, until = (min(now, max(0.0, read(name, partial(moment_of, now=now)))) for name in ("since", "until"))
    span = Span(since, until)
    step = None if options["step"] is None else read("step", seconds_of)
    selection = read("selector", lambda text: Selection.of(text).within(options["clusters"]))
    if span.end <= span.start:
        raise click.UsageError("--since must be before --until")
    if step is not None and not 15 <= step <= 60:
        raise click.UsageError("--step must be from 15s to 60s")
    span = Span(round(span.start, 3), round(span.end, 3))
    return Question(span, selection, thresholds, other, step)
