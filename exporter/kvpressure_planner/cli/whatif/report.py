"""The results of `whatif`: as a table of 80 columns, as JSON, and as a picture."""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from kvpressure.cli.say import CliError
from kvpressure.config.files import write_own
from kvpressure.model.action import UNPREDICTABLE, drain_text
from kvpressure.model.catalogue import CATALOGUE
from kvpressure.model.values import number
from kvpressure.model.verdict import Cause
from kvpressure.printable import clean
from kvpressure.runtimes.runtime import Runtime
from kvpressure.simulation import steps
from kvpressure.simulation.config_changes import MAX_REPLICAS, OFFLOAD, TIER_BYTES_PER_SECOND
from kvpressure.simulation.consequences import Figures, Span
from kvpressure.simulation.server import Demand
from kvpressure.simulation.sessions import Sessions
from kvpressure_planner.capacity.comparison import Point, Row, SearchResult
from kvpressure_planner.cli.whatif.changes import written
from kvpressure_planner.cli.whatif.source import Source

BURSTS_DISPERSION = 2.0
"""Of the number of requests in a second, from which on they come in bursts."""
WIDTH = 80
GOODPUT: Final = "goodput/s"
IN_TIME: Final = "in time"
_Columns = tuple[tuple[str, Callable[[Figures], Span | None]], ...]
_COLUMNS: _Columns = (
    ("tokens/s", lambda one: one.tokens_per_second),
    (GOODPUT, lambda one: one.goodput),
    ("p95 s", lambda one: one.latency_p95),
    ("queue", lambda one: one.waiting),
)
_COLUMNS_OF_SESSIONS: _Columns = (
    ("hits", lambda one: one.hit_ratio),
    ("TTFT s", lambda one: one.first_token_seconds),
    *(column for column in _COLUMNS if column[0] != GOODPUT),
)
_COLUMNS_OF_CARDS: _Columns = (*_COLUMNS, ("TTFT s", lambda one: one.first_token_seconds))
_INCHES: Final = (9.0, 4.2)
_DPI: Final = 120
_COLOURS: Final = CATALOGUE[Cause.KV_CACHE_PRESSURE].fill, CATALOGUE[Cause.COMPUTE_BOUND].fill
_MUTED: Final = "#6a737d"


def table_report(source: Source, rows: Sequence[Row], searched: SearchResult | None = None) -> RenderableType:
    """Return the engine, the table of today and the changes, and notes."""
    notes = [*([] if searched is None else _search_notes(source, searched)), *_notes(source, rows)]
    return Group(*map(_wrapped, _head(source)), Text(""), _table(source, rows), Text(""), *map(_wrapped, notes))


def json_of(
    source: Source, rows: Sequence[Row], searched: SearchResult | None, curves: Sequence[Sequence[Point]] | None
) -> dict[str, object]:
    """Return all results for programs; figures are null where no request would be answered."""
    server, demand = source.model.state
    answer: dict[str, object] = {
        "title": source.title,
        "runtime": source.runtime.name,
        "limit_seconds": source.model.limit_seconds,
        "limit_from": source.late_since,
        "today": {
            "kv_cache_tokens": round(server.pool_tokens),
            "clients": demand.clients or None,
            "requests_per_second": demand.rate or None,
            "dispersion": demand.dispersion if demand.rate else None,
            "prompt_tokens_mean": source.model.known.prompts.mean,
            "output_tokens_mean": source.model.known.outputs.mean,
            "step_seconds": server.steps.record(),
            "knee_requests": knee if math.isfinite(knee := source.model.known.knee_requests) else None,
        },
        "sessions": None if demand.sessions is None else _sessions_json(demand, demand.sessions),
        "without_sessions": source.without_sessions or None,
        "rows": [_row_json(row, source.runtime) for row in rows],
    }
    if searched is not None:
        counts = {"kept": searched.kept, "surely": searched.surely, "tried": searched.tried}
        more = None if searched.more is None else _row_json(searched.more, source.runtime)
        answer["search"] = {"best": _row_json(searched.best, source.runtime), **counts, "more": more}
    if curves is not None:
        points = ([asdict(point) for point in curve] for curve in curves)
        answer["over_load"] = dict(zip(("today", "changed"), points, strict=False))
    return answer


