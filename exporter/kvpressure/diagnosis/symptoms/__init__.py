"""What can be measured of an engine's trouble, one function per symptom. Adding one is a function and a line here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from kvpressure.diagnosis.inputs import Inputs
from kvpressure.diagnosis.symptoms import cache, failures, gpu, service
from kvpressure.model.verdict import Evidence

Symptoms = Mapping[str, Evidence]

_ALL: Final[tuple[Callable[[Inputs], Evidence], ...]] = (
    gpu.gpu_memory_high,
    gpu.gpu_compute_low,
    service.batch_collapse,
    cache.admission_blocked,
    cache.kv_saturated,
    cache.preempting,
    service.latency_inflated,
    service.throughput_plateau,
    gpu.memory_rising,
    failures.restarting,
    failures.host_oom,
    failures.device_oom,
    failures.allocation_errors,
    failures.cpu_pressed,
    service.frontend_slow,
)

NAMES: Final = tuple(judge.__name__ for judge in _ALL)


def judge_all(inputs: Inputs) -> Symptoms:
    """Return every symptom by name, in a fixed order.

    `load_shed` is judged only where the engine has ever refused a request, `canary_unanswered` only where canary
    requests are sent (decisions 0270, 0280), `evicting` only where the engine was seen with a slower turnover of its
    cache (decision 0411).
    """
    sheds_load = inputs.value("requests_refused_per_second") is not None
    optional = (
        (service.load_shed, sheds_load),
        (cache.evicting, inputs.window.eviction.recomputed_ratio is not None),
        (failures.canary_unanswered, inputs.canary_enabled),
    )
    wanted = (*_ALL, *(judge for judge, there in optional if there))
    return {judge.__name__: judge(inputs) for judge in wanted}
