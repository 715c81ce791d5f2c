"""The longest request to admit beside so many others: found by simulating the pool with some of that length in it."""

from __future__ import annotations

from typing import Final

from kvpressure.capacity.case import LONGEST_KNOWN, Case
from kvpressure.simulation.scheduler import simulate
from kvpressure.simulation.server import Demand, RequestShape, Server, StepSeconds

STEPS: Final = StepSeconds(0.03, 0.0, 1 / 16_000)
"""Any: how often requests are preempted hardly depends on it, and not at all on its scale."""
BEYOND_P95: Final = 20
"""One request in so many may be longer than the p95: that is what a p95 is."""
SIMULATED: Final = 80
HALVINGS: Final = 6
WAITING_FACTOR: Final = 2
"""Clients for each sequence that runs: there is always one that waits to be admitted."""


def longest_request(case: Case, sequences: int) -> int:
    """Return the longest request to allow, in tokens: at most what model and pool can take, at least a p95 request.

    Up to its share of the pool, as long as `sequences` run side by side, and fewer than count as preempting are
    preempted, while the requests beyond p95 are all that long.
    """
    most = case.limit or max(case.tokens, LONGEST_KNOWN)
    share = case.pool.longest(case.thresholds.advice_request_share_max_ratio, most)
    needed = min(case.tokens, most) if case.fits_alone else case.pool.longest(case.usable_share, most)
    if share <= needed or sequences < 2 or _fits(case, sequences, share):
        return max(share, needed)
    low, high = needed, share
    for _ in range(HALVINGS):
        middle = round((low * high) ** 0.5)
        low, high = (middle, high) if _fits(case, sequences, middle) else (low, middle)
    block = case.pool.block_tokens
    return max(needed, low // block * block)


def _fits(case: Case, sequences: int, longest: int) -> bool:
    """Return whether `sequences` run together where every 20th request is `longest`, the others as the traffic is."""
    traffic = case.traffic
    output = max(1, min(round(traffic.output_p95), longest - 1))
    usual = round(traffic.prompt_p50 or traffic.prompt_p95), max(1, round(traffic.output_p50 or traffic.output_p95))
    asked = [RequestShape(usual[0], usual[0], usual[1])] * (BEYOND_P95 - 1)
    prompt = max(1, _p95_tokens(case, longest) - output)
    asked.append(RequestShape(prompt, prompt, output))
    # Of a large batch a part, with its part of the pool: it would only take longer.
    part = min(1.0, SIMULATED / sequences)
    running = round(part * sequences)
    server = Server(
        pool_tokens=part * case.pool.tokens(case.tokens),
        steps=STEPS,
        block_tokens=case.pool.block_tokens,
        max_num_seqs=running,
        step_tokens=case.batched_tokens,
    )
    outcome = simulate(server, Demand(tuple(asked), clients=WAITING_FACTOR * running))
    if outcome is None:
        return False
    if outcome.running < case.thresholds.at_cap_min_ratio * running:
        return False
    return outcome.preempted_per_second <= case.thresholds.preempting_min_ratio * outcome.answers_per_second


def _p95_tokens(case: Case, tokens: int) -> int:
    """Return what a request of `tokens` holds, in tokens of a p95 request: windows hold less of a long one."""
    usual, this = case.pool.request_bytes(case.tokens), case.pool.request_bytes(tokens)
    return tokens if usual is None or this is None else round(case.tokens * this / usual)
