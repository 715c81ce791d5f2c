"""Tokens a second and p95 over load, as SVG or PNG; drawn by matplotlib, which is an extra of the package."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from kvpressure.cli.whatif_report import label
from kvpressure.cli.whatif_source import Source
from kvpressure.config.own_file import write_own
from kvpressure.exposition.palette import CAUSES
from kvpressure.model.verdict import Cause
from kvpressure.printable import clean
from kvpressure.simulation.consequences import Point, Row, Span

_INCHES: Final = (9.0, 4.2)
_DPI: Final = 120
_TODAY, _CHANGED = CAUSES[Cause.KV_CACHE_PRESSURE].fill, CAUSES[Cause.COMPUTE_BOUND].fill
_MUTED: Final = "#6a737d"


class PictureError(Exception):
    """The picture cannot be drawn; the message says why and what to do."""


def draw(path: Path, source: Source, rows: Sequence[Row], curves: Sequence[Sequence[Point]]) -> None:
    """Write the picture. Raises PictureError.

    Today's flags and the last row's, from a tenth of today's load to three times as much; today's load is marked, with
    the range of the table.
    """
    try:
        import matplotlib as mpl  # noqa: PLC0415 - an extra
        from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415
        from matplotlib.figure import Figure  # noqa: PLC0415
    except ImportError as error:
        raise PictureError(
            "--picture needs matplotlib: pip install 'kv-pressure-exporter[picture]' (--json has the same figures)"
        ) from error
    demand = source.model.known.demand
    now = float(demand.clients or demand.rate)
    unit = "clients" if demand.clients else "requests a second"
    shown = list(zip((rows[0], rows[-1]), curves, (_TODAY, _CHANGED), strict=False))
    # Text stays text, and the same run writes the same bytes.
    with mpl.rc_context(
        {"svg.fonttype": "none", "svg.hashsalt": "kvpressure", "font.size": 9, "text.parse_math": False}
    ):
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
        right.annotate(
            f"in time: {source.model.limit_seconds:.3g} s",
            (1, source.model.limit_seconds),
            xycoords=("axes fraction", "data"),
            color=_MUTED,
            ha="right",
            va="bottom",
        )
        for axes, title in ((left, "tokens per second"), (right, "p95 of a request, seconds")):
            axes.axvline(now, color=_MUTED, linestyle="--", linewidth=1)
            axes.annotate(
                "today",
                (now, 1),
                xycoords=("data", "axes fraction"),
                color=_MUTED,
                ha="left",
                va="top",
                xytext=(3, 0),
                textcoords="offset points",
            )
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
        raise PictureError(f"{path}: cannot be written: {error.strerror or error}") from error
