"""How long an engine's steps take, out of its own polls: least squares over what was done in them, with a prior.

Seconds of some polls are a sum over five terms: steps, tokens decoded, tokens of context that decoding read, prompt
tokens computed, and these times the tokens that preceded them. A model with experts has a sixth: steps times the share
of the experts that a step reads, which few sequences leave small. The prior says how what they take lies beside each
other on any model and card; where one operating point cannot tell a fixed part of a step from one that grows, it does.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Final

from kvpressure.model.record import changed
from kvpressure.model.samples import HistogramSample
from kvpressure.model.view import Interval, Observed
from kvpressure.simulation.least_squares import Fit, Prior, Row, Values, fitted
from kvpressure.simulation.server import STEP_TOKENS, RequestShape, StepSeconds, StepTimes, read_ratio

DENSE: Final = Prior(
    (0.0, math.log(2.0e-3), math.log(4.6e-6), math.log(3.0e-3), math.log(1.4e-7)), (0.4, 0.3, 0.5, 0.3, 0.33)
)
"""Over a step's fixed part: a sequence, a token of context, a prompt token, and each one for each that precedes it.
Mean and deviation over what NVIDIA measured of dense models on cards (`bench/silicon/prior.py`); the fixed part has
what the host adds to a step as well, which no table of a card has."""
CONTEXT_TERM: Final = 2
CONTEXT_AT_8B: Final = math.log(7.1e-6)
CONTEXT_BY_SIZE: Final = -0.61
CONTEXT_DEVIATION: Final = 0.3
"""A token of context of a dense model whose billions of parameters are known: with these the weights that a step reads
grow more than what it reads of a token. The same tables are within 0.17 of it; other models share heads otherwise."""
EXPERTS: Final = 4.0
"""Times as long as the fixed part, reading all experts takes: nine tenths of the weights of such models are theirs, but
the host has its part in a step."""
EXPERTS_DEVIATION: Final = 0.7
UNEVEN: Final = 0.5
"""Of the share of the experts, as which tokens that mostly go to the same ones read them."""
USUAL_EXPERT_RATIO: Final = 8 / 128
"""Of a model with experts that is not known better (Qwen3-30B-A3B and most since)."""
_EXPERT_RATIOS: Final = (
    (r"qwen3-next|qwen3\.5", 10 / 512),
    (r"gpt-oss-20b", 4 / 32),
    (r"gpt-oss", 4 / 128),
    (r"\d+x\d+b|mixtral", 2 / 8),
    (r"deepseek-(v3|r1|chat-v3)(?!.*distill)", 8 / 256),
    (r"deepseek-v2", 6 / 160),
    (r"scout", 1 / 16),
    (r"maverick", 1 / 128),
    (r"kimi-k2", 8 / 384),
    (r"minimax-m", 8 / 256),
    (r"glm-4\.[5-9]", 8 / 160),
    (r"[-_]a\d+(\.\d+)?b|moe", USUAL_EXPERT_RATIO),
)
"""Experts that a token goes to, of all in a layer, by what stands in the names of models that have them."""
_PARAMETERS: Final = re.compile(r"(?<![a-z0-9])(\d+(?:\.\d+)?)b(?![a-z0-9])")


def dense(billions: float) -> Prior:
    """Return the prior of a dense model of so many billions of parameters."""
    logarithms, deviations = list(DENSE.logarithms), list(DENSE.deviations)
    logarithms[CONTEXT_TERM] = CONTEXT_AT_8B + CONTEXT_BY_SIZE * math.log(billions / 8)
    deviations[CONTEXT_TERM] = CONTEXT_DEVIATION
    return Prior(tuple(logarithms), tuple(deviations))


def with_experts(expert_ratio: float) -> Prior:
    """Return the prior of a model a token of which goes to that share of its experts."""
    return Prior(
        (*DENSE.logarithms, math.log(EXPERTS)), (*DENSE.deviations, EXPERTS_DEVIATION), expert_ratio=expert_ratio
    )


def prior_of(model_name: str) -> Prior | None:
    """Return the prior of a model by the name it is served under; None where that leaves open whether it has experts.

    A name with a number of parameters (8B), and no word of experts, is a dense model's.
    """
    name = model_name.lower()
    for pattern, expert_ratio in _EXPERT_RATIOS:
        if re.search(pattern, name):
            return with_experts(expert_ratio)
    size = _PARAMETERS.search(name)
    return None if size is None or not float(size[1]) else dense(float(size[1]))


def prior_otherwise(model_name: str) -> Prior | None:
    """Return a prior that such a model may have as well; None where it has no experts for sure."""
    prior = prior_of(model_name)
    if prior is not None and not prior.expert_ratio:
        return None
    return with_experts(USUAL_EXPERT_RATIO if prior is None else UNEVEN * prior.expert_ratio)


LEAST_INTERVALS: Final = 10
BUSY_RUNNING: Final = 2.0
"""Fewer requests than this at either poll, and none that waits, may have left the engine without a step."""
KNEE_FACTOR: Final = 100.0
KNEE_STEP: Final = 1.5
KNEE_BISECTIONS: Final = 30
KNEE_GAIN: Final = 1.05
"""Of tokens a second by a tenth more requests: with less, more of them only make everybody slower."""
DRAFTED_RATIO: Final = 1.15
"""Tokens a sequence gets in a step, from which on it is no accident: drafts are accepted."""
SHARED_RATIO: Final = 0.05
"""Of prompt tokens, that are found in the cache again: fewer are chance. With more, the pool's growth does not show
what was computed."""
NOISE_RATIO: Final = 0.05
"""Standard deviation of a bunch's seconds from what the terms say."""
BOUNDARY_RATIO: Final = 0.4
"""Of the time that a prompt, or a full step of one, takes: what may belong to the polls beside a bunch."""
PROMPTS_A_BUNCH: Final = 10.0
SHORTEST_BUNCH_SECONDS: Final = 3.0
LONGEST_BUNCH_SECONDS: Final = 15.0


