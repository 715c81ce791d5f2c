"""From what is known of an engine to what is simulated: its steps, its pool, and its requests.

Every figure is the engine's own, from its page. Where the simulation of the engine as it is does not do what the engine
does, nothing is predicted of it.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from kvpressure.config.thresholds import Thresholds
from kvpressure.model.limits import Limits
from kvpressure.model.view import Interval, Observed
from kvpressure.simulation.demand import Arrivals, arrivals_of, demand_of, of_present_load
from kvpressure.simulation.hits import MeasuredHits, has_sessions
from kvpressure.simulation.lengths import LengthDistribution
from kvpressure.simulation.outcome import Outcome
from kvpressure.simulation.page import Page, mean_of, read, sum_of
from kvpressure.simulation.scheduler import COARSE_ANSWERS, Simulation, simulate
from kvpressure.simulation.server import STEP_TOKENS, Demand, Server, StepTimes
from kvpressure.simulation.step_table import StepTable, fitted_to
from kvpressure.simulation.steps import DENSE, SHARED_RATIO, Steps, UnknownError, prior_of, prior_otherwise, steps_of

MAX_SHARE: Final = 0.8
"""Of a step's time, that may grow with the batch."""
MAX_GROWING: Final = 0.95
"""The same where healthy steps say how much does."""
LEAST_GROWTH: Final = 1.5
"""Of a batch over the healthy one, for both to show what a sequence adds to a step."""
PARTS: Final = 6
PARTS_FACTOR: Final = 1.22
"""Student's quantile for so many parts over the normal one, for 90 %."""
SAME_LOAD: Final = 1.3
"""Times the requests of the window that there were in five minutes, at most, where these were of the same load."""
FITS: Final = 4
FITTED_RATIO: Final = 0.02
ALIKE_FACTOR: Final = 1.5
"""Times as many run as in the simulation at a rate, or steps are as long, beyond which requests do not come at one."""
FITS_LIKE: Final = 3
FITTED_LIKE_RATIO: Final = 0.03
"""The same for engines that are like one that was fitted already."""
COARSE_RATIO: Final = 0.5
"""Of the time for which requests at a rate are simulated, for what is only set beside the likeliest."""
FIT_MAX_FACTOR: Final = 1.6


@dataclass(frozen=True, slots=True)
class Measured:
    """What was measured of the engine: generated tokens a second, requests that run and that wait, and so on."""

    tokens_per_second: float
    running: float
    waiting: float
    preempted_per_second: float
    tokens_deviation_ratio: float = 0.0
    """Standard deviation of the tokens a second, as a share of them: the window is a sample of what the engine does."""
    usual_ratio: float = 1.0
    """Tokens a second over five minutes by those of the window, where both are of one load."""
    steps_per_second: float | None = None
    """None where steps are not known."""


@dataclass(frozen=True, slots=True)
class Known:
    """An engine as it can be simulated, its lengths, what was measured of it, and what a token takes of its memory."""

    server: Server
    demand: Demand
    prompts: LengthDistribution
    outputs: LengthDistribution
    measured: Measured
    bytes_per_token: float | None = None
    knee_requests: float = math.inf
    """Running requests from which on more give few more tokens a second (`Steps.knee_requests`), where known."""
    kv_bits: int | None = None
    """Of an element of the KV cache, where the page says so."""
    question: str = ""
    """What is taken otherwise than is likeliest, in words."""
    measured_hits: MeasuredHits | None = None
    must_wait: bool = False
    """Whether clients wait for their answers because requests at a rate would not do what the engine does."""
    simulation: Simulation | None = None
    """Of it as it is, by which it was fitted; it goes on where more answers are needed."""


