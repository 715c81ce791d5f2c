"""What is done where requests come in: caps on their lengths, a priority for short ones, fewer sessions."""

from __future__ import annotations

import math
from dataclasses import dataclass

from kvpressure.advice.case import Case, RequestLengths, fits, round_up_tokens
from kvpressure.advice.rollout import after_restart, expected, unblocked
from kvpressure.model.action import Action
from kvpressure.model.values import at, number
from kvpressure.simulation.config_changes import SHORT_FIRST
from kvpressure.simulation.consequences import Model
from kvpressure.simulation.greedy_search import Step


@dataclass(frozen=True, slots=True)
class Caps:
    """Token limits at the gateway, and how many requests of that size fit."""

    input_tokens: int
    output_tokens: int
    requests: int


def share_above(tokens: float, p50: float, p95: float) -> float:
    """Return the share of requests longer than `tokens`, on the straight line through p50 and p95; 0.05 to 0.5.

    >>> share_above(1500.0, 1000.0, 2000.0)
    0.275
    """
    along = 1.0 if p95 <= p50 else min(1.0, max(0.0, (tokens - p50) / (p95 - p50)))
    return 0.5 - 0.45 * along


def length_above(share: float, p50: float, p95: float) -> float:
    """Return the length that a `share` of the requests exceeds, on the same line.

    >>> length_above(0.275, 1000.0, 2000.0)
    1500.0
    """
    along = min(1.0, max(0.0, (0.5 - share) / 0.45))
    return p50 + along * max(0.0, p95 - p50)


def cap_tokens(case: Case) -> Action | None:
    """Limit prompt and answer lengths where nothing is predicted; None where those that run are longer already.

    Then the lengths of those that ended say nothing of what fills the pool, and a cap by them would refuse everybody.
    """
    if case.shape is None or case.capacity is None:
        return Action(
            key="cap_tokens",
            title="Cap tokens at the gateway",
            why="Long requests fill the pool. Their lengths are not known: too few requests have finished.",
            cost="Longer prompts are refused, longer answers end early.",
            commands=("# at the gateway: limit max_tokens and the length of prompts",),
        )
    return _computed_caps(case, case.shape, case.capacity)


def _computed_caps(case: Case, shape: RequestLengths, capacity: float) -> Action | None:
    caps = caps_of(case, shape, capacity)
    total = caps.input_tokens + caps.output_tokens
    without_gateway = case.own.flags.cap(total, caps.output_tokens)
    enough = fits(capacity, total)
    each = case.request_p95 or 0.0
    refused = share_above(caps.input_tokens, shape.prompt_p50, shape.prompt_p95)
    ended = share_above(caps.output_tokens, shape.output_p50, shape.output_p95)
    each_now = at(case.derived, "kv_tokens_per_request") or total
    when = "" if shape.recent else " (since the server started)"
    if each_now > total or case.diagnosis.detail == "stranded":  # what holds the cache there is no request that is long
        return None
    reason = (
        f"{caps.requests} requests, up to twice what runs, of {number(round(each))} tokens (p95{when}) need "
        f"{number(round(caps.requests * each))}; the pool holds {number(capacity)}."
    )
    verdict = f"Of requests as long as these limits {enough} fit."
    if enough < caps.requests:
        verdict += (
            " Lower ones would refuse too many: the pool is too small for this traffic, and only more KV memory or "
            "shorter requests will end this for good."
        )
    return Action(
        key="cap_tokens",
        title="Cap tokens at the gateway",
        current=f"prompts {_declared(case, 'max_input_tokens', f'p95 {number(round(shape.prompt_p95))} seen')}, "
        f"answers {_declared(case, 'max_output_tokens', f'p95 {number(round(shape.output_p95))} seen')}",
        new=f"prompts {number(caps.input_tokens)}, answers {number(caps.output_tokens)}",
        why=f"{reason} {verdict}",
        cost=f"Up to {refused:.0%} of the prompts are refused and up to {ended:.0%} of the answers end early "
        f"(finish_reason length). Lengths are read out of coarse buckets: it may be none.",
        checks=(*_without_restart(case), expected(case, "kv_tokens_per_request", "<", min(each_now, total))),
        commands=(
            f"# at the gateway: prompts at most {caps.input_tokens} tokens, max_tokens at most {caps.output_tokens}",
            f"# without a gateway, as flags of {case.place.title} (restart): {without_gateway}",
        ),
    )


def caps_of(case: Case, shape: RequestLengths, capacity: float) -> Caps:
    """Return limits with which twice the batch fits (at most all the demand), while they hit few enough requests.

    Each is between the length that `advice_refused_max_ratio` of them exceed and p95: above that it would not change
    anything; and at most what is declared already. Answers are cut first: a shorter answer costs its user less than a
    refused prompt.
    """
    running, waiting = (at(case.derived, f"requests_{state}") or 0.0 for state in ("running", "waiting"))
    requests = max(2, math.ceil(min(running + waiting, 2.0 * max(1.0, running))))
    each, refused = capacity / requests, case.thresholds.advice.refused_max_ratio
    output = max(each - shape.prompt_p50, length_above(refused, shape.output_p50, shape.output_p95))
    output = min(output, shape.output_p95)
    prompt = max(each - output, length_above(refused, shape.prompt_p50, shape.prompt_p95))
    prompts, outputs = round_up_tokens(min(prompt, shape.prompt_p95)), round_up_tokens(output)
    declared = case.limits.max_input_tokens, case.limits.max_output_tokens
    return Caps(
        prompts if declared[0] is None else min(prompts, int(declared[0].value)),
        outputs if declared[1] is None else min(outputs, int(declared[1].value)),
        requests,
    )