class UnknownError(Exception):
    """Nothing can be predicted; the message says for lack of what."""


@dataclass(frozen=True, slots=True)
class Batch:
    """What an engine has in its steps, on average.

    Requests, tokens that each has in the pool and generates, prompt tokens computed for each, and tokens that precede
    one of these.
    """

    running: float
    context_tokens: float
    output_tokens: float
    own_tokens: float
    preceding_tokens: float

    def tokens_per_second(self, steps: StepTimes, times: float = 1.0) -> float:
        """Return the tokens a second of an engine that always has `times` as many requests of these lengths."""
        batch = times * self.running
        decode = steps.of(batch, 0.0, batch * self.context_tokens)
        # A prompt is computed in steps that decode as well.
        with_prompt = steps.of(
            batch, self.own_tokens, batch * self.context_tokens, self.own_tokens * self.preceding_tokens
        )
        return batch * self.output_tokens / (self.output_tokens * decode + batch * (with_prompt - decode))


@dataclass(frozen=True, slots=True)
class Steps:
    """The fit of an engine's steps, what it has in them, and the share of its experts that a token goes to."""

    fit: Fit
    batch: Batch
    expert_ratio: float = 0.0

    @property
    def likeliest(self) -> StepSeconds:
        """Return the step times that explain the polls best."""
        return self._seconds(self.fit.values)

    @property
    def knee_requests(self) -> float:
        """Return how many have to run that a tenth more of them never give 5 % more tokens a second (`knee_of`)."""
        return knee_of(self.likeliest, self.batch)

    def end(self, deviations: float) -> StepSeconds:
        """Return the likeliest step times with which more requests give so many deviations more than expected."""
        if not deviations:
            return self.likeliest
        moved = self._seconds(self.fit.end(self._gain, deviations))
        # So far from the likeliest, logarithms are not straight: what is done now takes what it takes.
        by = self.batch.tokens_per_second(moved) / self.batch.tokens_per_second(self.likeliest)
        return moved.scaled(by)

    def growing(self, share: float) -> StepSeconds:
        """Return the likeliest step times, divided so that such a share of a decode step grows with its batch."""
        steps, running = self.likeliest, self.batch.running
        whole = steps.of(running, 0.0, running * self.batch.context_tokens)
        grows = running * (steps.sequence + self.batch.context_tokens * steps.context_token)
        rest, by = (1 - share) * whole / (whole - grows), share * whole / grows
        return changed(
            steps,
            fixed=rest * steps.fixed,
            experts=rest * steps.experts,
            sequence=by * steps.sequence,
            context_token=by * steps.context_token,
        )

    def _gain(self, values: Values) -> float:
        """Return what twice the batch gives over the batch as it is."""
        steps = self._seconds(values)
        return self.batch.tokens_per_second(steps, 2.0) / self.batch.tokens_per_second(steps)

    def _seconds(self, values: Values) -> StepSeconds:
        fixed, sequence, context, prompt, pair, *experts = values
        return StepSeconds(fixed, sequence, prompt, context, pair, sum(experts), self.expert_ratio)


