"""One row per metric family: the only place where a series' name, type, help and labels are written down.

`collector` reads it. The standard families of the process itself are prometheus_client's own (`process_stats`).

`docs/metrics.md` is generated from this table, and rules and dashboards are tested against it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from kvpressure.model.view import ENGINE_LABELS

PREFIX = "kvpressure_"


class Scope(Enum):
    """What a family describes; its value is the labels that every series of it carries."""

    ENGINE = ENGINE_LABELS
    GPU = ("gpu_uuid", "gpu_index", "vendor")
    SOURCE = ("source", "target")
    CONTAINER = ("namespace", "pod", "container")
    EXPORTER = ()

    @property
    def labels(self) -> tuple[str, ...]:
        """The label names."""
        names: tuple[str, ...] = self.value
        return names


@dataclass(frozen=True, slots=True)
class Family:
    """A metric family; `labels` are its own, beside the scope's."""

    key: str
    type: str
    scope: Scope
    help: str
    labels: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The full metric name."""
        return PREFIX + self.key

    @property
    def all_labels(self) -> tuple[str, ...]:
        """The scope's labels, then the family's own."""
        return self.scope.labels + self.labels


def _engine(key: str, text: str, *labels: str, kind: str = "gauge") -> Family:
    # The label `quantile` is reserved for summaries, which quantiles over a sliding window are (decision 0002).
    return Family(key, "summary" if "quantile" in labels else kind, Scope.ENGINE, text, labels)


def _gpu(key: str, text: str, *labels: str) -> Family:
    return Family(key, "gauge", Scope.GPU, text, labels)


def _container(key: str, kind: str, text: str, *labels: str) -> Family:
    return Family(key, kind, Scope.CONTAINER, text, labels)


def _exporter(key: str, kind: str, text: str, *labels: str) -> Family:
    return Family(key, kind, Scope.EXPORTER, text, labels)


FAMILIES: tuple[Family, ...] = (
    _engine(
        "effective_batch_size",
        "Decode batch per engine step, one observation per step of the mean between two polls.",
        kind="histogram",
    ),
    _engine(
        "effective_batch_size_quantile", "Quantile over the window of the decode batch per engine step.", "quantile"
    ),
    _engine("requests_running", "Requests in the running batch, mean over the window."),
    _engine("requests_running_max", "Requests in the running batch, highest reading in the window."),
    _engine("requests_waiting", "Requests waiting for admission, mean over the window."),
    _engine("requests_waiting_max", "Requests waiting for admission, highest reading in the window."),
    _engine("kv_cache_usage_ratio", "Share of the KV cache held by requests, mean over the polls of the verdict."),
    _engine("kv_cache_usage_ratio_max", "Share of the KV cache held by requests, highest reading in the window."),
    _engine("kv_capacity_tokens", "Tokens that the KV cache can hold."),
    _engine(
        "kv_free_tokens",
        "Free KV cache tokens, less what a declared watermark keeps free, at the newest poll.",
    ),
    _engine("kv_tokens_per_request", "KV cache tokens held per running request, over the window."),
    _engine("kv_bytes_per_request", "KV cache memory held per running request, over the window."),
    _engine("kv_growth_tokens_per_second", "Growth of KV cache tokens in use, over the window."),
    _engine(
        "kv_exhaustion_seconds",
        "Predicted time until a typical prompt no longer fits; absent while use does not grow steadily.",
    ),
    _engine(
        "admission_blocked_ratio",
        "Share of the polls of the verdict in which requests waited and did not fit the free KV cache.",
    ),
    _engine("preemptions_total", "Requests preempted, as the engine counts them.", kind="counter"),
    _engine(
        "preemptions_per_second",
        "Preemptions (requests put back into the queue and recomputed later) per second over the window.",
    ),
    _engine(
        "kv_preempted_tokens_per_second",
        "KV cache tokens lost to preemption per second over the window: an estimate, preemptions times the mean held "
        "per running request. What the prefix cache still holds of them is not recomputed.",
    ),
    _engine("preempted_request_ratio", "Preemptions per request served over the polls of the verdict, at most 1."),
    _engine(
        "requests_refused_total",
        "Requests refused at a queue limit, as the engine counts them; absent unless it has refused any.",
        kind="counter",
    ),
    _engine(
        "requests_refused_per_second",
        "Requests refused at a queue limit, per second over the window; absent unless the engine has refused any.",
    ),
    _engine(
        "refused_request_ratio",
        "Share of the requests sent that were refused at a queue limit, over the polls of the verdict.",
    ),
    _engine(
        "latency_seconds",
        "Quantile of request latency over the window; kind is e2e, ttft, inter_token or queue.",
        "kind",
        "quantile",
    ),
    _engine(
        "latency_inflation_factor",
        "p95 latency over the window divided by the engine's own healthy p95, beyond what longer answers explain; "
        "kind is e2e, ttft or inter_token.",
        "kind",
    ),
    _engine(
        "tokens_total",
        "Tokens processed, as the engine counts them; kind is prompt or generation.",
        "kind",
        kind="counter",
    ),
    _engine("tokens_per_second", "Tokens processed per second over the window; kind is prompt or generation.", "kind"),
    _engine(
        "estimated_flops_per_second",
        "FLOP/s of each of its GPUs by the engine's own estimate, over the window; absent unless switched on.",
    ),
    _engine(
        "estimated_memory_bytes_per_second",
        "Bytes per second each of its GPUs reads and writes in memory, likewise.",
    ),
    _engine(
        "lost_tokens_total",
        "Generated tokens that are missing, while something held the engine back, against what it would do for "
        "the same demand: an estimate. Absent until its steps, or a healthy time, tell what that is.",
        kind="counter",
    ),
    _engine("throughput_plateau", "1 while demand grows or queues and generated tokens per second do not grow."),
    _engine(
        "saturation_ratio",
        "Share in use of what binds the engine: the highest known one of KV cache tokens, places in the batch (where "
        "the cap is known) and the time that prompts take (prefill). Absent where none is known.",
    ),
    _engine(
        "demand_replicas",
        "What everyone who runs or waits asks for, in engines like this one: 1.5 takes one and a half of it. "
        "constraint is kv_tokens, sequences or prefill; one that is not known is absent.",
        "constraint",
    ),
    _engine(
        "queue_drain_seconds",
        "Waiting requests over the requests admitted per second over the window; 0 while nobody waits, absent while "
        "nobody is admitted.",
    ),
    _engine("prompt_tokens", "Quantile of prompt length over the traffic shape window.", "quantile"),
    _engine(
        "max_tokens", "Quantile of the max_tokens that requests asked for, over the traffic shape window.", "quantile"
    ),
    _engine("output_tokens", "Quantile of output length over the traffic shape window.", "quantile"),
    _engine(
        "request_prompt_tokens", "Prompt length of finished requests, interpolated to powers of two.", kind="histogram"
    ),
    _engine(
        "request_max_tokens",
        "max_tokens that finished requests had asked for, interpolated to powers of two.",
        kind="histogram",
    ),
    _engine(
        "request_output_tokens", "Output length of finished requests, interpolated to powers of two.", kind="histogram"
    ),
    _engine("arrival_burstiness_factor", "Highest over mean arrivals in five-second bins of the window."),
    _engine("engine_gpu_info", "1 for each GPU that serves this engine and no other.", "gpu_uuid"),
    _engine("engine_gpu_memory_used_ratio", "Highest share of device memory used over the engine's GPUs."),
    _engine("engine_gpu_utilization_ratio", "Mean utilization of the engine's GPUs over the window."),
    _engine("memory_high_compute_low_score", "0 to 1: device memory high and compute low while there is demand."),
    _engine("symptom", "1 where the symptom holds, 0 where it does not; absent where it cannot be judged.", "symptom"),
    _engine("score", "KV cache pressure, 0 to 1."),
    _engine("bottleneck", "State set: exactly one cause is 1.", "cause"),
    _engine(
        "bottleneck_info",
        "1 for the cause that holds and which kind of it; the detail is empty where nothing tells.",
        "cause",
        "detail",
    ),
    _engine("bottleneck_confidence", "Share of the evidence that agrees with the cause."),
    _engine("engine_up", "1 where the engine answers, 0 where it did and is still to be polled."),
    _engine("engine_silent_seconds", "Time since the engine last answered; absent while it answers."),
    _engine(
        "engine_last_bottleneck",
        "1 for the cause that held when the engine last answered; absent while it answers.",
        "cause",
    ),
    _engine(
        "engine_last_demand_requests",
        "Mean requests running and waiting when the engine last answered; absent while it answers.",
    ),
    _engine(
        "canary_requests_total",
        "Requests of one token sent to learn whether the engine answers, by how they ended; absent unless switched on.",
        "result",
        kind="counter",
    ),
    _engine("limit_declared", "1 where the limit is declared, 0 where it is left to a default.", "limit"),
    _engine("limit_value", "The limit in force, in its own unit.", "limit"),
    _engine("limit_recommended", "The value that memory, model and traffic make safe.", "limit"),
    _gpu(
        "gpu_info",
        "1; device details as labels.",
        "name",
        "driver_version",
        "profile",
        "parent_uuid",
        "memory_kind",
    ),
    _gpu("gpu_memory_used_bytes", "Device memory in use."),
    _gpu("gpu_memory_total_bytes", "Device memory."),
    _gpu("gpu_utilization_ratio", "Share of time with a kernel running: mean of the driver's samples over the window."),
    _gpu("gpu_utilization_valid", "1 where the driver gives a utilization, 0 where it does not (MIG)."),
    _gpu("gpu_sm_active_ratio", "Share of time the streaming multiprocessors were active, mean over the window."),
    _gpu("gpu_tensor_active_ratio", "Share of time the tensor pipes were active, mean over the window."),
    _gpu("gpu_dram_active_ratio", "Share of the memory bandwidth in use, mean over the window."),
    Family("source_up", "gauge", Scope.SOURCE, "1 when the source's last read succeeded."),
    Family("source_duration_seconds", "gauge", Scope.SOURCE, "How long the source's last read took."),
    Family(
        "source_last_success_timestamp_seconds",
        "gauge",
        Scope.SOURCE,
        "When the source was last read successfully, in unix time.",
    ),
    Family(
        "poll_duration_seconds",
        "summary",
        Scope.SOURCE,
        "How long the source's latest reads took (at most 60, the one under way included): median, and the longest.",
        ("quantile",),
    ),
    Family("source_errors_total", "counter", Scope.SOURCE, "Failed reads of the source.", ("reason",)),
    _container("container_restarts_total", "counter", "Restarts of an engine's container."),
    _container(
        "container_last_termination_info",
        "gauge",
        "1; how the container last terminated: OOMKilled (137) is host memory, Error is the engine exiting by itself.",
        "reason",
        "exit_code",
    ),
    _container("log_events_total", "counter", "Failure-related engine log incidents, by kind.", "kind"),
    _container("cpu_throttled_ratio", "gauge", "Share of CPU periods throttled by the CPU limit."),
    _container("kubernetes_events_total", "counter", "Events on engines' pods and on their node.", "reason"),
    _exporter("cpu_pressure_ratio", "gauge", "Share of time in which some task on the host waited for CPU (PSI)."),
    _exporter("node_memory_pressure", "gauge", "1 while the node reports MemoryPressure, else 0."),
    _exporter("samples_rejected_total", "counter", "Readings dropped as impossible.", "source", "reason"),
    _exporter(
        "caps_reached_total", "counter", "Times something was left out because a configured cap was reached.", "cap"
    ),
    _exporter("polls_skipped_total", "counter", "Engine polls skipped because the previous one was still running."),
    _exporter("engine_page_bytes_total", "counter", "Bytes of engine pages received."),
    _exporter("web_connections", "gauge", "Connections open to the exporter's own server."),
    _exporter(
        "web_refused_total",
        "counter",
        "Connections ended and requests turned away so that nobody keeps the exporter's own server busy.",
        "reason",
    ),
    _exporter(
        "config_last_reload_successful", "gauge", "1 if the last configuration reload succeeded, 0 if it was rejected."
    ),
    _exporter(
        "config_last_reload_success_timestamp_seconds",
        "gauge",
        "Unix time of the last successful configuration reload.",
    ),
    _exporter("thresholds_info", "gauge", "1; hash of the thresholds in use.", "hash"),
    _exporter("build_info", "gauge", "1; version of kvpressure and Python.", "version", "python_version"),
)

BY_KEY = {family.key: family for family in FAMILIES}
