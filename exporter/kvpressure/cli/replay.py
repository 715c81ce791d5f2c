"""`kvpressure replay`: diagnoses recorded pages, on the recording's own clock."""

from __future__ import annotations

import itertools
import statistics
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Final

import click

from kvpressure.cli.options import EXISTING_FILE
from kvpressure.cli.say import fail, say, say_json
from kvpressure.config.target import ALL_GPUS, Target
from kvpressure.config.thresholds import Thresholds, load_thresholds
from kvpressure.engine_state import Pipeline, PipelineSettings
from kvpressure.engine_state.pace import paced
from kvpressure.engines.reader import PageReader
from kvpressure.engines.recordings import TraceError, TraceLine, not_a_recording, read_trace, stem
from kvpressure.model.catalogue import CATALOGUE, NOT_KNOWN
from kvpressure.model.codec import engine_json
from kvpressure.model.values import Derived, at, known
from kvpressure.model.verdict import Cause
from kvpressure.model.view import EngineView
from kvpressure.promtext.lines import PageError

MIN_SPACING_SECONDS = 0.5
"""A recording that was polled faster is shown at about one row per second."""

STEP_INTERVALS: Final = 4
STEP_BYTES: Final = 32 << 20
"""A recording's first intervals show how far apart its polls are, in at most so many bytes of pages."""

MAX_PENDING_ERRORS = 1000
"""Errors that are kept until a line can be read."""

Column = tuple[int, str, *tuple[str, ...]]
"""Width and format of a number, and its path among the values."""
_COLUMNS: Final[tuple[Column, ...]] = (
    (7, ".1f", "requests_running"),
    (7, ".1f", "requests_waiting"),
    (9, ".1f", "effective_batch_size_quantile", "0.95"),
    (7, ".0%", "kv_cache_usage_ratio"),
    (7, ".0%", "admission_blocked_ratio"),
    (9, ".2f", "preemptions_per_second"),
    (8, ".0f", "tokens_per_second", "generation"),
)


ReplayTarget: Final = partial(Target, gpus=(ALL_GPUS,))
"""A recording as a target, with every GPU on its lines."""


@dataclass(slots=True)
class Replay:
    """One recording, and the settings of the pipeline that reads it."""

    target: Target
    thresholds: Thresholds
    settings: PipelineSettings = field(default_factory=PipelineSettings)

    def views(self, path: Path) -> Iterator[tuple[TraceLine, list[EngineView]] | TraceError]:
        """Yield each line with its views, an error for each line that cannot be read.

        Raises TraceError, and yields nothing, where no line can be read: then it is not a recording.
        """
        errors: list[TraceError] = []
        readable = False
        try:
            for item in self._views(path):
                if isinstance(item, TraceError) and not readable:
                    errors += [item] if len(errors) < MAX_PENDING_ERRORS else []
                    continue
                if not readable:
                    readable = True
                    yield from errors
                yield item
        except TraceError as error:
            raise error if readable else TraceError(not_a_recording(path, f"{error}")) from error
        if not readable:
            first = errors[0] if errors else ""
            raise TraceError(not_a_recording(path, f"none of its lines can be read. {first}".rstrip()))

    def _views(self, path: Path) -> Iterator[tuple[TraceLine, list[EngineView]] | TraceError]:
        lines = read_trace(path)
        first = _first(lines)
        step = _step_seconds(first)
        settings, thresholds = self.settings, self.thresholds
        if step * thresholds.verdict.verdict_min_poll_count > thresholds.verdict.verdict_window_seconds:
            settings, thresholds = paced(step, thresholds, settings)
        pipeline, servers = Pipeline(settings, thresholds), dict[str, _Server]()
        for line in itertools.chain(first, lines):
            if isinstance(line, TraceError):
                yield line
                continue
            if line.gpus is not None:
                pipeline.on_gpus("trace", line.gpus)
            if (server := servers.get(line.source)) is None:
                name = line.source or self.target.name
                server = servers[line.source] = _Server(replace(self.target, name=name))
            try:
                views = pipeline.on_page(server.target, server.reader.read(line.page, line.t))
            except PageError as error:
                if not line.source or server.problem != f"{error}":  # a benchmark's other endpoint never changes
                    yield TraceError(f"{path}:{line.number}: {error}")
                server.problem = f"{error}"
                continue
            pipeline.expire(line.t)
            if abs(line.t - server.shown) >= MIN_SPACING_SECONDS:
                server.shown = line.t
                yield line, views


@dataclass(slots=True)
class _Server:
    """One server of a recording: its pages' reader, when it was shown last, and the error of its last page."""

    target: Target
    reader: PageReader = field(default_factory=PageReader)
    shown: float = float("-inf")
    problem: str = ""


def _first(lines: Iterator[TraceLine | TraceError]) -> list[TraceLine | TraceError]:
    """Return the first lines, with several times of one server if there are."""
    first = list[TraceLine | TraceError]()
    times = Counter[str]()
    size = 0
    for line in itertools.islice(lines, MAX_PENDING_ERRORS):
        first.append(line)
        if isinstance(line, TraceLine):
            times[line.source] += 1
            size += len(line.page)
            if times[line.source] > STEP_INTERVALS or size > STEP_BYTES:
                break
    return first