def knee_of(steps: StepTimes, batch: Batch) -> float:
    """Return how many requests have to run that a tenth more of them never give 5 % more tokens a second.

    Infinity where a hundred times as many still give it.
    """
    single = changed(batch, running=1.0)

    def beyond(requests: float) -> bool:
        return single.tokens_per_second(steps, 1.1 * requests) < KNEE_GAIN * single.tokens_per_second(steps, requests)

    # With experts few requests gain little as well, so that the highest number at which it grows is looked for.
    high = KNEE_FACTOR * max(1.0, batch.running)
    if not beyond(high):
        return math.inf
    low = high
    while beyond(low):
        high, low = low, low / KNEE_STEP
    for _ in range(KNEE_BISECTIONS):
        middle = math.sqrt(low * high)
        low, high = (low, middle) if beyond(middle) else (middle, high)
    return high


def beyond_knee(running: float, knee_requests: float) -> str:
    """Return in words that so many running requests are beyond the knee, "" where they are not."""
    if running <= knee_requests:
        return ""
    knee = math.ceil(knee_requests)
    return f"Above about {knee} running requests, 10 % more give less than 5 % more tokens/s: mostly all get slower."


def batch_of(requests: Sequence[RequestShape]) -> Batch:
    """Return what one of these requests has in a step."""
    prompt, output = fmean(shape.prompt for shape in requests), fmean(shape.output for shape in requests)
    preceding = fmean(shape.prompt**2 for shape in requests) / 2 / prompt
    return Batch(1.0, prompt + output / 2, output, prompt, preceding)


@dataclass(frozen=True, slots=True)
class _Poll:
    """An interval's work in tokens; `used` of the pool is the mean of both ends, `grown` their difference."""

    seconds: float
    steps: float
    running: float
    used: float | None
    decoded: float
    generated: float
    computed: float
    preempted: float


def steps_of(observed: Observed, pool_tokens: float | None, prior: Prior = DENSE) -> Steps:
    """Return how long steps take, from the polls of the window and a prior. Raises UnknownError."""
    polls = list(_polls(observed, pool_tokens))
    if len(polls) < LEAST_INTERVALS:
        raise UnknownError("how long steps take is not known")
    batch = _batch(observed, polls)
    quiet = [poll for poll in polls if not poll.preempted]
    drafted = _tokens_each(polls)
    rows = [
        _row(poll, batch, drafted, prior.expert_ratio) for poll in (quiet if len(quiet) >= LEAST_INTERVALS else polls)
    ]
    took = observed.prefill_seconds or 0.0
    bunch = min(LONGEST_BUNCH_SECONDS, max(SHORTEST_BUNCH_SECONDS, PROMPTS_A_BUNCH * took))
    full = min(1.0, STEP_TOKENS / max(1.0, batch.own_tokens))
    fit = fitted(list(_bunched(rows, bunch, BOUNDARY_RATIO * took * full)), prior)
    return Steps(fit, batch, prior.expert_ratio)


def _polls(observed: Observed, pool_tokens: float | None) -> Iterator[_Poll]:
    conserved = pool_tokens is not None and (observed.cached_ratio or 0.0) <= SHARED_RATIO
    for before, interval in itertools.pairwise((None, *observed.intervals)):
        if (
            interval is None
            or not interval.steps
            or interval.generated is None
            or interval.running is None
            or interval.seconds <= 0
        ):
            continue
        start = interval if before is None or before.running is None else before
        queued = min(start.waiting or 0.0, interval.waiting or 0.0) >= 1
        if min(start.running or 0.0, interval.running) < (1 if queued else BUSY_RUNNING):
            continue
        first, last = [
            None if each.usage_ratio is None or pool_tokens is None else each.usage_ratio * pool_tokens
            for each in (start, interval)
        ]
        poll = _Poll(
            interval.seconds,
            interval.steps,
            ((start.running or 0.0) + interval.running) / 2,
            None if first is None or last is None else (first + last) / 2,
            max(0.0, interval.generated - (interval.started or 0.0)),
            interval.generated,
            computed_in(interval),
            interval.preempted or 0.0,
        )
        ended = None if start is interval or poll.preempted or not conserved else interval.ended_tokens
        if ended is not None and first is not None and last is not None:
            # Prompts are counted at their first token; the pool shows what was computed of them by the time of a poll.
            poll = changed(poll, computed=max(0.0, last - first - interval.generated + ended - _found(interval)))
        yield poll


