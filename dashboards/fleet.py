"""The fleet: which engines lose throughput, to what, and how much; what it costs in GPUs."""

from __future__ import annotations

from dashboards.board import Board, Row
from dashboards.looks import BAD, FIRST, GOOD, REFERENCE, SECOND, WARN, cause_names, limit, shown, steps
from dashboards.panels import Column, Line, Panel, Query, colours_by_name, graph, number, rows, timeline
from dashboards.queries import (
    CHOSEN,
    ENGINE,
    GPUS,
    MODELS,
    PODS,
    SELECTOR,
    by_identity,
    cause_code,
    differing,
    engine,
    images,
    lost_tokens,
    not_serving,
    of,
    quantile,
    rate,
    recorded,
)
from dashboards.variables import engine_variables
from kvpressure.model.catalogue import CATALOGUE as CAUSES

SHOWN_COUNT = 50
TO_ENGINE = (
    "/d/kvpressure-engine?${datasource:queryparam}&${cluster:queryparam}"
    "&var-target=${__data.fields.target}&${__url_time_range}"
)
MODEL = "{{namespace}} {{model_name}}"
GPU_LOW = limit("alert_score_min_ratio")
_SCORE = of("memory_high_compute_low_ratio", CHOSEN)
_LIMITS = of("limit_value", SELECTOR, MODELS)
_WORST = f"the {SHOWN_COUNT} engines with the highest score of the hour before the end of the time range"


def _numbers() -> Row:
    any_at_all = steps(GOOD, (1, BAD))
    return Row(
        "Now",
        [
            number(
                "Engines",
                "Engines with metrics, in the namespaces and models chosen.",
                "short",
                Query(f"sum({recorded('engines:sum')})", "engines"),
            ),
            number(
                "Under KV cache pressure",
                "Engines whose cause is KV cache pressure: waiting requests do not fit the KV cache.",
                "short",
                Query("sum(" + recorded("engines_by_cause:sum", 'cause="kv_cache_pressure"') + ")", "under pressure"),
                thresholds=any_at_all,
            ),
            number(
                "Requests waiting",
                "Requests that wait for admission, all engines together, mean over the window.",
                "short",
                Query(f"sum({recorded('requests_waiting:sum')})", "waiting"),
                decimals=0,
            ),
            number(
                "Generated tokens/s",
                "Tokens generated per second, all engines together.",
                "short",
                Query("sum(" + recorded("tokens:rate5m", 'kind="generation"') + ")", "tokens/s"),
                decimals=0,
            ),
            number(
                "Tokens/s lost to pressure",
                "Generated tokens per second that KV cache pressure costs, as engines estimate it "
                f"(docs/incidents.md): of {_WORST}.",
                "short",
                Query(lost_tokens(), "tokens/s lost"),
                thresholds=any_at_all,
                decimals=0,
            ),
            number(
                "Engines with GPUs full and idle",
                "Engines whose GPU memory is high while compute is low and there is demand: a "
                f"memory-high-compute-low score of {shown('alert_score_min_ratio')} or more.",
                "short",
                Query(f"count({_SCORE} >= {GPU_LOW}) or 0 * count({_SCORE})", "engines"),
                thresholds=any_at_all,
                none="no GPU data",
            ),
            timeline(
                "Replicas by pressure",
                f"The KV pressure score of each engine, the darker the higher: {_WORST}.",
                Query(engine("score_ratio"), ENGINE),
                (),
                height=9,
                none="no score yet",
                shades=True,
            ),
            rows(
                "Replicas that do not serve",
                "Replicas that are gone or cannot be read, with how the last poll ended, and for how long; and those "
                "that were stuck, of the last hour.",
                [
                    Column("target", "string", width=300),
                    Column("cluster", "string"),
                    Column("state", "string"),
                    Column("status", "string"),
                    Column("For", "s", 0),
                ],
                Query(not_serving(), "For"),
                sort="For",
                height=6,
                none="all are read, and none is stuck",
            ),
        ],
    )


