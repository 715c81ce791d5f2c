"""Capacity and the shape of traffic: what a request takes, how many fit, and how both move over weeks."""

from __future__ import annotations

from typing import Final

from dashboards.board import Board, Row
from dashboards.looks import BAD, FIRST, GOOD, REFERENCE, SECOND, WARN, limit, shown, steps
from dashboards.panels import Column, Line, Query, graph, heat, rows
from dashboards.queries import ENGINE, SHOWN, by_identity, engine, of, quantile, recorded
from dashboards.variables import engine_variables

SHOWN_COUNT: Final = 20
WEEKS: Final = "14d"
_MODEL: Final = "{{namespace}} {{model_name}}"
_SEQUENCES: Final = 'limit="max_num_seqs"'
_IDLE: Final = "no request in the window"
_NO_TRAFFIC: Final = "no request has ended yet"


def _request() -> Row:
    return Row(
        "KV cache per request",
        [
            graph(
                "KV memory per request",
                "KV cache memory per running request, over the window.",
                "bytes",
                Query(engine("kv_bytes_per_request"), ENGINE, FIRST),
                width=8,
                none="not known: no request runs, or the size of a token's cache is unknown",
            ),
            graph(
                "KV tokens per request",
                "KV cache tokens per running request, over the window.",
                "short",
                Query(engine("kv_tokens_per_request"), ENGINE, FIRST),
                width=8,
                axis="tokens",
                none=_IDLE,
            ),
            graph(
                "Prompt and output, p95",
                "p95 of prompt and output length over the long window. Prompts above the line count as long context.",
                "short",
                Query(quantile("prompt_tokens", "0.95"), f"prompt {ENGINE}", FIRST),
                Query(quantile("output_tokens", "0.95"), f"output {ENGINE}", SECOND),
                Query(quantile("max_tokens", "0.95"), f"max_tokens {ENGINE}", REFERENCE, dashed=True),
                lines=[Line(limit("advice_long_context_min_tokens"), WARN)],
                width=8,
                axis="tokens",
                none=_NO_TRAFFIC,
            ),
        ],
    )


def _room() -> Row:
    fits = f"{engine('kv_capacity_tokens')} / ({engine('kv_tokens_per_request')} > 0)"
    recommended = engine("limit_recommended", _SEQUENCES)
    now = engine("limit_value", _SEQUENCES)
    free = f"{engine('kv_free_tokens')} / {engine('kv_capacity_tokens')}"
    declared = f"avg by (limit) ({of('limit_declared', SHOWN)})"
    low = 1.0
    return Row(
        "Safe concurrency against declared",
        [
            graph(
                "Requests that fit, and requests allowed",
                "max_num_seqs in force and the one that traffic makes safe; and the requests of the present size that "
                "the whole KV cache holds. Allowed above safe means preemption or a collapsed batch under load.",
                "short",
                Query(now, f"allowed {ENGINE}", SECOND),
                Query(recommended, f"safe {ENGINE}", FIRST),
                Query(fits, f"fit now {ENGINE}", REFERENCE, dashed=True),
                axis="sequences",
                none="no limit is known, and no traffic yet to recommend one from",
            ),
            graph(
                "Safe over allowed concurrency",
                "Below 1 the engine admits more sequences than its KV cache holds.",
                "short",
                Query(f"{recommended} / {now}", ENGINE, FIRST),
                lines=[Line(low, REFERENCE)],
                axis="safe / allowed",
                none="max_num_seqs is not known, or there is no traffic yet",
            ),
            graph(
                "KV cache left, per replica",
                "Share of the KV cache that no request holds. Below the line little is left for the longest requests.",
                "percentunit",
                Query(free, ENGINE, FIRST),
                lines=[Line(limit("advice_pool_headroom_ratio"), WARN)],
                most=1.0,
            ),
            graph(
                "Sequences left, per replica",
                "Safe concurrency less the running requests; below 0 the engine runs more than is safe.",
                "short",
                Query(
                    f"max without (limit) ({recommended}) - {engine('requests_running')}",
                    ENGINE,
                    FIRST,
                ),
                least=None,
                axis="sequences",
                none=_NO_TRAFFIC,
            ),
            rows(
                "Headroom by replica",
                f"One row per engine, the {SHOWN_COUNT} with the highest score of those chosen; the fullest first.",
                [
                    Column("target", "string", width=240),
                    Column("engine", "string", width=70),
                    Column("namespace", "string"),
                    Column("model_name", "string"),
                    Column("KV used", "percentunit", 0, thresholds=steps(GOOD, (limit("kv_saturated_min_ratio"), BAD))),
                    Column("KV capacity", "short", 0),
                    Column("Tokens/request", "short", 0),
                    Column("Running", "short", 0),
                    Column("Allowed", "short", 0),
                    Column("Safe", "short", 0),
                ],
                Query(by_identity(engine("kv_cache_usage_max_ratio")), "KV used"),
                Query(by_identity(engine("kv_capacity_tokens")), "KV capacity"),
                Query(by_identity(engine("kv_tokens_per_request")), "Tokens/request"),
                Query(by_identity(engine("requests_running")), "Running"),
                Query(by_identity(now), "Allowed"),
                Query(by_identity(recommended), "Safe"),
                sort="KV used",
                width=16,
            ),
            rows(
                "Limits declared",
                "Share of the engines shown that declare each limit.",
                [Column("limit", "string"), Column("Declared", "percentunit", 0, thresholds=steps(FIRST), bar=True)],
                Query(declared, "Declared"),
                sort="Declared",
                descending=False,
                width=8,
                none="how the engines were started could not be read",
            ),
        ],
    )


