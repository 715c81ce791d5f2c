"""What an engine did between two polls, out of its pages alone."""

from __future__ import annotations

import itertools
import json
import lzma
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from typing import Any

from bench.stepfit.fit import Row
from kvpressure.engines.reader import PageReader
from kvpressure.model.samples import EngineSample, HistogramSample
from kvpressure.simulation.server import STEP_TOKENS, read_ratio
from kvpressure.simulation.steps import BUSY_RUNNING, DRAFTED_RATIO


@dataclass(frozen=True, slots=True)
class Poll:
    """What the pages of two polls tell, in tokens; `used` of the pool is their mean, `grown` their difference."""

    seconds: float
    steps: float
    running: float
    waiting: float
    used: float
    grown: float
    generated: float
    prompted: float
    computed: float
    started: float
    ended: float
    hits: float
    preempted: float
    least_running: float


@dataclass(frozen=True, slots=True)
class Engine:
    """An engine's polls, oldest first, and what its last page says of its requests: means, and how prompts spread.

    `calm`: the same with fewer requests, as its healthy past would be.
    """

    polls: tuple[Poll, ...]
    prompt: float
    output: float
    prompt_spread: float
    prefill_seconds: float
    cached_ratio: float
    calm: Engine | None = None

    @property
    def running(self) -> float:
        """Mean over the busy polls."""
        return _mean([poll.running for poll in self.polls])

    @property
    def context(self) -> float:
        """Mean tokens of a running request, by the pool."""
        return sum(poll.used for poll in self.polls) / max(1e-9, sum(poll.running for poll in self.polls))


def engine(path: Path, first: int = 0, last: int | None = None) -> Engine:
    """Return what the recording's pages from `first` to `last` tell. Raises ValueError where that is nothing."""
    samples = list(_samples(path))[first:last]
    polls = tuple(_poll(*before, *after) for before, after in itertools.pairwise(samples))
    polls = tuple(poll for poll in polls if poll.steps > 0 and poll.least_running >= BUSY_RUNNING)
    if not polls:
        raise ValueError("nothing ran")
    (_, begin), (_, end) = samples[0], samples[-1]
    prompts = _grown(begin, end, "request_prompt_tokens") or _histogram(end, "request_prompt_tokens")
    outputs = _grown(begin, end, "request_output_tokens") or _histogram(end, "request_output_tokens")
    if prompts is None or outputs is None:
        raise ValueError("no request has ended")
    hits, prompted = (sum(getattr(poll, name) for poll in polls) for name in ("hits", "prompted"))
    prefilled = end.counters["prefilled"]
    return Engine(
        polls,
        prompts.sum / prompts.count,
        outputs.sum / outputs.count,
        _spread(prompts),
        end.counters["prefill_seconds"] / prefilled if prefilled else 0.0,
        min(0.99, hits / prompted) if prompted else 0.0,
    )


def written(one: Engine) -> dict[str, Any]:
    """Return the engine for a file, its polls as lists in the order of their fields."""
    polls = [[round(value, 3) for value in astuple(poll)] for poll in one.polls]
    about = {item.name: round(getattr(one, item.name), 4) for item in fields(one) if item.name not in {"polls", "calm"}}
    return {**about, "polls": polls}


def read(told: Mapping[str, Any]) -> Engine:
    """Return the engine that was written."""
    return Engine(**{**told, "polls": tuple(Poll(*poll) for poll in told["polls"])})


def rows(one: Engine, expert_ratio: float, *, conserved: bool = True, preempted: bool = False) -> list[Row]:
    """Return the engine's polls as rows. `expert_ratio`: the share of its experts that a token goes to.

    `conserved`: prompt tokens are those by which the pool grew, not those of requests that got their first token.
    `preempted`: with the polls in which requests were preempted.
    """
    quiet = [poll for poll in one.polls if preempted or not poll.preempted]
    token = _pairs_of_a_token(one)
    boundary = 0.4 * one.prefill_seconds * min(1.0, STEP_TOKENS / max(1.0, one.prompt * (1 - one.cached_ratio)))
    drafted = _tokens_each(one.polls)
    return [_row(poll, one, token, boundary, drafted, expert_ratio, conserved=conserved) for poll in quiet]