def _step_seconds(first: Iterable[TraceLine | TraceError]) -> float:
    """Return the median time between two polls of the server that has most of these, 0 where it is not known."""
    times: dict[str, list[float]] = {}
    for line in first:
        if isinstance(line, TraceLine):
            times.setdefault(line.source, []).append(line.t)
    most = max(times.values(), key=len, default=[])
    return statistics.median([max(0.0, after - before) for before, after in itertools.pairwise(most)] or [0.0])


@click.command()
@click.argument("traces", nargs=-1, required=True, type=EXISTING_FILE)
@click.option("--json", "as_json", is_flag=True, help="One JSON object per engine and second.")
@click.option("--window", default=60.0, show_default=True, type=click.FloatRange(20, 600), help="Window in seconds.")
def command(traces: tuple[Path, ...], as_json: bool, window: float) -> None:
    """Run recorded pages through the pipeline and print what it derives.

    Reads what `record` writes (.jsonl, .jsonl.gz, .jsonl.xz), server_metrics_export.jsonl of aiperf, and CSV files of
    Grafana.

    Lines that cannot be used are named on standard error and left out. The exit code is 2 when a file cannot be
    read at all.
    """
    settings = PipelineSettings(window_seconds=window)
    thresholds = load_thresholds()
    table = _Table()
    show = _print_json if as_json else table.show
    for path in traces:
        try:
            for item in Replay(ReplayTarget(stem(path)), thresholds, settings).views(path):
                if isinstance(item, TraceError):
                    say(item, err=True)
                else:
                    show(*item)
            table.finish()
        except TraceError as error:
            fail(error)


def _print_json(line: TraceLine, views: list[EngineView]) -> None:
    for view in views:
        record = {**engine_json(view), "t": line.t}
        del record["actions"]  # for the end of a recording: `triage --trace`
        if line.label is not None:
            record["label"] = line.label
        say_json(record, indent=None)


class _Table:
    """Rows for people, and after each recording a timeline of every engine's causes."""

    HEAD = (
        " second  engine  cause                          conf  score  running  waiting  batch p95  KV used  blocked"
        "  preempt/s  tokens/s  label"
    )
    WIDTH = 80

    def __init__(self) -> None:
        self._start = 0.0
        self._causes: dict[str, list[tuple[float, Cause]]] = {}

    def show(self, line: TraceLine, views: list[EngineView]) -> None:
        """Print one row per engine."""
        for view in views:
            if not self._causes:
                self._start = line.t
                say("", f"{view.key.target} ({view.key.model_name})", self.HEAD)
            engine = f"{line.source} {view.key.rank}" if line.source else view.key.rank
            diagnosis = view.diagnosis
            cause, detail = (NOT_KNOWN, "") if diagnosis is None else (diagnosis.cause, diagnosis.detail)
            self._causes.setdefault(engine, []).append((line.t - self._start, cause))
            sure = {} if diagnosis is None else known({"confidence": diagnosis.confidence, "score": diagnosis.score})
            row = (
                f"{line.t - self._start:7.0f}",
                f"{engine:>6}",
                f"{f'{cause.value}/{detail}' if detail else cause.value:<29}",
                *cells(sure, ((4, ".0%", "confidence"), (5, ".2f", "score"))),
                *cells(view.derived, _COLUMNS),
                line.label or "",
            )
            say("  ".join(row).rstrip())

    def finish(self) -> None:
        """Print the timeline of the recording that ended."""
        if not self._causes:
            return
        seconds = max(causes[-1][0] for causes in self._causes.values())
        step = max(1.0, seconds / self.WIDTH)
        say("", f"timeline, one mark for {step:.3g} s")
        for engine, causes in self._causes.items():
            say(f"{engine:>14}  {_marks(causes, step)}")
        legend = dict.fromkeys(cause for causes in self._causes.values() for _, cause in causes)
        say("                " + "   ".join(f"{MARKS[cause]} {cause.value}" for cause in legend))
        self._causes = {}


GAP_FACTOR: Final = 3.0
"""So many times the usual spacing without a line is a gap."""

MARKS: Final = {cause: row.mark for cause, row in CATALOGUE.items()}


def _marks(causes: list[tuple[float, Cause]], step: float) -> str:
    """Return a mark per `step` seconds: the last cause until then, a space where the recording has a gap."""
    spacings = [after - before for (before, _), (after, _) in itertools.pairwise(causes)]
    longest = GAP_FACTOR * max(step, statistics.median(spacings or [step]))
    marks = list[str]()
    for (second, cause), spacing in zip(causes, [*spacings, 0.0], strict=True):
        first, last = int(second / step), int((second + (spacing if spacing <= longest else 0.0)) / step)
        marks = [*marks[:first], *" " * (first - len(marks)), *MARKS[cause] * max(1, last - first)]
    return "".join(marks)


def cells(values: Derived, columns: Iterable[Column]) -> Iterator[str]:
    """Yield the columns of an engine's row, "-" for unknown values."""
    for width, form, *path in columns:
        value = at(values, *path)
        yield ("-" if value is None else f"{value:{form}}").rjust(width)