def _sessions_json(demand: Demand, sessions: Sessions) -> dict[str, object]:
    return {
        "count": demand.clients,
        "think_seconds": sessions.think_seconds,
        "turns": sessions.mean_turns,
        "common_prefix_tokens": sessions.shared,
        "kept_tokens": sessions.kept_tokens,
    }


def _row_json(row: Row, runtime: Runtime) -> dict[str, object]:
    set_ = dict(written(change, runtime).split("=", 1) for change in row.changes)
    return {"set": set_, "behind": row.behind, "figures": None if row.figures is None else asdict(row.figures)}


def label(row: Row, runtime: Runtime) -> str:
    """Return a row's changes, a line for each."""
    return "\n".join(written(change, runtime).replace("=", " ") for change in row.changes) or "today"


def _head(source: Source) -> Iterator[str]:
    (server, demand), known = source.model.state, source.model.known
    clients = f"{number(demand.clients)} clients that wait for their answers" if demand.clients else ""
    how = (
        " in bursts"
        if demand.dispersion >= BURSTS_DISPERSION
        else " at constant spacing"
        if not demand.dispersion
        else ""
    )
    rate = f"{_short(demand.rate)} requests a second{how}, whether or not they are answered" if demand.rate else ""
    load = " and ".join(filter(None, (clients, rate)))
    if (sessions := demand.sessions) is not None:
        load = f"about {number(demand.clients)} sessions that come back after {_short(sessions.think_seconds)} s"
    most = "" if server.max_num_seqs == float("inf") else f", at most {number(server.max_num_seqs)} run"
    yield source.title
    yield (
        f"{load}; prompts of {_short(known.prompts.mean)} tokens on average, answers of {_short(known.outputs.mean)}; "
        f"a pool of {number(round(server.pool_tokens))} tokens{most}"
    )


def _table(source: Source, rows: Sequence[Row]) -> Table:
    limited = [figures for row in rows if (figures := row.figures)]
    hits = any(limited_row.refused_ratio.high > 0 or limited_row.shortened_ratio.high > 0 for limited_row in limited)
    columns = _COLUMNS_OF_CARDS if source.model.on_card else _COLUMNS
    if source.model.known.demand.sessions is not None:
        columns = _COLUMNS_OF_SESSIONS
    table = Table(box=None, padding=(0, 2, 0, 0), show_edge=False, width=WIDTH)
    table.add_column("", ratio=1, overflow="fold")
    if (rate := _rate(source)) is not None:
        columns = tuple((IN_TIME if name == GOODPUT else name, read) for name, read in columns)
    for name in (*(name for name, _ in columns), *(("refused",) if hits else ())):
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        cells = [
            _cell(None if row.figures is None else read(row.figures), rate if name == IN_TIME else None)
            for name, read in columns
        ]
        if hits:
            cells.append("-" if row.figures is None else _refused(row.figures))
        table.add_row(label(row, source.runtime), *cells, style="bold" if row is rows[-1] and len(rows) > 1 else "")
    return table


def _rate(source: Source) -> float | None:
    """Return the requests that come a second where none are of clients that wait: goodput is a share of them."""
    demand = source.model.known.demand
    return demand.rate if demand.rate and not demand.clients else None


def _cell(span: Span | None, rate: float | None = None) -> str:
    """Return a figure with its range below; as a share of `rate` where that is given."""
    if span is None:
        return "-"
    figures = span.value, span.low, span.high
    value, low, high = (_short(figure) if rate is None else f"{min(1.0, figure / rate):.0%}" for figure in figures)
    return value if low == high else f"{value}\n{low}-{high}"


