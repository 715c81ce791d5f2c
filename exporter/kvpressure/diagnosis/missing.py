"""What evidence a verdict lacks, and how to get it: from the runtime's page, and from other sources."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final, NamedTuple

from kvpressure.diagnosis.inputs import Inputs
from kvpressure.model.verdict import Cause, Missing

_MOOT: Final[Mapping[str, Callable[[Inputs], bool]]] = {
    "fetching": lambda inputs: inputs.recent.deferral.connector is False,
    "computed_prompt_tokens": lambda inputs: not inputs.recent.waiting,
    "waiting_deferred": lambda inputs: inputs.recent.waiting == 0.0,
}
"""Signals that would tell nothing although they are missing: no connector brings KV, nobody waits."""


class _Source(NamedTuple):
    missing: Missing
    bears_on: frozenset[Cause]
    there: Callable[[Inputs], bool]


_SOURCES: Final = (
    _Source(
        Missing(
            "how busy its GPUs are",
            "run kvpressure where it sees the GPUs and which engine they serve (on its node; triage --gpus)",
        ),
        frozenset({Cause.COMPUTE_BOUND, Cause.HOST_BOUND, Cause.UNKNOWN, Cause.STUCK}),
        lambda inputs: inputs.value("engine_gpu_utilization_ratio") is not None,
    ),
    _Source(
        Missing("whether CPUs are short", "let kvpressure read its host (host in the settings)"),
        frozenset({Cause.HOST_BOUND}),
        lambda inputs: "cpu_pressed" in inputs.extra,
    ),
    _Source(
        Missing("whether it still answers", "let kvpressure ask it for one token (engines.canary in the settings)"),
        frozenset({Cause.STUCK}),
        lambda inputs: inputs.asks,
    ),
    _Source(
        Missing("what the engine's log says", "let kvpressure read it (logs in the settings)"),
        frozenset({Cause.STUCK, Cause.UNKNOWN}),
        lambda inputs: "device_oom" in inputs.extra,
    ),
    _Source(
        Missing(
            "how many sequences it may run",
            "let kvpressure read how it was started (its pod, or its process's arguments)",
        ),
        frozenset({Cause.CONCURRENCY_BOUND}),
        lambda inputs: bool(inputs.declared),
    ),
)


def missing_evidence(cause: Cause, inputs: Inputs) -> tuple[Missing, ...]:
    """What would bear on `cause` and is not there; of the page first."""
    return (*_of_page(cause, inputs), *_elsewhere(cause, inputs))


def _of_page(cause: Cause, inputs: Inputs) -> Iterator[Missing]:
    for feature in inputs.features:
        there = inputs.signals.intersection(feature.signals)
        moot = any(_MOOT[name](inputs) for name in feature.signals if name in _MOOT)
        if cause in feature.bears_on and not there and not moot:
            yield Missing(feature.what, feature.how, feature.series)


def _elsewhere(cause: Cause, inputs: Inputs) -> Iterator[Missing]:
    return (one.missing for one in _SOURCES if cause in one.bears_on and not one.there(inputs))
