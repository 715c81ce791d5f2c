"""What beside an engine's own window its features depend on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field

from kvpressure.config.thresholds import Thresholds
from kvpressure.model.record import record
from kvpressure.signals.gpu_window import GpuWindow


@record
class Context:
    """What beside the engine's own window a derived value depends on.

    `gpus` are the GPUs known to serve this engine and no other, `bytes_per_token` overrides what the page says,
    `baseline` holds what is known of the engine's own healthy state, by the names of `baseline.Baseline`.
    `max_num_seqs` and `max_num_batched_tokens` are limits of the engine, None where nothing tells them.
    """

    thresholds: Thresholds
    gpus: Sequence[GpuWindow] = ()
    bytes_per_token: float | None = None
    baseline: Mapping[str, float] = field(default_factory=dict)
    max_num_seqs: float | None = None
    max_num_batched_tokens: float | None = None