def _row(
    poll: Poll, one: Engine, pairs: float, boundary: float, drafted: float, expert_ratio: float, *, conserved: bool
) -> Row:
    decoded = max(0.0, poll.generated - poll.started)
    computed = poll.computed
    if conserved and not poll.preempted:
        computed = max(0.0, poll.grown - poll.generated + poll.ended - poll.hits)
    context = poll.used / max(1.0, poll.running)
    if one.cached_ratio > 0.05:
        context = max(context, one.prompt + one.output / 2)
    steps = poll.steps * drafted
    return Row(
        poll.seconds,
        steps,
        steps * read_ratio(expert_ratio, decoded / steps),
        decoded,
        decoded * context,
        computed,
        computed * pairs,
        boundary,
    )


def _pairs_of_a_token(one: Engine) -> float:
    """Return the tokens that precede a computed prompt token, on average."""
    own = 1 - one.cached_ratio
    return one.prompt * (1 + one.prompt_spread) * (1 - own / 2)


def _tokens_each(polls: Sequence[Poll]) -> float:
    sequences = sum(poll.steps * poll.running for poll in polls)
    each = sum(poll.generated for poll in polls) / sequences if sequences else 1.0
    return each if each >= DRAFTED_RATIO else 1.0


def _samples(path: Path) -> Iterator[tuple[float, EngineSample]]:
    reader = PageReader()
    with lzma.open(path, "rt") as file:
        for line in file:
            record = json.loads(line)
            page = reader.read(record["page"].encode(), record["t"])
            if page.engines:
                yield record["t"], page.engines[0]


def _poll(before_t: float, before: EngineSample, t: float, after: EngineSample) -> Poll:
    def grew(name: str) -> float:
        return max(0.0, after.counters.get(name, 0.0) - before.counters.get(name, 0.0))

    pool = float((after.cache.capacity_tokens if after.cache else None) or 0)
    usage = [one.gauges.get("kv_usage", 0.0) * pool for one in (before, after)]
    running = [one.gauges.get("running", 0.0) for one in (before, after)]
    ended = [_ended(one) for one in (before, after)]
    return Poll(
        seconds=t - before_t,
        steps=grew("steps"),
        running=sum(running) / 2,
        waiting=after.gauges.get("waiting", 0.0),
        used=sum(usage) / 2,
        grown=usage[1] - usage[0],
        generated=grew("generation_tokens"),
        prompted=grew("prompt_tokens"),
        computed=grew("computed_prompt_tokens"),
        started=grew("started"),
        ended=ended[1] - ended[0],
        hits=grew("prefix_hits"),
        preempted=grew("preemptions"),
        least_running=min(running),
    )


def _ended(sample: EngineSample) -> float:
    """Return the tokens of all requests that ended: what they gave back to the pool."""
    found = [_histogram(sample, name) for name in ("request_prompt_tokens", "request_output_tokens")]
    return sum(one.sum for one in found if one is not None)


def _histogram(sample: EngineSample, name: str) -> HistogramSample | None:
    found = sample.histograms.get(name)
    return found if found is not None and found.count else None


def _grown(begin: EngineSample, end: EngineSample, name: str) -> HistogramSample | None:
    before, after = begin.histograms.get(name), end.histograms.get(name)
    if before is None or after is None or after.count - before.count < 8:
        return None
    counts = tuple(b - a for a, b in zip(before.counts, after.counts, strict=True))
    return HistogramSample(after.bounds, counts, after.sum - before.sum)


def _spread(histogram: HistogramSample) -> float:
    """Return the squared coefficient of variation, with each length in the middle of its bucket."""
    low, total, square, below = 0.0, 0.0, 0.0, 0.0
    for bound, count in zip(histogram.bounds, histogram.counts, strict=True):
        high = bound if math.isfinite(bound) else 1.5 * low
        many, middle = count - below, (low + high) / 2
        total, square = total + many * middle, square + many * (middle**2 + (high - low) ** 2 / 12)
        low, below = high, count
    mean = total / histogram.count
    return max(0.0, square / histogram.count / mean**2 - 1) if mean else 0.0


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
