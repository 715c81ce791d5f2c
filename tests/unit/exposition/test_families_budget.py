"""The budget of series of one engine: a row for each family, with what its series are for.

A new family is a new row, and a larger one a larger number; either says whom it serves. What only some engines have is
in `SOMETIMES`.
"""

import inspect
import math
import pkgutil
import re
from collections import Counter
from importlib import import_module
from types import ModuleType
from typing import Final

import pytest

from kvpressure import signals
from kvpressure.advice import limits
from kvpressure.advice.limits import SHOWN
from kvpressure.bundle import Options, load_rules
from kvpressure.config.thresholds import load_thresholds
from kvpressure.diagnosis.symptoms import NAMES
from kvpressure.exposition import families
from kvpressure.exposition.families import EXPORTER, FAMILIES, JSON_VALUES
from kvpressure.model.family import Family, Scope
from kvpressure.model.verdict import Cause
from kvpressure.signals import kv_events, past, reading
from kvpressure.signals.batch import BATCH_BOUNDS
from kvpressure.signals.octaves import MAX_SHOWN
from kvpressure.signals.traffic import OUTPUT_BOUNDS, PROMPT_BOUNDS, SHAPE_QUANTILES
from kvpressure.simulation import unconstrained
from tests.support.metrics_reference import STABLE

LARGEST: Final = 150
"""At 10,000 engines one and a half million series, which one Prometheus takes; `profile: fleet` is for more."""

ALWAYS: Final = {
    "engine_up": (1, "whether anything else of the engine is current"),
    "bottleneck": (10, "the verdict: alerts and boards compare each cause with 1"),
    "bottleneck_info": (1, "its detail in words, for alert texts"),
    "bottleneck_confidence_ratio": (1, "how much of the evidence agrees with it"),
    "recommended_action": (2, "the first step, and the best without a GPU: what the alert says to type"),
    "score_ratio": (1, "one number to sort a fleet by"),
    "symptom": (15, "the evidence, sign by sign, where a verdict is doubted"),
    "effective_batch_size": (9, "batch sizes over any window: a collapse is a shift of these"),
    "effective_batch_size_quantile": (3, "the same for boards, from the engine's own finer buckets"),
    "requests_running": (1, "how many run"),
    "requests_waiting": (1, "how many wait"),
    "kv_cache_usage_ratio": (1, "how full the pool is"),
    "kv_cache_usage_max_ratio": (1, "how full it was between two scrapes"),
    "kv_capacity_tokens": (1, "how large it is"),
    "kv_free_tokens": (1, "what is left of it"),
    "kv_tokens_per_request": (1, "how much of it one request holds: capacity over this is what fits"),
    "kv_bytes_per_request": (1, "the same in memory, to compare GPUs"),
    "kv_exhaustion_seconds": (1, "when it is full at this rate: the warning before an incident"),
    "admission_blocked_ratio": (1, "how often the queue did not fit the pool"),
    "preemptions_total": (1, "evictions out of the batch, also over restarts"),
    "preempted_request_ratio": (1, "how many requests of the window were evicted"),
    "prefix_cache_hit_ratio": (1, "what the cache saves"),
    "computed_prompt_tokens_total": (1, "what it does not save"),
    "cache_turnover_seconds": (1, "how long the pool takes to be written anew"),
    "cache_eviction_age_min_seconds": (1, "how old what is evicted is, at least"),
    "cache_eviction_age_max_seconds": (1, "and at most"),
    "recomputed_time_ratio": (1, "what evictions cost in time of the GPU"),
    "prefix_cache_turnover_hit_ratio": (4, "what the hits were at slower turnover: what more memory would bring"),
    "latency_seconds": (20, "p50, p95 and p99, count and sum of four kinds: what users feel"),
    "latency_inflation_ratio": (3, "how much slower than when it was healthy"),
    "tokens_total": (2, "work done, prompt and output: everybody's own rates"),
    "lost_tokens_total": (1, "what the incidents cost"),
    "kv_preempted_tokens_total": (1, "KV that was thrown away"),
    "recomputed_prompt_tokens_total": (1, "prompts computed a second time"),
    "saturation_ratio": (1, "the constraint that is most in use, for autoscalers"),
    "demand_replicas": (3, "how many engines each constraint needs, for autoscalers"),
    "queue_drain_seconds": (1, "when the queue is empty at this rate"),
    "queue_unserved_seconds": (1, "how long the queue has drained too slowly: what the alert waits for"),
    "running_knee_requests": (1, "the batch beyond which more gain nothing"),
    "prompt_tokens": (2, "p50 and p95: what limits and plans are computed from"),
    "max_tokens": (2, "the same of what clients ask for"),
    "output_tokens": (2, "the same of what they get"),
    "request_prompt_tokens": (11, "lengths over any window, for what p95 hides"),
    "request_max_tokens": (6, "the same, coarser"),
    "request_output_tokens": (6, "the same, coarser"),
    "arrival_burstiness_ratio": (1, "bursts need room that averages do not show"),
    "engine_gpu_info": (8, "which GPUs are this engine's, to join theirs"),
    "engine_gpu_memory_used_ratio": (1, "the memory of its GPUs, without a join"),
    "engine_gpu_utilization_ratio": (1, "how busy they are"),
    "memory_high_compute_low_ratio": (1, "the sign that names this incident: memory high, compute low"),
    "limit_value": (2, "the limits that a page states"),
    "limit_recommended": (2, "what is safe beside them"),
}