@dataclass(frozen=True, slots=True)
class Open:
    """What a page does not say.

    `spread` is how widely lengths lie in their buckets, 0 to 1, and `tail` by how many deviations more than likeliest
    the longest are long; `alike` is 0 where the length of an answer has nothing
    to do with that of its prompt, 1 where the longest belong together; `end` is how many deviations more than expected
    a larger batch gives. With `other_clients` each draws any length where lengths say that it keeps to its own, and
    the other way round; with `other_arrivals` another share of them waits for their answers. `rate_end` is how many
    deviations more than counted come at a rate. `experts` is for a model that has some, or may have: it reads them in
    another way.
    """

    spread: float = 1.0
    tail: float = 0.0
    alike: float = 0.0
    end: float = 0.0
    other_clients: bool = False
    rate_end: float = 0.0
    experts: bool = False
    other_arrivals: bool = False

    def question(self, prompts: LengthDistribution, running: float, model_name: str) -> str:
        """Return in words what is taken otherwise than is likeliest, of an engine with these prompts."""
        model = model_name or "this model"
        asked = (
            (self.experts, f"how many experts a batch of {model} reads, if it has any"),
            (self.end, f"what another batch than the {running:.0f} that run takes, which is all that the polls show"),
            (self.rate_end, "how many requests come: too few did for that to be known"),
            (self.alike, "whether long prompts get long answers"),
            (self.other_arrivals, "whether clients wait for their answers, or requests come at a rate"),
            (self.other_clients, "whether each client keeps to its own lengths"),
        )
        for taken, question in asked:
            if taken:
                return question
        widest = max(prompts.buckets, key=lambda bucket: bucket.share * (bucket.high - bucket.low))
        return f"where in one bucket of its histogram {widest.text} lie"


LIKELIEST: Final = Open()


@dataclass(frozen=True, slots=True)
class Given:
    """What is known of an engine: what its page shows, its limits, and more where its cause or its card says so.

    `growing` is the share of a step's time that grows with the batch, where that is not fitted to the page.
    `most_running` says that requests wait for something else than the pool: at most so many run at once, infinity where
    another limit of the server does it. `card` is the table of the card and model, where these are known.
    """

    observed: Observed | None
    limits: Limits
    thresholds: Thresholds
    growing: float | None = None
    most_running: float | None = None
    card: StepTable | None = None

    @property
    def pool_limits(self) -> bool:
        """Whether requests wait for room in the pool, as far as is known."""
        return self.most_running is None

    def server(self, page: Page, steps: StepTimes) -> Server:
        """Return the server with the room that requests have beside what they share."""
        cache, pool, cached = page.observed.cache, page.pool, _cached(page.observed)
        if cached:
            # Shared beginnings take what those that run use beyond their own.
            usage = mean_of(interval.usage_ratio for interval in page.intervals)
            own = page.running * (page.prompts.mean * (1 - cached) + page.outputs.mean / 2)
            pool -= min(0.8 * pool, max(cached * page.prompts.mean, usage * pool - own))
        sequences, tokens = self.limits.max_num_seqs, self.limits.max_num_batched_tokens
        return Server(
            pool_tokens=pool,
            steps=steps,
            block_tokens=float(cache.block_size or 16),
            max_num_seqs=min(sequences.value if sequences else math.inf, self.most_running or math.inf),
            step_tokens=tokens.value if tokens else STEP_TOKENS,
            reuses=cache.prefix_caching is not False,
        )

    def step_times(self, steps: Steps, end: float) -> StepTimes:
        """Return what steps take, by the card's table where there is one; `end` as in `Open`."""
        if self.card is not None:
            return fitted_to(self.card, steps, end)
        return steps.end(end) if self.growing is None else steps.growing(self.growing)


