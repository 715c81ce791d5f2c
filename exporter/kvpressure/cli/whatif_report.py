"""What `whatif` found, as a table that fits 80 columns and as JSON."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from kvpressure.cli.whatif_changes import written
from kvpressure.cli.whatif_source import Source
from kvpressure.model.values import number
from kvpressure.runtimes.runtime import Runtime
from kvpressure.simulation.config_changes import MAX_REPLICAS, OFFLOAD, TIER_BYTES_PER_SECOND
from kvpressure.simulation.consequences import Figures, Point, Row, Span
from kvpressure.simulation.search import Found
from kvpressure.simulation.server import Demand
from kvpressure.simulation.sessions import Sessions

WIDTH = 80
TODAY = "today"
_Columns = tuple[tuple[str, Callable[[Figures], Span | None]], ...]
_COLUMNS: _Columns = (
    ("tokens/s", lambda one: one.tokens_per_second),
    ("goodput/s", lambda one: one.goodput),
    ("p95 s", lambda one: one.latency_p95),
    ("queue", lambda one: one.waiting),
)
_COLUMNS_OF_SESSIONS: _Columns = (
    ("hits", lambda one: one.hit_ratio),
    ("TTFT s", lambda one: one.first_token_seconds),
    *(column for column in _COLUMNS if column[0] != "goodput/s"),
)


def table_report(source: Source, rows: Sequence[Row], found: Found | None = None) -> RenderableType:
    """Who is simulated, today beside the changes, and how to read it."""
    notes = [*([] if found is None else _search_notes(source, found)), *_notes(source, rows)]
    return Group(*map(_wrapped, _head(source)), Text(""), _table(source, rows), Text(""), *map(_wrapped, notes))


def json_of(
    source: Source, rows: Sequence[Row], found: Found | None, curves: Sequence[Sequence[Point]] | None
) -> dict[str, object]:
    """Everything for programs; figures are null where nobody would be answered."""
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
            "prompt_tokens_mean": source.model.known.prompts.mean,
            "output_tokens_mean": source.model.known.outputs.mean,
            "step_seconds": asdict(server.steps),
        },
        "sessions": None if demand.sessions is None else _sessions_json(demand, demand.sessions),
        "without_sessions": source.without_sessions or None,
        "rows": [_row_json(row, source.runtime) for row in rows],
    }
    if found is not None:
        best = _row_json(found.best, source.runtime)
        more = None if found.more is None else _row_json(found.more, source.runtime)
        answer["search"] = {
            "best": best,
            "kept": found.kept,
            "surely": found.surely,
            "tried": found.tried,
            "more": more,
        }
    if curves is not None:
        names = ("today", "changed")
        answer["over_load"] = {
            name: [asdict(point) for point in curve] for name, curve in zip(names, curves, strict=False)
        }
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
    return "\n".join(written(change, runtime).replace("=", " ") for change in row.changes) or TODAY


def _head(source: Source) -> Iterator[str]:
    server, demand = source.model.state
    known = source.model.known
    load = (
        f"{number(demand.clients)} clients that wait for their answers"
        if demand.clients
        else f"{_short(demand.rate)} requests a second, whether or not they are answered"
    )
    if (sessions := demand.sessions) is not None:
        load = f"about {number(demand.clients)} sessions that come back after {_short(sessions.think_seconds)} s"
    most = "" if server.max_num_seqs == float("inf") else f", at most {number(server.max_num_seqs)} run"
    yield source.title
    yield (
        f"{load}; prompts of {_short(known.prompts.mean)} tokens on average, answers of {_short(known.outputs.mean)}; "
        f"a pool of {number(round(server.pool_tokens))} tokens{most}"
    )


def _table(source: Source, rows: Sequence[Row]) -> Table:
    hits = any(one.figures and _hit(one.figures) for one in rows)
    columns = _COLUMNS_OF_SESSIONS if source.model.known.demand.sessions is not None else _COLUMNS
    table = Table(box=None, padding=(0, 2, 0, 0), show_edge=False, width=WIDTH)
    table.add_column("", ratio=1, overflow="fold")
    for name, _ in columns:
        table.add_column(name, justify="right", no_wrap=True)
    if hits:
        table.add_column("refused", justify="right", no_wrap=True)
    for one in rows:
        cells = [_cell(None if one.figures is None else read(one.figures)) for _, read in columns]
        if hits:
            cells.append("-" if one.figures is None else _refused(one.figures))
        table.add_row(label(one, source.runtime), *cells, style="bold" if one is rows[-1] and len(rows) > 1 else "")
    return table


def _hit(figures: Figures) -> bool:
    return figures.refused_ratio.high > 0 or figures.shortened_ratio.high > 0


def _cell(span: Span | None) -> str:
    if span is None:
        return "-"
    value, low, high = (_short(one) for one in (span.value, span.low, span.high))
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
    yield (
        f"goodput: whole answers within {seconds} s ({source.late_since}). Second lines: the range over "
        "what is not known (how lengths lie in their buckets, whether long prompts get long answers, what a larger "
        "batch costs)."
    )
    keys = {change.key for one in rows for change in one.changes}
    if "kv_cache_dtype" in keys:
        yield "The cache is taken to be in 16 bits now. In 8 bits it costs some accuracy: evaluate answers first."
    if "gpu_memory_utilization" in keys:
        yield "Another share of the memory changes the pool by that factor at least."
    if source.without_sessions:
        yield f"Contexts that are evicted and computed again are not simulated: {source.without_sessions}."
    if OFFLOAD in keys:
        speed = f"{TIER_BYTES_PER_SECOND / 1e9:g} GB/s"
        yield f"Evicted contexts are loaded at {speed}, counted as if that held up the steps."
    if "max_num_batched_tokens" in keys:
        yield "What memory a smaller step leaves to the pool is not counted."
    if any(one.behind for one in rows):
        behind = ", ".join(label(one, source.runtime).replace("\n", ", ") for one in rows if one.behind)
        yield f"More requests arrive than are answered ({behind}): the queue and p95 keep growing."
    if any(one.figures is None for one in rows):
        yield "-: nobody would be answered."


def _search_notes(source: Source, found: Found) -> Iterator[str]:
    seconds = _short(source.model.limit_seconds)
    if found.kept:
        sure = "" if found.surely else " It is not kept over the whole range: leave some room."
        best = "; none beats today's limits" if not found.best.changes else ""
        yield f"Best of {number(found.tried)} sets with a p95 within {seconds} s{best}.{sure}"
        return
    closest = "the closest is shown" if found.best.changes else "none comes closer than today's limits"
    total = (
        next((change.value for change in found.more.changes if change.key == "add_replica"), None)
        if found.more
        else None
    )
    more = f"Not even {MAX_REPLICAS} replicas would" if total is None else f"{number(total)} replicas would"
    yield f"None of {number(found.tried)} sets keeps a p95 of {seconds} s; {closest}. {more}."


def _wrapped(line: str) -> Table:
    grid = Table.grid()
    grid.add_column(max_width=WIDTH)
    grid.add_row(Text(line))
    return grid


def _short(value: float) -> str:
    """Two or three digits: nothing here is surer."""
    if value >= 100:
        return number(round(value))
    return f"{value:.0f}" if value >= 10 else f"{value:.2g}"