SOMETIMES: Final = {
    "the command line is known": {
        "limit_declared": (5, "which limits are left to defaults: the checklist"),
        "limit_value": (3, "limits that no page states"),
    },
    "a queue limit is set": {
        "requests_refused_total": (1, "requests answered with an error: no queue shows them"),
        "refused_request_ratio": (1, "their share of the window"),
        "symptom": (1, "load_shed"),
    },
    "requests have failed": {
        "failed_requests_total": (3, "requests without an answer: their error rate, and that of a dead server"),
    },
    "the runtime estimates its work": {
        "estimated_flops_total": (1, "work done in floating-point operations, for the utilization of a model"),
        "estimated_memory_bytes_total": (1, "memory moved for it"),
    },
    "prefill and decode are apart": {
        "role": (1, "which of the two it is"),
        "held_for_transfer_tokens": (1, "the pool's part that waits to be read"),
    },
    "a gateway before it reports its queue": {
        "gateway_queue_requests": (1, "requests that wait there and in no engine"),
        "gateway_queue_seconds": (1, "for how long"),
        "symptom": (1, "the sign of it"),
    },
    "blocks' lifetimes are sampled": {
        "cache_eviction_age_seconds": (1, "the age at eviction, measured and not bounded"),
    },
    "KV events are read": {
        "kv_capacity_miss_tokens_total": (1, "what a larger pool would have hit"),
        "kv_evicted_blocks_total": (1, "evictions, counted"),
        "prefix_cache_pool_hit_ratio": (6, "hits by size of the pool: what to buy"),
        "kv_events_total": (4, "whether the events are whole"),
        "kv_event_batches_total": (6, "what became of them on the way"),
        "kv_events_sampled_ratio": (1, "the share that is followed"),
    },
}

_LABELS: Final = {
    "symptom": len(NAMES) + 2,
    "cause": len(Cause),
    "gpu_uuid": 8,
    "quantile": 3,
    "constraint": 3,
    "limit": len(SHOWN),
    "turnover_seconds": MAX_SHOWN,
    "pool_ratio": len(kv_events.POOLS),
    "outcome": len(kv_events.BATCHES),
    "rank": 2,
}
"""Values of a label, where not of one family alone; others have one at a time."""
_OF_ONE: Final = {
    ("latency_seconds", "kind"): 4,
    ("latency_inflation_ratio", "kind"): 3,
    ("tokens_total", "kind"): 2,
    ("failed_requests_total", "kind"): 3,
    ("kv_events_total", "kind"): len(kv_events.EVENTS),
    ("bottleneck_info", "cause"): 1,
    ("limit_recommended", "limit"): 2,
    **{(family, "quantile"): len(SHAPE_QUANTILES) for family in ("prompt_tokens", "max_tokens", "output_tokens")},
}
_BUCKETS: Final = {"effective_batch_size": BATCH_BOUNDS, "request_prompt_tokens": PROMPT_BOUNDS}


def series_of(family: Family) -> int:
    """The most series of one engine in a family."""
    if family.type == "histogram":
        return len(_BUCKETS.get(family.key, OUTPUT_BOUNDS)) + 3  # +Inf, sum, count
    values = {label: _OF_ONE.get((family.key, label), _LABELS.get(label, 1)) for label in family.labels}
    counted = 2 * math.prod(number for label, number in values.items() if label != "quantile")
    return math.prod(values.values()) + (counted if family.observed else 0)  # count and sum


def test_every_family_of_an_engine_has_a_row_with_its_series():
    budget = Counter({key: series for key, (series, _) in ALWAYS.items()})
    for rows in SOMETIMES.values():
        budget.update({key: series for key, (series, _) in rows.items()})
    assert budget == {family.key: series_of(family) for family in FAMILIES if family.scope is Scope.ENGINE}


def test_what_every_engine_has_is_within_the_budget():
    assert sum(series for series, _ in ALWAYS.values()) <= LARGEST


# Where families are declared: beside what gives their values, and nowhere twice.


OF_THE_VERDICT = (signals, past, reading)
"""Put values beside those of every module: the newest polls as the verdict counts them, and the batches so far."""


def declared_in(module: ModuleType) -> tuple[Family, ...]:
    """The families of the tuples that a module holds."""
    held = [value for value in vars(module).values() if isinstance(value, tuple)]
    return tuple(family for value in held for family in value if isinstance(family, Family))


OF_SIGNALS = [import_module(f"{signals.__name__}.{info.name}") for info in pkgutil.iter_modules(signals.__path__)]
DECLARED: dict[ModuleType, tuple[Family, ...]] = {
    **{module: found for module in (*OF_SIGNALS, unconstrained, limits) if (found := declared_in(module))},
    families: (*families.VERDICTS, *families.TARGETS, *families.SOURCES, *families.CONTAINERS),
}


@pytest.mark.parametrize("module", DECLARED, ids=lambda module: module.__name__)
def test_what_is_declared_in_a_module_is_given_there(module: ModuleType) -> None:
    text = "".join(map(inspect.getsource, (module, *OF_THE_VERDICT)))
    assert [one.key for one in DECLARED[module] if text.count(f'"{one.key}"') < 2] == []


def test_the_table_has_all_of_them_once() -> None:
    declared = [one for given in DECLARED.values() for one in given]
    table = Counter(one.key for one in (*FAMILIES, *JSON_VALUES))
    assert table == Counter(one.key for one in (*declared, *EXPORTER))
    assert max(table.values()) == 1


def test_what_pages_is_stable() -> None:
    files = load_rules(Options(load_thresholds()))
    alerts = [alert.rule["expr"] for file in files for alert in file.alerts if alert.severity != "info"]
    asked = set(re.findall(r"(?<![:\w])kvpressure_(\w+)", " ".join(alerts)))
    assert asked - STABLE == set()
    assert {one.key for one in FAMILIES} >= STABLE