def computed_in(interval: Interval) -> float:
    """Return the prompt tokens that were computed; all of them where what was cached is not known."""
    return interval.computed if interval.computed is not None else interval.prompted or 0.0


def _found(interval: Interval) -> float:
    return max(0.0, (interval.prompted or 0.0) - computed_in(interval))


def _batch(observed: Observed, polls: Sequence[_Poll]) -> Batch:
    cached = observed.cached_ratio or 0.0
    cached = min(0.99, cached) if cached > SHARED_RATIO else 0.0
    prompt, output = _mean(observed.prompts), max(1.0, _mean(observed.outputs) or 1.0)
    running = sum([poll.running for poll in polls])
    in_use = sum([poll.used or 0.0 for poll in polls]) / running
    if prompt is None:
        prompt = observed.prefill_tokens or max(0.0, in_use - output / 2)
    alone = prompt + output / 2
    context = in_use if in_use and not cached else max(in_use, alone)
    preceding = prompt * (1 + _spread(observed.prompts)) * (1 - (1 - cached) / 2)
    return Batch(running / len(polls), context, output, prompt * (1 - cached), preceding)


def _row(poll: _Poll, batch: Batch, drafted: float, expert_ratio: float) -> Row:
    context = batch.context_tokens if poll.used is None else poll.used / poll.running
    if batch.preceding_tokens > batch.own_tokens:
        context = max(context, batch.context_tokens)
    steps = poll.steps * drafted
    work = (steps, poll.decoded, poll.decoded * context, poll.computed, poll.computed * batch.preceding_tokens)
    experts = (steps * read_ratio(expert_ratio, poll.decoded / steps),) if expert_ratio else ()
    return Row(poll.seconds, (*work, *experts), 0.0)


def _tokens_each(polls: Sequence[_Poll]) -> float:
    """Return the tokens that a sequence gets in a step: a step that gives several counts as several."""
    sequences = sum([poll.steps * poll.running for poll in polls])
    each = sum([poll.generated for poll in polls]) / sequences if sequences else 1.0
    return each if each >= DRAFTED_RATIO else 1.0


def _bunched(rows: Sequence[Row], seconds: float, boundary: float) -> Iterator[Row]:
    """Yield rows of about so many seconds each, out of those that follow each other."""
    bunch: list[Row] = []
    any_whole = False
    for row in rows:
        bunch.append(row)
        if sum([part.total for part in bunch]) >= 0.99 * seconds:
            yield _together(bunch, boundary)
            bunch, any_whole = [], True
    if bunch and (not any_whole or sum([part.total for part in bunch]) >= seconds / 2):
        yield _together(bunch, boundary)


def _together(rows: Sequence[Row], boundary: float) -> Row:
    total = sum([row.total for row in rows])
    factors = tuple(map(sum, zip(*[row.factors for row in rows], strict=True)))
    return Row(total, factors, math.hypot(NOISE_RATIO * total, boundary))


def _mean(histogram: HistogramSample | None) -> float | None:
    return histogram.sum / histogram.count if histogram is not None and histogram.count else None


def _spread(histogram: HistogramSample | None) -> float:
    """Return the squared coefficient of variation, with each length in the middle of its bucket."""
    if histogram is None or not histogram.count:
        return 0.0
    low = 0.0
    total = 0.0
    square = 0.0
    below = 0.0
    for bound, count in zip(histogram.bounds, histogram.counts, strict=True):
        high = bound if math.isfinite(bound) else 1.5 * low
        many, middle = count - below, (low + high) / 2
        total, square = total + many * middle, square + many * (middle**2 + (high - low) ** 2 / 12)
        low, below = high, count
    mean = total / histogram.count
    return max(0.0, square / histogram.count / mean**2 - 1) if mean else 0.0