def known(given: Given, taken: Open = LIKELIEST, *, like: Known | None = None) -> Known:
    """Return the engine as it can be simulated. Raises UnknownError.

    What is `taken` otherwise than in an engine that was fitted already is fitted in one simulation, with the pool that
    this is `like`.
    """
    observed = given.observed
    if observed is not None:
        observed = replace(observed, intervals=tuple(of_present_load(observed.intervals)))
    page = read(observed, given.limits, spread=taken.spread, tail=taken.tail)
    prior = (prior_otherwise if taken.experts else prior_of)(page.observed.model_name) or DENSE
    steps = steps_of(page.observed, page.pool, prior)
    # Sessions think between their turns, and come back once they are answered: by chance, but at no rate.
    arrivals = None if has_sessions(page.observed, given.thresholds) else arrivals_of(page.observed)
    if like is not None and like.must_wait:
        arrivals = None
    if taken.other_arrivals:
        if arrivals is None or arrivals.otherwise is None:
            raise UnknownError("what sends requests is known")
        arrivals = replace(arrivals, waiting_ratio=arrivals.otherwise)
    demand = _demand(page, taken, arrivals)
    if like is not None and demand.rate and math.isinf(demand.counted_seconds):
        demand = replace(demand, seconds=COARSE_RATIO * demand.seconds)
    found = Known(
        given.server(page, given.step_times(steps, taken.end)),
        demand,
        page.prompts,
        page.outputs,
        _measured(page),
        knee_requests=steps.knee_requests,
        kv_bits=page.observed.cache.kv_bits,
        question="" if taken == LIKELIEST else taken.question(page.prompts, page.running, page.observed.model_name),
    )
    if like is not None:
        return _fitted_like(found, like, pool_limits=given.pool_limits)
    may_wait = arrivals is not None and arrivals.most >= 1.0
    try:
        at_rate = _fitted(found, given)
        if not may_wait or _is_alike(at_rate):
            return at_rate
    except UnknownError:
        if not may_wait:
            raise
    # A few that came and ended do not show whether those who send them wait for their answers.
    found = replace(found, demand=_demand(page, taken, None), must_wait=True)
    return _fitted(found, given)


def _is_alike(known: Known) -> bool:
    """Return whether as many run, in as long steps: at a rate below what is served any server gives as many tokens."""
    outcome = known.simulation.outcome() if known.demand.rate and known.simulation else None
    if outcome is None:
        return True
    steps, running = known.measured.steps_per_second, outcome.running / known.measured.running
    factors = [running] if not steps else [running, outcome.steps_per_second / steps]
    return all(1 / ALIKE_FACTOR <= factor <= ALIKE_FACTOR for factor in factors)


def _demand(page: Page, taken: Open, arrivals: Arrivals | None) -> Demand:
    demand = demand_of(page, _cached(page.observed), taken.alike, arrivals)
    if taken.rate_end:
        return replace(demand, rate=demand.rate * (1 + taken.rate_end * demand.rate_deviation_ratio))
    return replace(demand, mixed=not demand.mixed) if taken.other_clients else demand


def _measured(page: Page) -> Measured:
    speed, preempted = page.generated / page.seconds, sum_of(page.intervals, "preempted") or 0.0
    usual = _usual_ratio(page.observed, speed, page.running, page.waiting)
    # Both are samples of one load, and the longer one is the better.
    return Measured(
        speed * usual,
        page.running,
        page.waiting,
        preempted / page.seconds,
        tokens_deviation_ratio(page.intervals),
        1.0 / usual,
        None if (steps := sum_of(page.intervals, "steps")) is None else steps / page.seconds,
    )


def _fitted(found: Known, given: Given) -> Known:
    """Fit the pool so that as many run as were observed, and the steps so that they take as long.

    Room kept free, layers that keep different things, and unused blocks show only in how many run; where
    something else holds the batch back, how many run says nothing of the pool.
    """
    measured, nominal, most_error = found.measured, found.server, given.thresholds.advice.simulated_error_max_ratio
    closest, least_error = found, math.inf
    for _ in range(FITS):
        simulation = Simulation(found.server, found.demand)
        fits, speed, error = _beside(simulation.outcome(), measured)
        if (abs(fits - 1) < FITTED_RATIO or not given.pool_limits) and abs(speed - 1) < FITTED_RATIO:
            return replace(found, simulation=simulation)
        if error < least_error:
            closest, least_error = replace(found, simulation=simulation), error
        pool, steps = found.server.pool_tokens, found.server.steps
        if given.pool_limits and measured.waiting >= 1:
            pool = min(FIT_MAX_FACTOR * nominal.pool_tokens, max(nominal.pool_tokens / FIT_MAX_FACTOR, pool * fits))
        found = replace(found, server=replace(found.server, pool_tokens=pool, steps=steps.scaled(speed)))
    outcome = simulate(found.server, found.demand)
    if outcome is not None and abs(outcome.tokens_per_second / measured.tokens_per_second - 1) <= most_error:
        return found
    if least_error <= most_error:  # where few run, one more or less that fits makes the fit swing
        return closest
    raise UnknownError("the simulation does not reproduce the current throughput of this engine")


