"""What evidence a verdict lacks, and how to get it: from the runtime's page, and from other sources."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final

from kvpressure.diagnosis.facts import Facts, Inputs
from kvpressure.diagnosis.precedence import Judged
from kvpressure.diagnosis.predicates.symptoms import may_evict
from kvpressure.diagnosis.rules import EvidenceSource
from kvpressure.model.catalogue import CATALOGUE
from kvpressure.model.plugins import exported
from kvpressure.model.verdict import Missing
from kvpressure.model.view import CALM

SOURCES: Final[tuple[EvidenceSource, ...]] = (
    EvidenceSource(
        "gpu",
        Missing(
            "how busy its GPUs are",
            "run kvpressure where it sees the GPUs and which engine they serve (on its node; triage --gpus)",
        ),
        lambda inputs: inputs.value("engine_gpu_utilization_ratio") is not None,
    ),
    EvidenceSource(
        "cpu",
        Missing("whether CPUs are short", "let kvpressure read its host (host in the settings)"),
        lambda inputs: "cpu_pressed" in inputs.external_evidence,
    ),
    EvidenceSource(
        "log",
        Missing("what the engine's log says", "let kvpressure read it (logs in the settings)"),
        lambda inputs: "device_oom" in inputs.external_evidence,
    ),
    EvidenceSource(
        "kv_events",
        Missing(
            "which blocks were evicted and computed again",
            "let the engine publish its KV events (--kv-events-config) and kvpressure read them (kv_events of the "
            "engine in the settings)",
        ),
        lambda inputs: inputs.window.eviction.by_events,
    ),
    EvidenceSource(
        "declared",
        Missing(
            "how many sequences it may run",
            "let kvpressure read how it was started (its pod, or its process's arguments)",
        ),
        lambda inputs: bool(inputs.declared) or inputs.window.fit.seats is not None,
    ),
    *exported("kvpressure.diagnosis.rules", "EVIDENCE"),
)
"""Evidence of other sources than the engine's page; the last are those that files in `rules` declare."""

_OF_SYMPTOM: Final[Mapping[str, str]] = {
    "gpu_compute_low": "gpu",
    "gpu_memory_high": "gpu",
    "cpu_pressed": "cpu",
}
"""The sources of expected symptoms: without them a verdict is less certain."""

_MOOT: Final[Mapping[str, Callable[[Inputs], bool]]] = {
    "fetching": lambda inputs: inputs.window.deferral.connector is False,
    "computed_prompt_tokens": lambda inputs: not inputs.window.queue.waiting,
    "waiting_deferred": lambda inputs: inputs.window.queue.waiting == 0.0,
    "timed_evictions": lambda inputs: inputs.window.eviction.by_events,
}
"""Signals that are missing and would add nothing: no connector brings KV, no request waits."""


def missing_evidence(judged: Judged, facts: Facts) -> tuple[Missing, ...]:
    """Return the missing evidence that would make a verdict more certain; that of the page first.

    It is what the rule rests on, what would decide the unknown rules before it, and the symptoms that it expects. A
    calm verdict needs no other source than the page, but for KV events where nothing else distinguishes evicted prompts
    from new ones; one of the KV cache is settled by the page, so that other symptoms only raise its confidence.
    """
    rule = judged.rule
    lacking = rule.when.evidence.union(*(before.when.lacks(facts) for before in judged.unjudged))
    lacking_names = tuple(_of_page(lacking, facts.inputs))
    of_cache = CATALOGUE[rule.cause].of_cache
    undecided = {"kv_events"} if not of_cache and may_evict.state(facts) is None else set[str]()
    if rule.cause in CALM:
        lacking = frozenset(undecided)
    else:
        expected = () if of_cache else rule.expects
        lacking = lacking.union(undecided, (_OF_SYMPTOM.get(name, "") for name in expected))
    return (
        *lacking_names,
        *(source.missing for source in SOURCES if source.evidence in lacking and not source.there(facts.inputs)),
    )


def _of_page(lacking: frozenset[str], inputs: Inputs) -> Iterator[Missing]:
    for signal in inputs.optional_signals:
        if lacking.isdisjoint(signal.signals) or not inputs.signals.isdisjoint(signal.signals):
            continue
        if not any(_MOOT[name](inputs) for name in signal.signals if name in _MOOT):
            yield Missing(signal.what, signal.how, signal.series)