def _replicas() -> Row:
    return Row(
        "Replicas of one model",
        [
            graph(
                "Replicas by state",
                "Serves: all requests are served; waits: some or all of them do; stuck: no progress; unreadable: its "
                "metrics are not read; gone: no answer.",
                "short",
                Query(f"count by (state) ({of('replica_state', PODS)})", "{{state}}"),
                stacked=True,
            ),
            graph(
                "Requests that failed",
                "Requests per second that got no whole answer: error and abort as the engine ended them (aborts are "
                "mostly clients that gave up), server_error as its server answered.",
                "short",
                Query(recorded("failed_requests:rate5m"), f"{{{{kind}}}} {MODEL}"),
                axis="requests/s",
                none="no request has failed",
            ),
            graph(
                "Overflow that siblings have room for",
                "Share of what is demanded of some replicas beyond what they have for which others of the same kind "
                "have room. From the line on KVPressureReplicasUneven fires after ten minutes.",
                "percentunit",
                Query(of("workload:kvpressure_overflow_fits:ratio", MODELS), f"{MODEL} {{{{workload}}}}"),
                lines=[Line(limit("alert_uneven_fits_min_ratio"), BAD)],
                most=1.0,
                none="no replica has requests that overflow while others have room",
            ),
            graph(
                "Hottest replica above the median",
                "By how much more of its KV cache the fullest replica of each model uses than the median one; and, on "
                "the axis to the right, by how many more requests wait at the one with the longest queue.",
                "percentunit",
                Query(recorded("kv_cache_usage_ratio:max_above_median"), f"KV cache {MODEL}", FIRST),
                Query(recorded("requests_waiting:max_above_median"), f"waiting {MODEL}", SECOND, right=True),
            ),
            rows(
                "Limits that differ",
                "Flags in force that are not the same on all replicas of a model: the lowest and the highest value.",
                [
                    Column("namespace", "string"),
                    Column("model_name", "string"),
                    Column("limit", "string"),
                    Column("Lowest", "short", 0),
                    Column("Highest", "short", 0),
                ],
                Query(differing("min", _LIMITS, "limit"), "Lowest"),
                Query(differing("max", _LIMITS, "limit"), "Highest"),
                sort="limit",
                width=12,
                none="all replicas of each model have the same limits, as far as these are known",
            ),
            rows(
                "Autoscalers",
                "The HPA, or ScaledObject, of each workload, and how many replicas it may still add: at 0 it is at its "
                "maximum.",
                [
                    Column("namespace", "string"),
                    Column("workload", "string"),
                    Column("object", "string"),
                    Column("May add", "short", 0),
                ],
                Query(
                    "max by (cluster, namespace, workload, object) (workload:kvpressure_autoscaler_room:replicas"
                    '{cluster=~"$cluster",namespace=~"$namespace"})',
                    "May add",
                ),
                sort="May add",
                descending=False,
                width=12,
                none="no series of kube-state-metrics, KEDA or WVA",
            ),
            rows(
                "Versions",
                "How many engines of a model run each image, whose tag is mostly their version; how many exporters run "
                "each version, and how many GPUs each driver.",
                [
                    Column("model_name", "string"),
                    Column("image", "string"),
                    Column("version", "string"),
                    Column("driver_version", "string"),
                    Column("Engines", "short", 0),
                    Column("Exporters", "short", 0),
                    Column("GPUs", "short", 0),
                ],
                Query(images(), "Engines"),
                Query(f"count by (version) ({of('build_info', GPUS)})", "Exporters"),
                Query(f"count by (driver_version) ({of('gpu_info', GPUS)})", "GPUs"),
                sort="image",
            ),
        ],
    )


