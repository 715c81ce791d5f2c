"""What reaches the exporter of an episode: other GPU data, missing polls or series, old counters."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

from bench.detection.episodes import Frame
from kvpressure.model.samples import EngineSample, GpuSample, HistogramSample
from kvpressure.runtimes.vllm.metrics import VLLM

Variant = Callable[[Sequence[Frame], random.Random], Iterable[Frame]]

AS_IS: Final = "as is"
DROPPED_RATIO: Final = 0.2
HISTOGRAM_EVERY: Final = 6
"""As the engine source does: histograms and what seldom changes come with every sixth poll."""
DOWN_SECONDS: Final = 10.0
PRIOR: Final[Mapping[str, float]] = {
    "aborted": 40_000.0,
    "failed": 4_000.0,
    "queued": 90_000_000.0,
    "token_gaps": 9_000_000_000.0,
    "preemptions": 1e6,
    "prompt_tokens": 3e12,
    "generation_tokens": 1e12,
    "steps": 1e11,
    "finished": 3e9,
    "rejected": 1e5,
    "prefix_queries": 3e12,
    "prefix_hits": 1e12,
    "prefilled": 3e9,
    "prefill_seconds": 1e9,
    "started": 3e9,
    "ended": 3e9,
    "e2e_seconds": 2e10,
    "queue_seconds": 3e9,
    "inference_seconds": 1.6e10,
    "finished_prompts": 3e9,
    "finished_prompt_tokens": 3e12,
    "finished_output_tokens": 1e12,
    "computed_prompt_tokens": 2e12,
    "brought_prompt_tokens": 1e12,
    "found_prompt_tokens": 1e12,
    "decode_steps": 1e9,
    "transfer_seconds": 1e6,
    "transfer_bytes": 1e15,
}
"""A year of requests of a thousand prompt tokens, by counter; the others stand at 0."""
PRIOR_REQUESTS: Final = 3e9
_SLOW: Final = frozenset(row.signal for row in VLLM.counters if row.slow)


def no_gpu(frames: Sequence[Frame], _: random.Random) -> Iterable[Frame]:
    """No GPU source at all."""
    return (replace(frame, gpus=None) for frame in frames)


def always_busy(frames: Sequence[Frame], _: random.Random) -> Iterable[Frame]:
    """Utilization 1 whenever a request runs, as spinning kernels make it look; memory nearly full."""
    return (replace(frame, gpus=tuple(_busy(gpu, frame) for gpu in _gpus(frame))) for frame in frames)


def mig(frames: Sequence[Frame], _: random.Random) -> Iterable[Frame]:
    """A MIG instance: memory, and nothing on how busy it is."""
    return (replace(frame, gpus=tuple(_instance(gpu) for gpu in _gpus(frame))) for frame in frames)


def dropped(frames: Sequence[Frame], rng: random.Random) -> Iterable[Frame]:
    """A fifth of the polls is lost."""
    return (frame for frame in frames if rng.random() >= DROPPED_RATIO)


def long_lived(frames: Sequence[Frame], _: random.Random) -> Iterable[Frame]:
    """The server has run for a year: every counter starts huge."""
    return (_engines(frame, _aged) for frame in frames)


def live_names(frames: Sequence[Frame], _: random.Random) -> Iterable[Frame]:
    """The small set of names, and all of them with every sixth poll."""
    return (_engines(frame, _small) if index % HISTOGRAM_EVERY else frame for index, frame in enumerate(frames))


def restarted(frames: Sequence[Frame], rng: random.Random) -> Iterator[Frame]:
    """The server is gone for ten seconds somewhere in the middle and its counters start again from zero."""
    first, last = frames[0].t, frames[-1].t
    down = first + (last - first) * rng.uniform(0.4, 0.7)
    up = down + DOWN_SECONDS
    base = {sample.engine: sample for frame in frames if frame.t < up for sample in frame.page.engines}
    for frame in frames:
        if frame.t < down:
            yield frame
        elif frame.t >= up:
            fresh = _engines(frame, lambda sample: moved(sample, base.get(sample.engine), -1.0))
            started = None if frame.page.started is None else frame.page.started + up - first
            yield replace(fresh, page=replace(fresh.page, started=started))


def no_capacity(frames: Sequence[Frame], _: random.Random) -> Iterable[Frame]:
    """Nothing tells how large the pool is: stores that take few labels drop the series that does."""
    return (_engines(frame, lambda sample: replace(sample, cache=None)) for frame in frames)


def everything(frames: Sequence[Frame], rng: random.Random) -> Iterable[Frame]:
    """The worst of them together: no GPU, a fifth of the polls lost, the small set of names, a year of counters."""
    return long_lived(list(live_names(list(dropped(list(no_gpu(frames, rng)), rng)), rng)), rng)


VARIANTS: Final[dict[str, Variant]] = {
    AS_IS: lambda frames, _: frames,
    "no GPU": no_gpu,
    "GPU always busy": always_busy,
    "MIG": mig,
    "polls dropped": dropped,
    "huge counters": long_lived,
    "live names": live_names,
    "restart": restarted,
    "no capacity": no_capacity,
    "all at once": everything,
}


def chosen(seed: int, each: int) -> list[str]:
    """As is, and `each` others, by turns over the seeds."""
    others = [name for name in VARIANTS if name != AS_IS]
    return [AS_IS, *(others[(seed * each + turn) % len(others)] for turn in range(each))]


def _gpus(frame: Frame) -> tuple[GpuSample, ...]:
    """The frame's GPUs, or for an engine without any one with full memory."""
    made = GpuSample(frame.t, "GPU-made-up", "0", "nvidia", memory_used_bytes=74e9, memory_total_bytes=80e9)
    return frame.gpus or (made,)


