"""Where families are declared: beside what gives their values, and nowhere twice."""

from __future__ import annotations

import inspect
from collections import Counter
from types import ModuleType

import pytest

from kvpressure import signals
from kvpressure.advice import limit_families
from kvpressure.exposition import collector, containers, source_health, verdicts
from kvpressure.exposition.families import EXPORTER, FAMILIES
from kvpressure.model.family import Family
from kvpressure.signals import (
    batch,
    canary,
    cost,
    eviction,
    gpu,
    kv,
    latency,
    past,
    prefix_cache,
    saturation,
    throughput,
    traffic,
)

OF_THE_VERDICT = (signals, past)
"""Put values beside those of every module: the newest polls as the verdict counts them, and the batches so far."""

DECLARED: dict[ModuleType, tuple[Family, ...]] = {
    batch: batch.FAMILIES,
    kv: kv.FAMILIES,
    prefix_cache: prefix_cache.FAMILIES,
    eviction: eviction.FAMILIES,
    latency: latency.FAMILIES,
    throughput: (*throughput.FAMILIES, *throughput.PLATEAU),
    cost: cost.FAMILIES,
    saturation: saturation.FAMILIES,
    traffic: (*traffic.FAMILIES, *traffic.REFUSALS),
    gpu: (*gpu.FAMILIES, *gpu.GPU_FAMILIES),
    verdicts: verdicts.FAMILIES,
    canary: canary.FAMILIES,
    limit_families: limit_families.FAMILIES,
    source_health: source_health.FAMILIES,
    containers: containers.FAMILIES,
}


@pytest.mark.parametrize("module", DECLARED, ids=lambda module: module.__name__)
def test_what_is_declared_in_a_module_is_given_there(module: ModuleType) -> None:
    beside = (*OF_THE_VERDICT, collector) if module is verdicts else OF_THE_VERDICT
    text = inspect.getsource(module) + "".join(map(inspect.getsource, beside))
    assert [one.key for one in DECLARED[module] if text.count(f'"{one.key}"') < 2] == []


def test_the_table_has_all_of_them_once() -> None:
    declared = [one for families in DECLARED.values() for one in families]
    assert Counter(one.key for one in FAMILIES) == Counter(one.key for one in (*declared, *EXPORTER))
    assert max(Counter(one.key for one in FAMILIES).values()) == 1
