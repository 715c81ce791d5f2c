"""The pool, the limits and the past traffic of a running engine, from its page, for `plan`."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kvpressure.capacity.pool import TokenPool
from kvpressure.cli.page_at import page_at
from kvpressure.cli.say import CliError
from kvpressure.engines.reader import PageError, PageReader
from kvpressure.kubernetes.kubectl.program import run_to_the_end
from kvpressure.kubernetes.objects.references import is_reference
from kvpressure.model.samples import EnginePage, EngineSample, HistogramSample
from kvpressure.net.http import Answer
from kvpressure.runtimes.registry import named
from kvpressure.signals.traffic import token_quantile
from kvpressure_planner.capacity.capacity_plan import Running


@dataclass(frozen=True, slots=True)
class LiveEngine:
    """One target for a plan: the data-parallel rank with the smallest pool.

    `shape` has fields of `PlannedTraffic`: lengths of finished requests, None before the first, and of the rank with
    most requests those in flight and the mean KV tokens of the running ones, None when idle.
    """

    title: str
    running: Running
    shape: Mapping[str, float | None]


def read_engine(address: str, options: Mapping[str, Any], seconds: float = 0.0) -> LiveEngine:
    """Return the engine at an address or in a pod, with the lengths of requests that finish within `seconds`.

    Without `seconds` the lengths are those of all requests since the server's start. Raises SourceError and
    click.UsageError.
    """
    try:
        reader = PageReader()
        where, answers = run_to_the_end(_fetch(address, options, seconds))
        pages = [reader.read(answer.body, answer.t) for answer in answers]
        return engine_on(pages[-1], where, pages[0] if seconds else None)
    except PageError as error:
        raise CliError(f"{address}: {error}") from error
    except ValueError as error:
        raise CliError(f"--url {error}") from error


async def _fetch(address: str, options: Mapping[str, Any], seconds: float) -> tuple[str, list[Answer]]:
    async with page_at(address, options) as (url, read):
        answers = [await read()]
        if seconds:
            await asyncio.sleep(seconds)
            answers.append(await read())
        return address if is_reference(address) else url, answers


def engine_on(page: EnginePage, where: str, earlier: EnginePage | None = None) -> LiveEngine:
    """Return the engine on a page, with lengths since an `earlier` one.

    Raises CliError where the page has no size of the cache.
    """
    runtime = named(page.runtime)
    engines = [engine for engine in page.engines if _capacity(engine)]
    smallest = min(engines, key=_capacity, default=None)
    if smallest is None or (cache := smallest.cache) is None:
        raise CliError(
            f"{where}: {runtime.planning.unsized}; give --kv-cache-tokens ({runtime.title} logs: "
            f"{runtime.planning.pool_log}), or plan with --model-config and --gpu-memory"
        )
    ranks = "" if len(engines) == 1 else f", for each of {len(engines)} ranks"
    pool = TokenPool(_capacity(smallest), cache.block_size or 1, cache.bytes_per_token)
    running = Running(pool, cache.max_model_len, cache.gpu_memory_utilization, runtime)
    shape = _shape(engines, () if earlier is None else earlier.engines, cache.max_model_len)
    return LiveEngine(f"{smallest.model_name} at {where}{ranks}", running, shape)


def _capacity(engine: EngineSample) -> int:
    return (engine.cache.capacity_tokens if engine.cache else None) or 0


def _shape(
    engines: Sequence[EngineSample], earlier: Sequence[EngineSample], longest: int | None
) -> dict[str, float | None]:
    before = {(engine.model_name, engine.engine): engine for engine in earlier}
    pairs = [(engine, before.get((engine.model_name, engine.engine))) for engine in engines]
    fullest = max(engines, key=_in_flight)
    usage, running = fullest.gauges.get("kv_usage"), fullest.gauges.get("running")
    held = usage * _capacity(fullest) / running if usage is not None and running else None
    shape = {"concurrency": _in_flight(fullest) or None, "held_now": held}
    for kind in ("prompt", "output"):
        finished = _finished(pairs, f"request_{kind}_tokens")
        shape |= {f"{kind}_p{percent}": _length(finished, percent / 100, longest) for percent in (50, 95)}
    return shape


def _in_flight(engine: EngineSample) -> float:
    return engine.gauges.get("running", 0.0) + engine.gauges.get("waiting", 0.0)


def _length(histogram: HistogramSample | None, q: float, longest: int | None) -> float | None:
    value = None if histogram is None else token_quantile(histogram, q, longest)
    return None if value is None else max(1.0, float(math.ceil(value)))


def _finished(pairs: Sequence[tuple[EngineSample, EngineSample | None]], signal: str) -> HistogramSample | None:
    """Return the sum of all ranks' histograms since the earlier page.

    Ranks with other buckets than the first are left out. A server that restarted in between counts from 0.
    """
    first = next((now.histograms[signal] for now, _ in pairs if signal in now.histograms), None)
    if first is None:
        return None
    counts = [0.0] * len(first.bounds)
    for now, before in pairs:
        histogram = now.histograms.get(signal)
        if histogram is None or histogram.bounds != first.bounds:
            continue
        old = None if before is None else before.histograms.get(signal)
        restarted = old is None or old.bounds != first.bounds or old.count > histogram.count
        base = (0.0,) * len(counts) if old is None or restarted else old.counts
        counts = [total + after - start for total, after, start in zip(counts, histogram.counts, base, strict=True)]
    return HistogramSample(first.bounds, tuple(counts), 0.0)