def _busy(gpu: GpuSample, frame: Frame) -> GpuSample:
    running = any(sample.gauges.get("running") for sample in frame.page.engines)
    busy = any(gpu.utilization) if gpu.utilization else running
    return replace(gpu, utilization=(float(busy),) * 6)


def _instance(gpu: GpuSample) -> GpuSample:
    silent = replace(gpu, utilization=(), sm_active_ratio=None, tensor_active_ratio=None, dram_active_ratio=None)
    return replace(silent, profile="3g.40gb")


def _engines(frame: Frame, change: Callable[[EngineSample], EngineSample]) -> Frame:
    return replace(frame, page=replace(frame.page, engines=tuple(change(sample) for sample in frame.page.engines)))


def _small(sample: EngineSample) -> EngineSample:
    counters = {name: value for name, value in sample.counters.items() if name not in _SLOW}
    return replace(sample, counters=counters, histograms={}, cache=None)


def _aged(sample: EngineSample) -> EngineSample:
    return replace(
        sample,
        counters={name: value + PRIOR.get(name, 0.0) for name, value in sample.counters.items()},
        histograms={name: _earlier(histogram) for name, histogram in sample.histograms.items()},
    )


def _earlier(histogram: HistogramSample) -> HistogramSample:
    """A year of observations in the first bucket."""
    total = histogram.sum + PRIOR_REQUESTS * histogram.bounds[0]
    return HistogramSample(histogram.bounds, tuple(count + PRIOR_REQUESTS for count in histogram.counts), total)


def moved(sample: EngineSample, base: EngineSample | None, factor: float) -> EngineSample:
    """The sample with so many times another's counters and histograms on top."""
    if base is None:
        return sample
    counters = {name: value + factor * base.counters.get(name, 0.0) for name, value in sample.counters.items()}
    histograms = {name: _moved(value, base.histograms.get(name), factor) for name, value in sample.histograms.items()}
    return replace(sample, counters=counters, histograms=histograms)


def _moved(value: HistogramSample, base: HistogramSample | None, factor: float) -> HistogramSample:
    if base is None or base.bounds != value.bounds:
        return value
    counts = tuple(now + factor * more for now, more in zip(value.counts, base.counts, strict=True))
    return HistogramSample(value.bounds, counts, value.sum + factor * base.sum)