def _causes() -> Row:
    counts = graph(
        "Engines by cause",
        "How many engines each cause limits.",
        "short",
        Query(f"sum by (cause) ({recorded('engines_by_cause:sum')})", "{{cause}}"),
        width=24,
        height=7,
        stacked=True,
    )
    looks = {cause.value: (look.label, look.fill) for cause, look in CAUSES.items()}
    return Row(
        "By cause",
        [
            colours_by_name(counts, looks),
            timeline(
                "Causes of the worst engines",
                f"What limits each engine, over time: {_WORST}.",
                Query(cause_code(), ENGINE),
                cause_names(),
                height=10,
            ),
            _worst(),
        ],
    )


def _worst() -> Panel:
    ratio = steps(GOOD, (limit("kv_saturated_min_ratio"), BAD))
    return rows(
        "Worst engines",
        f"One row per engine, the highest KV pressure score first: {_WORST}. The target opens its dashboard.",
        [
            Column("target", "string", link=TO_ENGINE, width=260),
            Column("engine", "string", width=70),
            Column("namespace", "string"),
            Column("model_name", "string"),
            Column("Cause", mappings=cause_names(), width=170),
            Column("Score", "short", 2, thresholds=steps(FIRST), bar=True),
            Column("KV used", "percentunit", 0, thresholds=ratio),
            Column("Waiting", "short", 0),
            Column("Running", "short", 0),
            Column("Batch p95", "short", 1),
            Column(
                "Latency factor",
                "short",
                1,
                thresholds=steps(GOOD, (limit("latency_inflated_min_factor"), BAD)),
            ),
            Column("First token p95", "s", 2),
            Column("Between tokens p95", "s", 3),
            Column("Tokens/s", "short", 0),
        ],
        Query(by_identity(engine("score_ratio")), "Score"),
        Query(by_identity(cause_code()), "Cause"),
        Query(by_identity(engine("kv_cache_usage_ratio")), "KV used"),
        Query(by_identity(engine("requests_waiting")), "Waiting"),
        Query(by_identity(engine("requests_running")), "Running"),
        Query(by_identity(quantile("effective_batch_size_quantile", "0.95")), "Batch p95"),
        Query(by_identity(engine("latency_inflation_ratio", 'kind="e2e"')), "Latency factor"),
        Query(by_identity(quantile("latency_seconds", "0.95", 'kind="ttft"')), "First token p95"),
        Query(by_identity(quantile("latency_seconds", "0.95", 'kind="inter_token"')), "Between tokens p95"),
        Query(by_identity(rate("tokens_total", 'kind="generation"')), "Tokens/s"),
        sort="Score",
    )


def _models() -> Row:
    return Row(
        "By namespace and model",
        [
            graph(
                "Engines under KV cache pressure",
                "Share of the engines of each namespace and model whose cause is KV cache pressure.",
                "percentunit",
                Query(recorded("engines_under_pressure:ratio"), MODEL),
                most=1.0,
            ),
            graph(
                "KV pressure score of the worst engine",
                "The highest KV pressure score in each namespace and model.",
                "short",
                Query(recorded("score_ratio:max"), MODEL),
                most=1.0,
            ),
            graph(
                "Latency inflation of the worst engine",
                "p95 end-to-end latency against the engine's own healthy one, the worst engine of each namespace and "
                "model. The line is where latency counts as inflated.",
                "short",
                Query(recorded("latency_inflation_ratio:max", 'kind="e2e"'), MODEL),
                lines=[Line(limit("latency_inflated_min_factor"), BAD)],
                axis="times healthy",
                none="no baseline yet: it takes a minute of healthy requests",
            ),
            *(
                graph(
                    title,
                    f"p95 {what}, the slowest engine of each namespace and model.",
                    "s",
                    Query(recorded("latency_seconds:max", f'kind="{kind}"', 'quantile="0.95"'), MODEL),
                    none="no request ended lately, or a profile without latencies",
                )
                for title, what, kind in (
                    ("Time to first token of the slowest engine", "time from arrival to the first token", "ttft"),
                    (
                        "Time between tokens of the slowest engine",
                        "time between two tokens of a request",
                        "inter_token",
                    ),
                )
            ),
            graph(
                "KV cache in use",
                "Share of the KV cache of each namespace and model that requests hold.",
                "percentunit",
                Query(recorded("kv_cache_usage:ratio"), MODEL),
                most=1.0,
            ),
            graph(
                "Prefix cache hit ratio",
                "Share of the prompt tokens of each namespace and model that the cache still held. Where it falls "
                "while prompts stay as long, contexts are evicted before they are requested again.",
                "percentunit",
                Query(recorded("prefix_cache_hit:ratio"), MODEL),
                most=1.0,
                none="no prompts, or a profile without computed prompt tokens",
            ),
        ],
    )