def _beside(outcome: Outcome | None, measured: Measured) -> tuple[float, float, float]:
    """Return by what factors more run in the engine and steps take longer, and the error of the tokens a second.

    Raises UnknownError.
    """
    if outcome is None or not outcome.tokens_per_second or not outcome.running:
        raise UnknownError("the simulation completes no request")
    speed = outcome.tokens_per_second / outcome.running / (measured.tokens_per_second / measured.running)
    error = abs(outcome.tokens_per_second / measured.tokens_per_second - 1)
    return measured.running / outcome.running, speed, error


def _fitted_like(found: Known, like: Known, *, pool_limits: bool) -> Known:
    """Fit the steps so that they take as long as was observed, with the pool of an engine that shows the same page.

    The pool is fitted again where with that one others run than were observed.
    """
    measured, pool = found.measured, like.server.pool_tokens
    for _ in range(FITS_LIKE):
        server = replace(found.server, pool_tokens=pool)
        fits, speed, _ = _beside(simulate(server, found.demand, answers=COARSE_ANSWERS), measured)
        fitted = replace(found, server=replace(server, steps=server.steps.scaled(speed)))
        if abs(fits - 1) < FITTED_LIKE_RATIO or not pool_limits or measured.waiting < 1:
            break
        pool = min(FIT_MAX_FACTOR * like.server.pool_tokens, max(like.server.pool_tokens / FIT_MAX_FACTOR, pool * fits))
    return fitted


def tokens_deviation_ratio(intervals: Sequence[Interval]) -> float:
    """Return the standard deviation of the mean, by those of a few parts of the window, which hardly hang together."""
    size = len(intervals) // PARTS
    parts = [intervals[place * size : (place + 1) * size] for place in range(PARTS)]
    seconds = [sum(interval.seconds for interval in part) for part in parts]
    if not all(seconds):
        return 0.0
    rates = [(sum_of(part, "generated") or 0.0) / each for part, each in zip(parts, seconds, strict=True)]
    mean = statistics.fmean(rates)
    return PARTS_FACTOR * statistics.stdev(rates) / math.sqrt(PARTS) / mean if mean else 0.0


def _usual_ratio(observed: Observed, rate: float, running: float, waiting: float) -> float:
    """Return what the engine does in five minutes over what it does in the window; 1 where its load was another.

    It was where other numbers of requests ran or waited: an incident that has just begun is no sample of the calm.
    """
    long, apart = observed.minutes, (SAME_LOAD - 1) * (running + waiting)
    if long is None or max(abs(long.running - running), abs(long.waiting - waiting)) >= apart:
        return 1.0
    return long.tokens_per_second / rate


def held_at(observed: Observed | None) -> float | None:
    """Return how many requests run where something else than the pool limits the batch to that; None if not known."""
    running = (
        []
        if observed is None
        else [interval.running for interval in observed.intervals if interval.running is not None]
    )
    return max(1.0, float(round(mean_of(running)))) if running else None


def growing_share(observed: Observed | None) -> float:
    """Return the share of a step's time that grows with the batch, from healthy steps, where the GPU is the limit.

    Without healthy ones, or against a batch like theirs, the most that is ever believed: such a GPU has no time left.
    """
    if observed is None or observed.healthy_step_seconds is None or observed.healthy_batch is None:
        return MAX_SHARE
    busy = [interval for interval in observed.intervals if interval.steps and interval.running is not None]
    steps, batch = sum_of(busy, "steps"), mean_of(interval.running for interval in busy)
    if not steps or batch < LEAST_GROWTH * observed.healthy_batch:
        return MAX_SHARE
    seconds = sum(interval.seconds for interval in busy) / steps
    each = (seconds - observed.healthy_step_seconds) / (batch - observed.healthy_batch)
    return min(MAX_GROWING, max(0.0, each * batch / seconds))


def _cached(observed: Observed) -> float:
    ratio = observed.cached_ratio or 0.0
    return ratio if ratio >= SHARED_RATIO else 0.0
