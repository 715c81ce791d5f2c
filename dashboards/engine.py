"""One engine in an incident, the story from top to bottom; the link in every alert leads here."""

from __future__ import annotations

from typing import Final

from dashboards.board import Board, Note, Row
from dashboards.looks import (
    BAD,
    CALM,
    FIRST,
    GOOD,
    KIND,
    OFF,
    REFERENCE,
    REQUESTS_PER_SECOND,
    SECOND,
    SYMPTOM,
    TIMES,
    TOKENS_PER_SECOND,
    WARN,
    cause_names,
    limit,
    shown,
    states,
    steps,
)
from dashboards.panels import Column, Line, Panel, Query, graph, heat, number, rows, timeline, words
from dashboards.queries import CONTAINERS, ENGINE, GPUS, SHOWN, cause_code, engine, of, quantile, rate
from dashboards.variables import engine_variables

SHOWN_COUNT: Final = 10
NO_KUBERNETES: Final = "no Kubernetes source, or nothing happened to these containers"
_WHO: Final = "{{pod}} {{container}}"
_LATENCY: Final = ("e2e", "ttft", "inter_token", "queue")

RUNBOOKS: Final = {
    "KVPressureCacheTooSmall": "requests wait because they do not fit the KV cache",
    "KVPressurePreemptionThrash": "running requests are preempted and recomputed",
    "KVPressureSequenceCapReached": "**concurrency bound**: requests wait for a place in the batch",
    "KVPressureEngineComputeBound": "**compute bound**: the GPU itself is the limit",
    "KVPressureEngineHostBound": "**host bound**: the GPU waits for the CPU or the API process",
    "KVPressureEngineDeferred": "**deferred**: requests wait for an adapter's slot, a grammar or KV from elsewhere",
    "KVPressureEngineStuck": "**stuck**: there is work, and nothing moves",
    "KVPressureDeviceOutOfMemory": "the log tells of CUDA or HIP out of memory",
    "KVPressureEngineRestarting": "the server dies and comes back",
    "KVPressureMemoryHighComputeLow": "the GPU is full and idle while requests are there",
}
"""The runbooks to begin with, by what is seen above."""


def _now() -> Row:
    kv = steps(GOOD, (limit("kv_saturated_min_ratio"), BAD))
    latency = steps(GOOD, (limit("latency_inflated_min_factor"), BAD))
    return Row(
        "Now",
        [
            number(
                "Time to first token, p95",
                "TTFT: from a request's arrival to its first token, over the window.",
                "s",
                Query(quantile("latency_seconds", "0.95", 'kind="ttft"'), ENGINE),
                width=3,
                decimals=2,
                none="no request in the window",
            ),
            number(
                "Time between tokens, p95",
                "ITL, or TPOT: between two tokens of one request, over the window.",
                "s",
                Query(quantile("latency_seconds", "0.95", 'kind="inter_token"'), ENGINE),
                width=3,
                decimals=3,
                none="no request in the window",
            ),
            number(
                "Generated tokens/s",
                "Tokens generated per second.",
                TOKENS_PER_SECOND,
                Query(rate("tokens_total", 'kind="generation"'), ENGINE),
                width=3,
                decimals=0,
            ),
            number(
                "Requests waiting",
                "Requests that wait for admission, mean over the window.",
                "short",
                Query(engine("requests_waiting"), ENGINE),
                width=3,
                decimals=0,
            ),
            number(
                "KV cache used",
                "Share of the KV cache used by requests, mean over the window. Saturated from "
                f"{shown('kv_saturated_min_ratio', 'percent')} on, with requests waiting.",
                "percentunit",
                Query(engine("kv_cache_usage_ratio"), ENGINE),
                width=3,
                thresholds=kv,
                decimals=0,
                calm=True,
            ),
            number(
                "Cause",
                "What limits the engine now; exactly one cause holds.",
                "short",
                Query(cause_code(), ENGINE),
                width=3,
                mappings=cause_names(),
                thresholds=steps(CALM),
            ),
            number(
                "Tokens/s lost",
                "Generated tokens per second that are missing while something holds the engine back, estimated.",
                TOKENS_PER_SECOND,
                Query(rate("lost_tokens_total"), ENGINE),
                width=3,
                decimals=0,
                none="not known yet",
            ),
            number(
                "Latency against healthy",
                "p95 end-to-end latency over the engine's own healthy one. Inflated from "
                f"{shown('latency_inflated_min_factor')} times on.",
                TIMES,
                Query(engine("latency_inflation_ratio", 'kind="e2e"'), ENGINE),
                width=3,
                thresholds=latency,
                decimals=1,
                calm=True,
                none="no baseline yet, or no request ended",
            ),
        ],
    )


