"""Is what the other dashboards show to be believed: the exporters, their sources, and what they cost."""

from __future__ import annotations

from typing import Final

from dashboards.board import Board, Row
from dashboards.looks import BAD, FIRST, GOOD, REFERENCE, SECOND, UP, WARN, limit, shown, steps
from dashboards.panels import Column, Line, Query, graph, number, rows, timeline
from dashboards.queries import EXPORTERS, WORST_EXPORTERS, of
from dashboards.variables import exporter_variables

SHOWN_COUNT: Final = 20
_TARGET: Final = 'target=~"$target"'
_SOURCE: Final = "{{source}} {{target}} {{instance}}"
_NONE_YET: Final = "none since the exporters started"
_WORST: Final = f"the {SHOWN_COUNT} exporters with the most sources that fail"


def _up(state: int) -> str:
    return f"sum(1 - {of('up', EXPORTERS)})" if state == 0 else f"sum({of('up', EXPORTERS)})"


def _now() -> Row:
    any_at_all = steps(GOOD, (1, BAD))
    return Row(
        "Now",
        [
            number(
                "Exporters up",
                "Exporters that answer Prometheus.",
                "short",
                Query(_up(1), "up"),
            ),
            number(
                "Exporters down",
                "Exporters that do not answer: their nodes are blind.",
                "short",
                Query(_up(0), "down"),
                thresholds=any_at_all,
            ),
            number(
                "Sources down",
                "Engines, GPU drivers and others that an exporter could not read the last time.",
                "short",
                Query(f"sum(1 - {of('source_up', EXPORTERS, _TARGET)})", "down"),
                thresholds=any_at_all,
            ),
            number(
                "Settings refused",
                "Exporters whose newest settings were refused; the ones before stay in force.",
                "short",
                Query(f"sum(1 - {of('config_last_reload_successful', EXPORTERS)})", "refused"),
                thresholds=any_at_all,
            ),
            number(
                "Thresholds in force",
                "Different sets of thresholds among the exporters; more than 1 while a change is rolled out.",
                "short",
                Query(f"count(count by (hash) ({of('thresholds_info', EXPORTERS)}))", "sets"),
                thresholds=steps(GOOD, (2, WARN)),
            ),
            number(
                "Versions",
                "Different versions of the exporter.",
                "short",
                Query(f"count(count by (version) ({of('build_info', EXPORTERS)}))", "versions"),
                thresholds=steps(GOOD, (2, WARN)),
            ),
        ],
    )


def _sources() -> Row:
    up = of("source_up", WORST_EXPORTERS, _TARGET)
    success = of("source_last_success_timestamp_seconds", WORST_EXPORTERS, _TARGET)
    errors = of("source_errors_total", EXPORTERS, _TARGET)
    return Row(
        "Sources",
        [
            timeline(
                "Sources",
                f"Whether each source's last read succeeded: {_WORST}.",
                Query(up, _SOURCE),
                UP,
                height=9,
            ),
            graph(
                "Age of the newest reading",
                "Time since each source was last read. GPU readings are stale from the line on "
                f"({shown('alert_gpu_stale_min_seconds')} s); {_WORST}.",
                "s",
                Query(f"time() - {success}", _SOURCE, FIRST),
                lines=[Line(limit("alert_gpu_stale_min_seconds"), BAD)],
                width=8,
            ),
            graph(
                "Failed reads",
                "Failed reads per second, by source and reason.",
                "short",
                Query(f"sum by (source, reason) (rate({errors}[$__rate_interval]))", "{{source}} {{reason}}"),
                width=8,
                axis="reads/s",
                none=_NONE_YET,
            ),
            graph(
                "Read duration",
                f"The last read of each source: {_WORST}.",
                "s",
                Query(of("source_duration_seconds", WORST_EXPORTERS, _TARGET), _SOURCE, FIRST),
                width=8,
            ),
            rows(
                "Oldest readings",
                "The 50 sources that were read successfully the longest ago.",
                [
                    Column("source", "string"),
                    Column("target", "string"),
                    Column("instance", "string"),
                    Column("Age", "s", 1, thresholds=steps(GOOD, (limit("alert_gpu_stale_min_seconds"), BAD))),
                ],
                Query(
                    "topk(50, max by (source, target, instance) (time() - "
                    + of("source_last_success_timestamp_seconds", EXPORTERS, _TARGET)
                    + "))",
                    "Age",
                ),
                sort="Age",
                height=8,
            ),
        ],
    )