def _refused(figures: Figures) -> str:
    lines = [_share(figures.refused_ratio)] if figures.refused_ratio.high > 0 else ["0%"]
    if figures.shortened_ratio.high > 0:
        lines.append(f"cut {_share(figures.shortened_ratio)}")
    return "\n".join(lines)


def _share(span: Span) -> str:
    low, high = f"{span.low:.0%}", f"{span.high:.0%}"
    return high if low == high else f"{low.rstrip('%')}-{high}"


def _notes(source: Source, rows: Sequence[Row]) -> Iterator[str]:
    seconds = _short(source.model.limit_seconds)
    served = "goodput: whole answers" if _rate(source) is None else "in time: share of the requests answered in full"
    yield (
        f"{served} within {seconds} s ({source.late_since}). Second lines: the range over "
        "what is not known (how lengths lie in their buckets, whether long prompts get long answers, what a larger "
        "batch costs)."
    )
    keys = {change.key for row in rows for change in row.changes}
    if "kv_cache_dtype" in keys:
        yield "The KV cache is taken to be in 16 bits now. fp8 costs some accuracy: evaluate answers first."
    if "gpu_memory_utilization" in keys:
        yield "Another share of the memory changes the pool by that factor at least."
    if source.without_sessions:
        yield f"Contexts that are evicted and computed again are not simulated: {source.without_sessions}."
    if OFFLOAD in keys:
        speed = f"{TIER_BYTES_PER_SECOND / 1e9:g} GB/s"
        yield f"Evicted contexts are loaded at {speed}, counted as if that held up the steps."
    if "max_num_batched_tokens" in keys:
        yield "What memory a smaller step leaves to the pool is not counted."
    if not_known := source.model.not_known:
        yield f"{not_known[0].upper()}{not_known[1:]}."
    yield from _beyond_knee(source, rows)
    yield from _overload(source, rows)
    for row in rows:
        if row.figures is not None and row.figures.doubt:
            changed = label(row, source.runtime).replace("\n", ", ")
            yield f"{changed}: {UNPREDICTABLE}{row.figures.doubt}."
    if any(row.figures is None for row in rows):
        yield "-: nobody would be answered."


def _overload(source: Source, rows: Sequence[Row]) -> Iterator[str]:
    """Yield what arrives and is answered where that is less, and when the queue of now is served with the changes."""
    model = source.model

    def name(row: Row) -> str:
        return label(row, source.runtime).replace("\n", ", ")

    behind = [f"{name(row)}: {_short(model.served_per_second(row.changes))}" for row in rows if row.behind]
    if behind:
        arriving = _short(model.arriving_per_second())
        yield (
            f"{arriving} requests arrive a second, more than are answered ({', '.join(behind)}): the queue and p95 "
            "keep growing."
        )
    for row in rows:
        if row.changes and (seconds := model.drain_seconds(row.changes)) is not None:
            yield f"{name(row)}: {drain_text(seconds)}."


def _beyond_knee(source: Source, rows: Sequence[Row]) -> Iterator[str]:
    """Yield the knee for each row that lets more requests run."""
    known, clients = source.model.known, source.model.state[1].clients or math.inf
    for row in rows:
        most = max((change.value for change in row.changes if change.key == "max_num_seqs"), default=0.0)
        if beyond := steps.beyond_knee(min(most, clients), known.knee_requests):
            yield f"{label(row, source.runtime).replace(chr(10), ', ')}: {beyond}"


def _search_notes(source: Source, searched: SearchResult) -> Iterator[str]:
    seconds = _short(source.model.limit_seconds)
    if searched.kept:
        sure = "" if searched.surely else " It is not kept over the whole range: leave some room."
        best = "; none beats today's limits" if not searched.best.changes else ""
        yield f"Best of {number(searched.tried)} sets with a p95 within {seconds} s{best}.{sure}"
        return
    closest = "the closest is shown" if searched.best.changes else "none comes closer than today's limits"
    changes = searched.more.changes if searched.more else ()
    total = next((change.value for change in changes if change.key == "add_replica"), None)
    more = f"Not even {MAX_REPLICAS} replicas would" if total is None else f"{number(total)} replicas would"
    yield f"None of {number(searched.tried)} sets keeps a p95 of {seconds} s; {closest}. {more}."