def _cause() -> Row:
    told = engine("bottleneck_info", 'detail!=""')
    return Row(
        "Cause and symptoms",
        [
            timeline(
                "Cause over time",
                f"What limits each engine, over time; the {SHOWN_COUNT} with the highest score of those chosen.",
                Query(cause_code(), ENGINE),
                cause_names(),
                height=6,
            ),
            timeline(
                "Cause detail over time",
                "The details of the cause in the time range, a row each: what is waited for, which cap, "
                "how it is stuck or paused. Nothing where no evidence tells which; the exporter's page says why.",
                Query(
                    f"max by (target, engine, cause, detail) ({told})",
                    f"{ENGINE} {{{{cause}}}}/{{{{detail}}}}",
                ),
                KIND,
                height=5,
                none="nothing tells which kind",
            ),
            timeline(
                "Symptoms",
                "Each symptom of the engines shown; one that cannot be judged, for want of data, is missing.",
                Query(f"max by (symptom) ({engine('symptom')})", "{{symptom}}"),
                SYMPTOM,
                height=11,
            ),
            graph(
                "KV pressure score",
                "KV cache pressure, from 0 to 1.",
                "short",
                Query(engine("score_ratio"), ENGINE, FIRST),
                width=24,
                height=5,
                most=1.0,
                none="not known",
            ),
        ],
    )


def _cache() -> Row:
    used = engine("kv_cache_usage_ratio")
    twice = engine("prefix_cache_pool_hit_ratio", 'pool_ratio="2"')
    return Row(
        "The KV cache",
        [
            graph(
                "KV cache in use",
                "Share of the KV cache used by requests. With requests waiting, the line is where it counts as "
                "saturated.",
                "percentunit",
                Query(engine("kv_cache_usage_ratio"), f"mean {ENGINE}", FIRST),
                Query(engine("kv_cache_usage_max_ratio"), f"highest {ENGINE}", REFERENCE, dashed=True),
                lines=[Line(limit("kv_saturated_min_ratio"), BAD)],
                width=8,
                most=1.0,
            ),
            graph(
                "Free KV cache",
                "Tokens that the KV cache could still take, and the p95 prompt that has to fit into them.",
                "short",
                Query(engine("kv_free_tokens"), f"free {ENGINE}", FIRST),
                Query(quantile("prompt_tokens", "0.95"), f"p95 prompt {ENGINE}", SECOND),
                width=8,
                axis="tokens",
            ),
            graph(
                "Admission blocked",
                "Share of the window in which requests waited and a typical prompt did not fit the free KV cache. "
                "From the line on admission counts as blocked.",
                "percentunit",
                Query(engine("admission_blocked_ratio"), ENGINE, FIRST),
                lines=[Line(limit("admission_blocked_min_ratio"), BAD)],
                width=8,
                most=1.0,
            ),
            graph(
                "KV cache growth",
                "Trend of the tokens used by requests.",
                "short",
                Query(f"deriv({used}[$__rate_interval]) * {engine('kv_capacity_tokens')}", ENGINE, FIRST),
                least=None,
                axis="tokens/s",
            ),
            graph(
                "Queue drain time",
                "Waiting requests over the rate of admission; while nothing is admitted, the time since the last "
                f"admission. From {shown('queue_drain_max_seconds')} s on the queue is not served in time.",
                "s",
                Query(engine("queue_drain_seconds"), ENGINE, FIRST),
                lines=[Line(limit("queue_drain_max_seconds"), WARN)],
            ),
            graph(
                "Prefix cache hit ratio",
                "Share of the prefix tokens that the cache still held. Where it falls while the turnover to the right "
                "gets shorter, contexts are evicted before they are requested again. Computing them again counts as "
                f"pressure from {shown('eviction_time_min_ratio', 'percent')} of the engine's time. KV events tell "
                "what twice the pool would hold.",
                "percentunit",
                Query(engine("prefix_cache_hit_ratio"), f"prefix hits {ENGINE}", FIRST),
                Query(twice, f"twice the pool {ENGINE}", REFERENCE, dashed=True),
                Query(engine("recomputed_time_ratio"), f"time computing again {ENGINE}", BAD),
                most=1.0,
                none="no prefix was looked up in the window",
            ),
            graph(
                "Cache turnover",
                "Time in which as many tokens are written as the cache has free. An unused context is kept between the "
                "two dashed lines.",
                "s",
                Query(engine("cache_turnover_seconds"), f"turnover {ENGINE}", FIRST),
                Query(engine("cache_eviction_age_min_seconds"), f"kept at least {ENGINE}", REFERENCE, dashed=True),
                Query(engine("cache_eviction_age_max_seconds"), f"kept at most {ENGINE}", REFERENCE, dashed=True),
                logarithmic=True,
                none="nothing was written in the window",
            ),
        ],
    )