def _arrivals() -> Row:
    return Row(
        "Arrivals",
        [
            graph(
                "Burstiness",
                "Highest over mean arrivals in five-second bins of the window; from the line on requests come in "
                f"bursts ({shown('advice_bursty_min_factor')} times the mean).",
                "short",
                Query(engine("arrival_burstiness_ratio"), ENGINE, FIRST),
                lines=[Line(limit("advice_bursty_min_factor"), WARN)],
                axis="peak / mean",
                none=_IDLE,
            ),
            graph(
                "Throughput plateau",
                "1 while demand grows or queues and generated tokens per second do not grow.",
                "short",
                Query(engine("symptom", 'symptom="throughput_plateau"'), ENGINE, FIRST),
                most=1.0,
                none="demand is not known yet",
            ),
        ],
    )


def _weeks() -> Row:
    def over_weeks(family: str) -> str:
        return f"sum by (le) ({recorded(f'request_{family}_bucket:rate5m')})"

    return Row(
        "Trends over two weeks",
        [
            heat(
                "Prompt length over two weeks",
                "Requests per second by prompt length, in the namespaces and models chosen; always the last two weeks.",
                Query(over_weeks("prompt_tokens"), "{{le}}"),
                height=10,
                since=WEEKS,
                none=_NO_TRAFFIC,
            ),
            heat(
                "Output length over two weeks",
                "Requests per second by output length, in the namespaces and models chosen; always the last two weeks.",
                Query(over_weeks("output_tokens"), "{{le}}"),
                height=10,
                since=WEEKS,
                none=_NO_TRAFFIC,
            ),
            graph(
                "p95 prompt length over two weeks",
                "By namespace and model, taken again from added buckets. Prompts above the line count as long context.",
                "short",
                Query(recorded("request_prompt_tokens:p95_rate5m"), _MODEL),
                lines=[Line(limit("advice_long_context_min_tokens"), WARN)],
                axis="tokens",
                since=WEEKS,
                none=_NO_TRAFFIC,
            ),
            graph(
                "Effective batch p95 over two weeks",
                "By namespace and model, taken again from added buckets.",
                "short",
                Query(recorded("effective_batch_size:p95_rate5m"), _MODEL),
                axis="sequences",
                since=WEEKS,
                none=_NO_TRAFFIC,
            ),
        ],
    )


def board() -> Board:
    """Return the dashboard."""
    return Board(
        "kvpressure-capacity",
        "KV pressure / Capacity and traffic shape",
        "What a request takes of the KV cache, how many fit, how many are allowed, and how prompts move over weeks.",
        engine_variables(SHOWN_COUNT),
        [_request(), _room(), _arrivals(), _weeks()],
    )