def _wrapped(line: str) -> Table:
    grid = Table.grid()
    grid.add_column(max_width=WIDTH)
    grid.add_row(Text(line))
    return grid


def _short(value: float) -> str:
    """Return the value with two or three digits."""
    if value >= 100:
        return number(round(value))
    return f"{value:.0f}" if value >= 10 else f"{value:.2g}"


def draw(path: Path, source: Source, rows: Sequence[Row], curves: Sequence[Sequence[Point]]) -> None:
    """Draw today's flags and the last row's over load, and write the picture. Raises CliError.

    From a tenth of today's load to three times as much; today's load is marked, with the range of the table.
    """
    try:
        import matplotlib as mpl  # noqa: PLC0415 - an extra
        from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415
        from matplotlib.figure import Figure  # noqa: PLC0415
    except ImportError as error:
        raise CliError(
            "--picture needs matplotlib: pip install 'kvpressure[picture]' (--json has the same figures)"
        ) from error
    demand = source.model.known.demand
    now = float(demand.clients or demand.rate)
    unit = "clients" if demand.clients else "requests a second"
    shown = list(zip((rows[0], rows[-1]), curves, _COLOURS, strict=False))
    # Keeps text as text, and makes the bytes reproducible.
    style: Any = {"svg.fonttype": "none", "svg.hashsalt": "kvpressure", "font.size": 9, "text.parse_math": False}
    with mpl.rc_context(style):
        figure = Figure(figsize=_INCHES, dpi=_DPI, layout="constrained")
        FigureCanvasAgg(figure)
        left, right = figure.subplots(1, 2)
        for row, curve, colour in shown:
            name = clean(label(row, source.runtime).replace("\n", ", "))
            loads = [point.load for point in curve]
            left.plot(loads, [point.tokens_per_second for point in curve], color=colour, label=name)
            right.plot(loads, [point.latency_p95 for point in curve], color=colour)
            if row.figures is not None:
                _mark(left, now, row.figures.tokens_per_second, colour)
                _mark(right, now, row.figures.latency_p95, colour)
        right.axhline(source.model.limit_seconds, color=_MUTED, linestyle=":", linewidth=1)
        in_time, place = f"in time: {source.model.limit_seconds:.3g} s", ("axes fraction", "data")
        right.annotate(in_time, (1, source.model.limit_seconds), xycoords=place, color=_MUTED, ha="right", va="bottom")
        for axes, title in ((left, "tokens per second"), (right, "p95 of a request, seconds")):
            axes.axvline(now, color=_MUTED, linestyle="--", linewidth=1)
            beside = {"xycoords": place[::-1], "xytext": (3, 0), "textcoords": "offset points"}
            axes.annotate("today", (now, 1), color=_MUTED, ha="left", va="top", **beside)
            axes.set(title=title, xlabel=unit, xlim=(0, None), ylim=(0, None))
            axes.grid(color="#e8eaec")
            axes.spines[["top", "right"]].set_visible(False)
        figure.suptitle(clean(source.title))
        figure.legend(loc="outside lower center", ncols=1, frameon=False)
        _write(path, figure)


def _mark(axes: Any, load: float, span: Span, colour: str) -> None:
    below, above = span.value - span.low, span.high - span.value
    axes.errorbar([load], [span.value], yerr=[[below], [above]], fmt="o", color=colour, capsize=3, markersize=5)


def _write(path: Path, figure: Any) -> None:
    kind, drawn = path.suffix.lower().lstrip("."), io.BytesIO()
    figure.savefig(drawn, format=kind, metadata={"Date": None} if kind == "svg" else None)
    try:
        write_own(path, drawn.getvalue())
    except OSError as error:
        raise CliError(f"{path}: cannot be written: {error.strerror or error}") from error