def _batch() -> Row:
    demand = f"{engine('requests_running')} + {engine('requests_waiting')}"
    return Row(
        "The batch",
        [
            graph(
                "Effective batch against demand",
                "Sequences decoded per step, against the requests that run or wait. A p95 at or below the line does "
                "the work of a single request; beyond the knee more at once hardly give more tokens.",
                "short",
                Query(demand, f"demand {ENGINE}", REFERENCE, dashed=True),
                Query(quantile("effective_batch_size_quantile", "0.95"), f"batch p95 {ENGINE}", FIRST),
                Query(quantile("effective_batch_size_quantile", "0.5"), f"batch p50 {ENGINE}", SECOND),
                Query(engine("running_knee_requests"), f"knee {ENGINE}", WARN, dashed=True),
                lines=[Line(limit("batch_collapse_max_sequences"), WARN)],
                axis="sequences",
            ),
            graph(
                "Tokens per second",
                "Generated tokens, and on the axis to the right the tokens of prompts.",
                TOKENS_PER_SECOND,
                Query(rate("tokens_total", 'kind="generation"'), f"generated {ENGINE}", FIRST),
                Query(rate("tokens_total", 'kind="prompt"'), f"prompt {ENGINE}", SECOND, right=True),
                axis="tokens/s",
            ),
            graph(
                "Tokens lost",
                "Generated tokens per second that are missing while something holds the engine back: an estimate "
                "(docs/incidents.md).",
                TOKENS_PER_SECOND,
                Query(rate("lost_tokens_total"), ENGINE, BAD),
                axis="tokens/s",
                none="nothing tells yet what the engine would do without trouble",
            ),
            graph(
                "Preemptions",
                "Preemptions per second: requests put back into the queue and recomputed later.",
                REQUESTS_PER_SECOND,
                Query(rate("preemptions_total"), ENGINE, FIRST),
                axis="requests/s",
            ),
            graph(
                "Preempted share of requests",
                "Preemptions per request served in the window; from the line on the engine counts as preempting.",
                "percentunit",
                Query(engine("preempted_request_ratio"), ENGINE, FIRST),
                lines=[Line(limit("preempting_min_ratio"), WARN)],
                none="no request was served in the window",
            ),
        ],
    )


def _latency() -> Row:
    p95 = {kind: quantile("latency_seconds", "0.95", f'kind="{kind}"') for kind in _LATENCY}
    quiet = "no request ended in the window"
    return Row(
        "Latency",
        [
            graph(
                "p95 latency",
                "p95 over the window: end to end, to the first token, and in the queue.",
                "s",
                Query(p95["e2e"], f"end to end {ENGINE}", FIRST),
                Query(p95["ttft"], f"first token {ENGINE}", SECOND),
                Query(p95["queue"], f"queue {ENGINE}", REFERENCE, dashed=True),
                width=8,
                none=quiet,
            ),
            graph(
                "p95 time between tokens",
                "p95 over the window of the time between two tokens of one request.",
                "s",
                Query(p95["inter_token"], ENGINE, FIRST),
                width=8,
                none=quiet,
            ),
            graph(
                "Latency against the healthy baseline",
                "p95 now over the engine's own healthy p95; above the line latency counts as inflated.",
                "short",
                Query(engine("latency_inflation_ratio", 'kind="e2e"'), f"end to end {ENGINE}", FIRST),
                Query(engine("latency_inflation_ratio", 'kind="ttft"'), f"first token {ENGINE}", SECOND),
                lines=[Line(limit("latency_inflated_min_factor"), BAD)],
                axis="times healthy",
                width=8,
                logarithmic=True,
                none="no baseline yet: it takes a minute of healthy requests",
            ),
        ],
    )