def _left_out() -> Row:
    def rate(family: str, by: str) -> str:
        return f"sum by ({by}) (rate({of(family, EXPORTERS)}[$__rate_interval]))"

    return Row(
        "Dropped readings and limits reached",
        [
            graph(
                "Readings dropped as impossible",
                "Per second, by source and reason.",
                "short",
                Query(rate("samples_rejected_total", "source, reason"), "{{source}} {{reason}}"),
                width=8,
                none=_NONE_YET,
            ),
            graph(
                "Limits reached",
                "Times per second that something was left out because a configured cap was reached.",
                "short",
                Query(rate("caps_reached_total", "cap"), "{{cap}}"),
                width=8,
                none=_NONE_YET,
            ),
            graph(
                "Polls skipped",
                "Polls of an engine per second that were not made because the one before had not ended.",
                "short",
                Query(f"sum(rate({of('polls_skipped_total', EXPORTERS)}[$__rate_interval]))", "skipped", FIRST),
                width=8,
                none=_NONE_YET,
            ),
        ],
    )


def _cost() -> Row:
    who = "{{instance}}"
    busy = f"rate({of('process_cpu_seconds_total', WORST_EXPORTERS)}[$__rate_interval])"
    all_busy = f"sum(rate({of('process_cpu_seconds_total', EXPORTERS)}[$__rate_interval]))"
    files = f"{of('process_open_fds', WORST_EXPORTERS)} / {of('process_max_fds', WORST_EXPORTERS)}"
    received = f"sum(rate({of('engine_page_bytes_total', EXPORTERS)}[$__rate_interval]))"
    return Row(
        "Cost",
        [
            graph(
                "CPU",
                f"Share of one core: {_WORST}, and all together.",
                "percentunit",
                Query(busy, who, FIRST),
                Query(all_busy, "all together", REFERENCE, dashed=True),
                width=8,
            ),
            graph(
                "Memory",
                f"Resident memory: {_WORST}.",
                "bytes",
                Query(of("process_resident_memory_bytes", WORST_EXPORTERS), who, FIRST),
                width=8,
            ),
            graph(
                "Engine pages received",
                "Bytes per second that all exporters read from engines.",
                "Bps",
                Query(received, "received", FIRST),
                width=8,
            ),
            graph(
                "Series of a scrape",
                f"Samples in one scrape of an exporter, as Prometheus counts them: {_WORST}.",
                "short",
                Query(of("scrape_samples_scraped", WORST_EXPORTERS), who, FIRST),
                width=8,
                axis="samples",
            ),
            graph(
                "Time of a scrape",
                f"How long Prometheus waits for the page: {_WORST}.",
                "s",
                Query(of("scrape_duration_seconds", WORST_EXPORTERS), who, FIRST),
                width=8,
            ),
            graph(
                "Open files",
                f"Share of the file descriptors that the process may open: {_WORST}.",
                "percentunit",
                Query(files, who, SECOND),
                width=8,
            ),
        ],
    )


def _running() -> Row:
    labels = "instance, version, python_version"
    return Row(
        "What runs",
        [
            rows(
                "Exporters",
                f"Version and thresholds of each exporter: {_WORST}.",
                [
                    Column("instance", "string"),
                    Column("version", "string"),
                    Column("python_version", "string"),
                    Column("hash", "string"),
                    Column("Running since", "dateTimeAsIso"),
                    Column("Settings since", "dateTimeAsIso"),
                ],
                Query(
                    f"max by ({labels}, hash) ({of('build_info', WORST_EXPORTERS)} "
                    "* on (cluster, instance) group_left (hash) "
                    f"{of('thresholds_info', WORST_EXPORTERS)})",
                    "info",
                ),
                Query(
                    f"max by (instance) ({of('process_start_time_seconds', WORST_EXPORTERS)}) * 1000", "Running since"
                ),
                Query(
                    "max by (instance) ("
                    + of("config_last_reload_success_timestamp_seconds", WORST_EXPORTERS)
                    + ") * 1000",
                    "Settings since",
                ),
                sort="instance",
                descending=False,
                hidden=("Value #A",),
                height=8,
            )
        ],
    )


def board() -> Board:
    """Return the dashboard."""
    return Board(
        "kvpressure-exporter",
        "KV pressure / Exporter health",
        "Whether the other dashboards are to be believed: exporters, sources, ages, errors and cost.",
        exporter_variables(SHOWN_COUNT),
        [_now(), _sources(), _left_out(), _cost(), _running()],
    )