def cap_prompts(case: Case, model: Model, step: Step) -> Action:
    """Return the action that refuses longer prompts, as predicted."""
    cap, longest = int(step.change.value), model.known.outputs.longest
    least, most = model.known.prompts.above(cap)
    longer, now = share_text(least, most), step.expected.refused_ratio
    present = f", and about {now:.0%} of those that run and wait now" if now > 1.5 * most else ""
    flags = case.own.flags.cap(int(cap + longest), int(longest))
    return Action(
        key="cap_prompt",
        title="Cap prompts at the gateway",
        current=_declared(case, "max_input_tokens"),
        new=f"prompts {number(cap)}",
        value=cap,
        why=f"{longer} of the prompts that ended are longer{present}: they hold what the others wait for.",
        cost="These prompts are refused: send them to a deployment of their own.",
        checks=_without_restart(case),
        commands=(
            f"# at the gateway: prompts at most {cap} tokens",
            f"# without a gateway, as flags of {case.place.title} (restart): {flags}",
        ),
        expected=step.expected,
    )


def cap_answers(case: Case, model: Model, step: Step) -> Action:
    """Return the action that ends longer answers early, as predicted."""
    cap = int(step.change.value)
    longer = share_text(*model.known.outputs.above(cap))
    return Action(
        key="cap_output",
        title="Cap answers at the gateway",
        current=_declared(case, "max_output_tokens"),
        new=f"answers {number(cap)}",
        value=cap,
        why=f"{longer} of the answers are longer, and grow into the room that others wait for.",
        cost=f"{longer} of the answers end early (finish_reason length).",
        checks=_without_restart(case),
        commands=(f"# at the gateway: max_tokens at most {cap}",),
        expected=step.expected,
    )


def by_priority(case: Case, model: Model, step: Step) -> Action:
    """Return the action that schedules short prompts before long ones."""
    tokens = int(step.change.value)
    return Action(
        key=SHORT_FIRST,
        title=f"Let prompts up to {number(tokens)} tokens go first",
        current="first come, first served unless set",
        new=f"{case.own.flags.by_priority}; priority 0 up to {number(tokens)} tokens, 1 beyond",
        why=f"{share_text(*model.known.prompts.above(tokens))} of the prompts are longer: one at the head of the queue "
        "that does not fit keeps all behind it waiting, also those that would fit.",
        cost="Long prompts wait as long as any short one does, and are preempted first: under lasting load they may "
        "not be answered at all. Clients, or the gateway, have to send priority with each request.",
        checks=after_restart(case),
        commands=(f'# clients or the gateway: "priority": 1 in requests whose prompt is longer than {tokens} tokens',),
        flags=case.own.flags.set(SHORT_FIRST, case.own.flags.by_priority),
        expected=step.expected,
    )


def fewer_sessions(case: Case, check: str) -> Action:
    """Return the action that sends fewer sessions here; `check` is of the hits in the prefix cache."""
    each = case.request_p95
    many = ""
    if each and case.capacity:
        many = f" The pool holds about {number(fits(case.capacity, each))} contexts of p95 length at a time."
    return Action(
        key="fewer_sessions",
        title="Send fewer sessions to this replica, and each always to the same one",
        why="The least recently used context is evicted first, so sessions that take turns push each other out just "
        f"before they come back; a few less, and most find their context again.{many}",
        cost="Other replicas get those sessions, or they wait at the gateway.",
        checks=("Within 10 minutes:", check),
        commands=("# at the gateway: session affinity, and a limit of sessions for each replica",),
    )


def ask_less(case: Case) -> Action:
    """Return the action that has clients ask for about as much as answers take."""
    longest = None if case.shape is None else case.shape.output_p95
    length = "" if longest is None else f" Answers take {number(round(longest))} tokens (p95)."
    return Action(
        key="ask_less",
        title="Let clients ask for about as many tokens as answers take",
        current="not visible",
        new="" if longest is None else f"max_tokens {number(round_up_tokens(longest))}",
        why="All that a request may generate has to be free to admit it, and a share of what those that run may still "
        f"generate.{length} Where clients ask for that already, this gains nothing.",
        cost="Longer answers end early (finish_reason length).",
        checks=("Within 2 minutes:", unblocked(case)),
        commands=("# clients, or the gateway: max_tokens of each request",),
    )


def share_text(least: float, most: float) -> str:
    """Return a share that lies between two, as text: one percentage where they round to the same."""
    return f"{most:.0%}" if round(100 * least) == round(100 * most) else f"{least:.0%} to {most:.0%}"


def _declared(case: Case, name: str, otherwise: str = "no cap known") -> str:
    limit = getattr(case.limits, name)
    return otherwise if limit is None else str(limit)


def _without_restart(case: Case) -> tuple[str, ...]:
    return "Within 5 minutes, without a restart:", unblocked(case)