def _gpu() -> Row:
    info = f"max by (instance, gpu_uuid, target, engine) ({engine('engine_gpu_info')})"

    def active(what: str) -> str:
        found = f"max by (instance, gpu_uuid) ({of(f'gpu_{what}_active_ratio', GPUS)})"
        return f"{info} * on (cluster, instance, gpu_uuid) group_left () {found}"

    return Row(
        "The GPU",
        [
            graph(
                "GPU memory against utilization",
                "Memory is preallocated, so a full device says nothing by itself. With requests waiting, memory above "
                f"{shown('gpu_memory_high_critical_ratio', 'percent')} and utilization below "
                f"{shown('gpu_compute_low_max_ratio', 'percent')} mean that the GPU is allocated and not used.",
                "percentunit",
                Query(engine("engine_gpu_memory_used_ratio"), f"memory used {ENGINE}", SECOND),
                Query(engine("engine_gpu_utilization_ratio"), f"utilization {ENGINE}", FIRST),
                lines=[
                    Line(limit("gpu_compute_low_max_ratio"), REFERENCE),
                    Line(limit("gpu_memory_high_warn_ratio"), WARN),
                    Line(limit("gpu_memory_high_critical_ratio"), BAD),
                ],
                width=8,
                most=1.0,
                none="no GPU data",
            ),
            graph(
                "Memory-high-compute-low score",
                "0 to 1: device memory high and compute low while there is demand.",
                "short",
                Query(engine("memory_high_compute_low_ratio"), ENGINE, FIRST),
                lines=[Line(limit("alert_score_min_ratio"), BAD)],
                width=8,
                most=1.0,
                none="no GPU data, or the GPU is shared with others",
            ),
            graph(
                "GPU activity: SM, tensor cores, DRAM",
                "Share of time that streaming multiprocessors, tensor pipes and memory were active.",
                "percentunit",
                Query(active("sm"), f"SM {ENGINE}", FIRST),
                Query(active("tensor"), f"tensor {ENGINE}", SECOND),
                Query(active("dram"), f"DRAM {ENGINE}", REFERENCE, dashed=True),
                width=8,
                most=1.0,
                none="the driver does not tell (NVIDIA Hopper and later, with gpm enabled)",
            ),
        ],
    )


def _shape(title: str, family: str, what: str) -> Panel:
    buckets = engine(f"request_{family}_bucket")
    return heat(
        title,
        f"{what} of the requests that ended, by powers of two.",
        Query(f"sum by (le) (increase({buckets}[$__rate_interval]))", "{{le}}"),
        width=8,
        none="no request has ended yet",
    )


def _traffic() -> Row:
    return Row(
        "Prompt and output lengths",
        [
            _shape("Prompt length", "prompt_tokens", "Prompt tokens"),
            _shape("requested max_tokens", "max_tokens", "max_tokens"),
            _shape("Output length", "output_tokens", "Generated tokens"),
        ],
    )


def _limits() -> Row:
    def values(family: str) -> str:
        return f"max by (target, engine, limit) ({engine(family)})"

    declared = states(("left to a default", OFF), ("declared", FIRST))
    return Row(
        "Limits",
        [
            rows(
                "Limits now and recommended",
                "What is in force, what memory, model and traffic make safe, and whether somebody wrote it down. "
                "Token limits are in tokens, max_num_seqs in sequences, gpu_memory_utilization is a share.",
                [
                    Column("target", "string"),
                    Column("engine", "string", width=80),
                    Column("limit", "string"),
                    Column("Now", "short", 2),
                    Column("Recommended", "short", 2),
                    Column("Declared", mappings=declared),
                ],
                Query(values("limit_value"), "Now"),
                Query(values("limit_recommended"), "Recommended"),
                Query(values("limit_declared"), "Declared"),
                sort="limit",
                descending=False,
                height=8,
                none="no limit is known, and no traffic yet to recommend one from",
            )
        ],
    )


