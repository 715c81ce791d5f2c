"""vLLM's own series alone: what a team sees before it installs anything. It asks for no recorded series either."""

from __future__ import annotations

from typing import Final

from dashboards.board import Board, Note, Row, variable
from dashboards.looks import (
    BAD,
    FIRST,
    REFERENCE,
    REQUESTS_PER_SECOND,
    SECOND,
    TOKENS_PER_SECOND,
    WARN,
    limit,
    shown,
    steps,
)
from dashboards.panels import Column, Line, Query, graph, number, rows, words

ALSO: Final = "[[ also ]]"
"""The label matchers that a bundle is generated for, after a comma; often none."""

_LEVELS: Final = ("cluster", "namespace", "model_name", "instance")
CHOSEN: Final = ",".join(f'{label}=~"${label}"' for label in _LEVELS) + ALSO
"""The engines that the variables choose. A missing label matches All, which is `.*`."""

SHOWN_COUNT: Final = 20
SHOWN: Final = CHOSEN.replace('instance=~"$instance"', 'instance=~"$shown"')
"""The ones with the longest queues of them, as many as a person can look at."""
ENGINE: Final = "{{instance}}/{{engine}}"
_NONE: Final = "no series: is this vLLM scraped, and are the variables right?"


def of(name: str, *matchers: str, chosen: str = SHOWN) -> str:
    """Return a selector of vLLM's series, of the engines shown."""
    return f"vllm:{name}{{{','.join((*matchers, chosen))}}}"


def rate(name: str, *matchers: str, chosen: str = SHOWN) -> str:
    """Return a counter's rate over an interval that Grafana chooses, without what a series tells of its own."""
    return f"sum without (pid, reason, finished_reason) (rate({of(name, *matchers, chosen=chosen)}[$__rate_interval]))"


def usage(chosen: str = SHOWN) -> str:
    """Share of the KV cache in use, by either name."""
    new, old = of("kv_cache_usage_perc", chosen=chosen), of("gpu_cache_usage_perc", chosen=chosen)
    return f"max without (pid) ({new} or {old})"


def queued(chosen: str = SHOWN) -> str:
    """Return Requests that wait for room: all that wait, where the page does not say why."""
    by_reason = of("num_requests_waiting_by_reason", 'reason="capacity"', chosen=chosen)
    waiting = of("num_requests_waiting", chosen=chosen)
    return f"(sum without (pid, reason) ({by_reason}) or sum without (pid) ({waiting}))"


def total(name: str, chosen: str = SHOWN) -> str:
    """Return a gauge that several processes may report parts of."""
    return f"sum without (pid) ({of(name, chosen=chosen)})"


def free_over_held(chosen: str = SHOWN) -> str:
    """Free share of the cache over what a running request holds on average: below 1 the next does not fit."""
    # Where none runs, those who wait hold what is held: as one request, like the rules.
    running = f"clamp_min({total('num_requests_running', chosen)}, 1)"
    return f"(1 - {usage(chosen)}) * {running} / ({usage(chosen)} > 0)"