def _throughput() -> Row:
    generation = 'kind="generation"'
    return Row(
        "Throughput",
        [
            graph(
                "Tokens/s generated and lost to pressure",
                "Generated tokens per second of all engines; and what KV cache pressure costs, as engines estimate it "
                f"({_WORST}).",
                "short",
                Query("sum(" + recorded("tokens:rate5m", generation) + ")", "generated", FIRST),
                Query(lost_tokens(), "lost to KV cache pressure", SECOND),
                axis="tokens/s",
            ),
            graph(
                "Tokens/s lost to pressure, by namespace and model",
                f"The same estimate, by namespace and model: {_WORST}.",
                "short",
                Query(lost_tokens("namespace, model_name"), MODEL),
                axis="tokens/s",
                stacked=True,
            ),
            graph(
                "Demand",
                "Requests that run and that wait, all engines together.",
                "short",
                Query(f"sum({recorded('requests_running:sum')})", "running", FIRST),
                Query(f"sum({recorded('requests_waiting:sum')})", "waiting", SECOND),
                axis="requests",
            ),
            graph(
                "Preemptions",
                "Preemptions per second, by namespace and model.",
                "short",
                Query(recorded("preemptions:rate5m"), MODEL),
                axis="requests/s",
            ),
        ],
    )


def _gpus() -> Row:
    memory = steps(GOOD, (limit("gpu_memory_high_warn_ratio"), WARN), (limit("gpu_memory_high_critical_ratio"), BAD))
    return Row(
        "GPUs with memory high and compute low",
        [
            graph(
                "Memory-high-compute-low score of the worst engine",
                "0 to 1: device memory high and compute low while there is demand. From the line on a GPU is "
                "allocated and not used.",
                "short",
                Query(recorded("memory_high_compute_low_ratio:max"), MODEL),
                lines=[Line(GPU_LOW, BAD)],
                most=1.0,
                none="no GPU data",
            ),
            rows(
                "GPUs of the worst engines",
                f"Memory and utilization of the GPUs of each engine: {_WORST}.",
                [
                    Column("target", "string", link=TO_ENGINE, width=200),
                    Column("engine", "string", width=70),
                    Column("namespace", "string"),
                    Column("model_name", "string"),
                    Column("Score", "short", 2, thresholds=steps(REFERENCE, (GPU_LOW, BAD)), bar=True),
                    Column("Memory used", "percentunit", 0, thresholds=memory),
                    Column("Utilization", "percentunit", 0),
                ],
                Query(by_identity(engine("memory_high_compute_low_ratio")), "Score"),
                Query(by_identity(engine("engine_gpu_memory_used_ratio")), "Memory used"),
                Query(by_identity(engine("engine_gpu_utilization_ratio")), "Utilization"),
                sort="Score",
                width=12,
                height=8,
                none="no GPU data",
            ),
        ],
    )


def board() -> Board:
    """Return the dashboard."""
    return Board(
        "kvpressure-fleet",
        "KV pressure / Fleet",
        "Which engines lose throughput to KV cache pressure, how much, and where GPUs are allocated and not used.",
        engine_variables(SHOWN_COUNT),
        [_numbers(), _replicas(), _causes(), _models(), _throughput(), _gpus()],
    )