def _container() -> Row:
    def increases(family: str, *more: str) -> str:
        return f"increase({of(family, CONTAINERS, *more)}[$__rate_interval])"

    pressure = f"{of('cpu_pressure_ratio', GPUS)} and on (cluster, instance) {engine('bottleneck_confidence_ratio')}"
    return Row(
        "Containers, log and Kubernetes",
        [
            graph(
                "Restarts",
                "Restarts of the engines' containers.",
                "short",
                Query(increases("container_restarts_total"), _WHO, FIRST),
                width=8,
                none=NO_KUBERNETES,
            ),
            graph(
                "Log events by kind",
                "Lines of the engines' logs that tell of KV cache, out of memory, preemption or a dying engine, by "
                "kind.",
                "short",
                Query(increases("log_events_total"), f"{{{{kind}}}} {_WHO}", FIRST),
                width=8,
                none="no log source",
            ),
            graph(
                "Kubernetes events",
                "Events on the engines' pods and on their node, by reason.",
                "short",
                Query(increases("kubernetes_events_total"), f"{{{{reason}}}} {_WHO}", FIRST),
                width=8,
                none=NO_KUBERNETES,
            ),
            rows(
                "Last container terminations",
                "OOMKilled (137) is memory of the host, Error is the engine's own end.",
                [
                    Column("namespace", "string"),
                    Column("pod", "string"),
                    Column("container", "string"),
                    Column("reason", "string"),
                    Column("exit_code", "string"),
                ],
                Query(
                    "max by (namespace, pod, container, reason, exit_code) "
                    f"({of('container_last_termination_info', CONTAINERS)})",
                    "ended",
                ),
                sort="pod",
                descending=False,
                hidden=("ended", "Value"),
                width=12,
                height=7,
                none="no container has ended, or no Kubernetes source",
            ),
            graph(
                "CPU pressure and throttling",
                "Share of time in which tasks of the host waited for a CPU; share of scheduling periods that a CPU "
                "limit cut short for a container.",
                "percentunit",
                Query(pressure, "pressure {{instance}}", FIRST),
                Query(of("cpu_throttled_ratio", CONTAINERS), f"throttled {_WHO}", SECOND),
                lines=[Line(limit("alert_cpu_pressure_min_ratio"), WARN)],
                height=7,
                most=1.0,
                none="the host does not tell (PSI, cgroups)",
            ),
        ],
    )


def _what_to_do() -> Row:
    address = "[[ runbooks ]]"
    query = "?target=${target:raw}&instance=${instance:raw}"
    listed = "\n".join(f"- [{name}]({address}/{name}{query}): {when}" for name, when in RUNBOOKS.items())
    content = f"""**Is the cause KV cache pressure?** First shed or cap long requests, then change limits;
`kvpressure triage --advice HOST:PORT` prints the flags with values, in the right order, and how to verify.

{listed}

All runbooks: [{address}]({address}). The exporter's own page, with the evidence: [http://${{instance}}/](http://${{instance}}/).
"""
    return Row(
        "What to do",
        [words("What to do", "Runbooks for the alerts above, filled in for the target chosen.", content, height=11)],
    )


def _notes() -> list[Note]:
    def happened(family: str, *more: str) -> str:
        return f"increase({of(family, CONTAINERS, *more)}[2m]) > 0"

    judged = engine("bottleneck_confidence_ratio")
    return [
        Note("Restart", happened("container_restarts_total"), BAD, "{{namespace}}/{{pod}} {{container}} restarted"),
        Note(
            "Log",
            happened("log_events_total", 'kind!~"kv_capacity|other"'),
            WARN,
            "{{kind}} in the log of {{namespace}}/{{pod}} {{container}}",
        ),
        Note(
            "Alert",
            f'max by (alertname, severity, target) (ALERTS{{alertstate="firing", {SHOWN}}})',
            BAD,
            "{{alertname}} ({{severity}}) on {{target}}",
        ),
        Note(
            "New engine",
            f"max by (target) ({judged} unless {judged} offset 2m)",
            CALM,
            "{{target}} is new: a rollout, a restart of its node, or a scale-up",
        ),
        Note("Kubernetes event", happened("kubernetes_events_total"), CALM, "{{reason}} {{namespace}}/{{pod}}"),
    ]


def board() -> Board:
    """Return the dashboard."""
    return Board(
        "kvpressure-engine",
        "KV pressure / Engine",
        "One engine, the story of an incident from top to bottom. With All chosen, the ten engines with the highest "
        "score of the hour before the end of the time range.",
        engine_variables(SHOWN_COUNT),
        [
            *(_now(), _cause(), _cache(), _batch(), _latency(), _gpu(), _traffic(), _limits(), _container()),
            _what_to_do(),
        ],
        _notes(),
    )