def _now() -> Row:
    waiting = f"sum({of('num_requests_waiting', chosen=CHOSEN)})"
    blocked = f"count(({free_over_held(CHOSEN)} < 1) and {queued(CHOSEN)} > 0) or vector(0)"
    preempted = f"sum(rate({of('num_preemptions_total', chosen=CHOSEN)}[$__rate_interval]))"
    first, between, older = (
        f"histogram_quantile(0.95, sum by (le) (rate({of(f'{name}_seconds_bucket', chosen=CHOSEN)}[$__rate_interval])))"
        for name in ("time_to_first_token", "inter_token_latency", "time_per_output_token")
    )
    generated = f"sum(rate({of('generation_tokens_total', chosen=CHOSEN)}[$__rate_interval]))"
    fullest = f"max({of('kv_cache_usage_perc', chosen=CHOSEN)} or {of('gpu_cache_usage_perc', chosen=CHOSEN)})"
    return Row(
        "Now",
        [
            number(
                "Time to first token, p95",
                "TTFT, from arrival to the first token, of all engines chosen.",
                "s",
                Query(first, "TTFT"),
                decimals=2,
                none="no request got its first token",
            ),
            number(
                "Time between tokens, p95",
                "ITL, or TPOT: between two tokens of one request, of all engines chosen.",
                "s",
                Query(f"{between} or {older}", "ITL"),
                decimals=3,
                none="no token was generated",
            ),
            number(
                "Generated tokens/s",
                "Of all engines chosen.",
                TOKENS_PER_SECOND,
                Query(generated, "tokens"),
                decimals=0,
                none=_NONE,
            ),
            number(
                "Requests waiting",
                "Of all engines chosen.",
                "short",
                Query(waiting, "waiting"),
                width=3,
                decimals=0,
                none=_NONE,
            ),
            number(
                "Fullest cache",
                f"Highest use. Full from {shown('kv_saturated_min_ratio', 'percent')} on, which alone is no problem.",
                "percentunit",
                Query(fullest, "fullest"),
                width=3,
                thresholds=steps(FIRST, (limit("kv_saturated_min_ratio"), WARN)),
                decimals=0,
                calm=True,
                none=_NONE,
            ),
            number(
                "Engines whose queue does not fit",
                "Engines with requests that wait for room while less of the cache is free than a request holds.",
                "short",
                Query(blocked, "engines"),
                width=3,
                thresholds=steps(REFERENCE, (1, BAD)),
                decimals=0,
            ),
            number(
                "Preemptions",
                "Requests preempted and recomputed per second, of all engines chosen.",
                REQUESTS_PER_SECOND,
                Query(preempted, "preemptions"),
                width=3,
                decimals=2,
                none=_NONE,
            ),
            rows(
                "Engines",
                f"The {SHOWN_COUNT} with the longest queues. Free over held below 1: the next request does not fit.",
                [
                    Column("instance", "string", width=240),
                    Column("engine", "string", width=70),
                    Column("namespace", "string"),
                    Column("model_name", "string"),
                    Column("Waiting", "short", 0),
                    Column("Running", "short", 0),
                    Column("KV used", "percentunit", 0),
                    Column("Free over held", "short", 1, thresholds=steps(BAD, (1, FIRST))),
                ],
                *(Query(_by_engine(expression), name) for name, expression in _TABLE.items()),
                sort="Waiting",
                none=_NONE,
            ),
        ],
    )


def _by_engine(expression: str) -> str:
    return f"max by (cluster, namespace, model_name, instance, engine) ({expression})"


_TABLE: Final = {
    "Waiting": total("num_requests_waiting"),
    "Running": total("num_requests_running"),
    "KV used": usage(),
    "Free over held": free_over_held(),
}


def _pressure() -> Row:
    deferred = of("num_requests_waiting_by_reason", 'reason="deferred"')
    return Row(
        "Queue, cache and preemption",
        [
            graph(
                "Requests waiting for capacity",
                "Requests that wait for room in the batch; before vLLM 0.20 all that wait.",
                "short",
                Query(queued(), ENGINE, FIRST),
                none=_NONE,
            ),
            graph(
                "Free KV cache over KV cache per request",
                "Free share of the KV cache over what a running request holds on average. Below 1, with requests "
                "waiting, the next one does not fit: that is KV cache pressure. A queue far above 1 waits for a cap on "
                "sequences, for compute, or for something of its own.",
                "short",
                Query(free_over_held(), ENGINE, FIRST),
                lines=[Line(1, REFERENCE)],
                logarithmic=True,
                none="no request holds any of the cache",
            ),
            graph(
                "KV cache in use",
                "Share of the KV cache that requests hold. Full without a queue is a cache that is used well.",
                "percentunit",
                Query(usage(), ENGINE, FIRST),
                lines=[Line(limit("kv_saturated_min_ratio"), WARN)],
                most=1.0,
                none=_NONE,
            ),
            graph(
                "Preempted, over admitted",
                "Requests preempted for each one admitted; each computes its prompt and its answer so far again. "
                f"Pressure from {shown('preempting_min_ratio', 'percent')} on.",
                "percentunit",
                Query(
                    f"{rate('num_preemptions_total')} / ({rate('time_to_first_token_seconds_count')} > 0)",
                    ENGINE,
                    FIRST,
                ),
                lines=[Line(limit("preempting_min_ratio"), WARN)],
                none="no request was admitted",
            ),
            graph(
                "Running",
                "Requests in the batch. Up and down under a queue is the cache; flat is a cap, or requests that are "
                "all alike.",
                "short",
                Query(total("num_requests_running"), ENGINE, FIRST),
                none=_NONE,
            ),
            graph(
                "Deferred and rejected requests",
                "Requests that the engine puts off on their own account (adapter, grammar, KV from elsewhere, image), "
                "from vLLM 0.20 on; and requests a second refused with 503, from 0.32 on.",
                "short",
                Query(f"sum without (pid, reason) ({deferred})", f"deferred {ENGINE}", FIRST),
                Query(rate("admission_rejections_total"), "refused {{instance}}", SECOND),
                none="not exported by this version, or none",
            ),
        ],
    )


def _progress() -> Row:
    first = of("time_to_first_token_seconds_sum"), of("time_to_first_token_seconds_count")
    mean = " / ".join(f"sum without (pid) (rate({one}[$__rate_interval]))" for one in first)
    hits, queries = (
        f"({rate(f'prefix_cache_{one}_total')} or {rate(f'gpu_prefix_cache_{one}_total')})"
        for one in ("hits", "queries")
    )
    found_again = f"{hits} / ({queries} > 0)"
    return Row(
        "Progress",
        [
            graph(
                "Tokens",
                "Generated and prompt tokens a second. Nothing at all while requests run is an engine that hangs.",
                TOKENS_PER_SECOND,
                Query(rate("generation_tokens_total"), f"generated {ENGINE}", FIRST),
                Query(rate("prompt_tokens_total"), f"prompts {ENGINE}", SECOND),
                none=_NONE,
            ),
            graph(
                "Admitted and finished",
                "Requests a second that got their first token, and that ended. Where fewer are admitted than sent, the "
                "queue grows.",
                REQUESTS_PER_SECOND,
                Query(rate("time_to_first_token_seconds_count"), f"admitted {ENGINE}", FIRST),
                Query(rate("request_success_total"), f"finished {ENGINE}", SECOND),
                none=_NONE,
            ),
            graph(
                "Prefix cache hit ratio",
                "Share of the prefix tokens that the cache still held. Where it falls while prompts are no longer than "
                "before, contexts are evicted before they are requested again.",
                "percentunit",
                Query(found_again, f"prefix hits {ENGINE}", FIRST),
                most=1.0,
                none="no prefix was looked up in the interval",
            ),
            graph(
                "Time to first token, mean",
                "Of the requests that got one. Those that still wait do not count yet.",
                "s",
                Query(mean, ENGINE, FIRST),
                none="no request got its first token",
            ),
            words(
                "What these series cannot tell",
                "What is guessed here, and what the exporter adds.",
                "A sample every 15 to 60 s misses what lasts seconds. No page has the engine's flags, so a **cap on "
                "sequences** and a **KV watermark** look alike; none has **GPU memory**, how long those that wait are, "
                "or who paused an engine. For an answer now, without installing anything: `kvpressure triage "
                "HOST:PORT`. For one that is always there: `kvpressure run`.",
                width=12,
            ),
        ],
    )


def board() -> Board:
    """Return the dashboard."""
    variables, before = [], []
    for label, title in zip(_LEVELS, ("Cluster", "Namespace", "Model", "Instance"), strict=True):
        chosen = ",".join(before) + ALSO if before else "[[ selector ]]"
        variables.append(variable(label, title, f"label_values(vllm:num_requests_running{{{chosen}}}, {label})"))
        before.append(f'{label}=~"${label}"')
    longest = f"topk({SHOWN_COUNT}, max by (instance) ({of('num_requests_waiting', chosen=CHOSEN)}))"
    shown_ones = variable(
        "shown", "Shown", f"query_result({longest})", hidden=True, regex='/instance="([^"]+)"/', everything=""
    )
    return Board(
        "kvpressure-vllm-only",
        "KV pressure / vLLM's own series",
        "Queue, KV cache, preemption and progress from what vLLM exports itself; no exporter is needed.",
        [*variables, shown_ones],
        [_now(), _pressure(), _progress()],
        notes=[
            Note(
                "Alerts",
                'ALERTS{alertname=~"KVPressureVLLM.+",alertstate="firing",instance=~"$shown"}',
                BAD,
                "{{alertname}} {{instance}}",
            )
        ],
    )
