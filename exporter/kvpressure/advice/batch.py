"""The limits of the batch, raised or cut: how many sequences run at once, and how many tokens a step computes."""

from __future__ import annotations

import math
from typing import Final

from kvpressure.advice.case import Case, fits
from kvpressure.advice.edge import caps_of
from kvpressure.advice.rollout import expected, no_longer, unblocked, unpreempted
from kvpressure.model.action import Action, Expected
from kvpressure.model.limits import LEARNED
from kvpressure.model.values import at, number
from kvpressure.signals.throughput import tokens_of_a_step
from kvpressure.simulation import steps
from kvpressure.simulation.config_changes import STEP, holds
from kvpressure.simulation.consequences import Model
from kvpressure.simulation.greedy_search import Step

SEQUENCES: Final = "max_num_seqs"


def demand(case: Case) -> float:
    """Return how many requests run or want to."""
    return sum(at(case.derived, f"requests_{state}") or 0.0 for state in ("running", "waiting"))


def _or_budget(case: Case) -> tuple[str, str]:
    """Return what title and reason say of the budget of tokens; "" where the cap is known."""
    if case.diagnosis.detail != "sequence_cap" or case.limits.max_num_batched_tokens is not None:
        return "", ""
    words, computed = case.own.words.limits, tokens_of_a_step(case.derived)
    about = "" if computed is None else f", of which a step computes about {number(round(computed))}"
    why = (
        f" Or it is {words[STEP]}{about}: where that was set to about as much, raise it instead. Their values are in "
        "how the engine was started."
    )
    return f" or {words[STEP]}, whichever limits the batch", why


def beyond_knee(case: Case, running: float, knee_requests: float | None = None) -> str:
    """Return in words that more at once hardly gains, where so many running requests are more than the knee."""
    knee = at(case.derived, "running_knee_requests") if knee_requests is None else knee_requests
    beyond = "" if knee is None else steps.beyond_knee(running, knee)
    return f" {beyond}" if beyond else ""


def more_sequences(
    case: Case, new: int, predicted: Expected | None = None, *, knee_requests: float | None = None
) -> Action:
    """Return the action that raises `max_num_seqs`; beyond the knee it says so."""
    limit, usage = case.limits.max_num_seqs, at(case.derived, "kv_cache_usage_ratio")
    current = limit.value if limit else 1.0
    after = "" if usage is None else f" KV usage goes from {usage:.0%} to about {min(1.0, usage * new / current):.0%}."
    fit = (
        f"{number(case.pool_after or 0)} tokens / {number(round(case.request_p95 or 1))} per request at p95 = "
        f"{case.room} that fit.{after}"
        if predicted is None
        else "As simulated, the pool holds them without preemptions."
    )
    fit += beyond_knee(case, new, knee_requests)
    # Another flag may cap the batch where the cap was only learned.
    other = case.own.flags.other_sequences if limit is not None and limit.source == LEARNED else ""
    another = f" Where {other} is set as low, raise that too." if other else ""
    title, budget = _or_budget(case)
    return Action(
        key=SEQUENCES,
        title=f"Raise {case.own.words.limits[SEQUENCES]}{title}",
        current=str(limit),
        new=number(new),
        why=f"{number(round(demand(case)))} requests want to run, {number(current)} may. {fit}{another}{budget}",
        cost=case.own.words.sequences_cost,
        checks=(
            "Within 2 minutes of the restart, under the same traffic:",
            expected(case, "requests_running", ">", current),
            unblocked(case),
        ),
        flags=case.own.flags.set(SEQUENCES, str(new)),
        expected=predicted,
        value=new,
    )


def more_sequences_in_steps(case: Case) -> Action:
    """Return the action that raises `max_num_seqs` where the best value is not known."""
    limit, (title, budget) = case.limits.max_num_seqs, _or_budget(case)
    return Action(
        key=SEQUENCES,
        title=f"Raise {case.own.words.limits[SEQUENCES]}{title} in small steps",
        current="not visible" if limit is None else str(limit),
        why="Requests wait although the KV pool has room. How far it may go is not known: the pool's size or the "
        f"lengths of requests are missing. Take steps of a quarter, and stop when the KV cache is at 80 %.{budget}",
        cost="Larger batches make each token take longer.",
        checks=("Within 2 minutes of each restart:", expected(case, "kv_cache_usage_max_ratio", "<", 0.8)),
    )


def fewer_sequences(case: Case) -> Action | None:
    """Cut `max_num_seqs` to what the pool holds of typical requests; None where as many run, or it is not known.

    Only against requests that preempt each other: where they wait without that, the pool holds them back as it is.
    """
    if case.symptom("preempting") is not True or case.shape is None or case.pool_after is None:
        return None
    t = case.thresholds
    limit = case.limits.max_num_seqs
    caps = caps_of(case, case.shape, case.pool_after)
    highest = at(case.derived, "requests_running_max")
    base = int(min((value for value in (highest, None if limit is None else limit.value) if value), default=0))
    each = min(caps.input_tokens + caps.output_tokens, case.shape.prompt_p50 + case.shape.output_p50)
    room = fits(case.pool_after, each)
    # A cut below what fits leaves room empty, and one that is smaller than the smallest cut is not worth a restart.
    low = max(1, math.ceil(base * (1.0 - t.advice.sequences_cut_max_ratio)))
    new = max(room, low)
    if new > math.floor(base * (1.0 - t.advice.sequences_cut_min_ratio)):
        return None
    span = f"{t.advice.sequences_cut_min_ratio:.0%} to {t.advice.sequences_cut_max_ratio:.0%}"
    most = f"At most {base} run at once"
    if limit is not None and limit.value > base:
        most += f", so a limit above that ({number(limit.value)} now) limits nothing"
    shrunk = " left by the lower memory target" if case.pool_after != case.capacity else ""
    why = (
        f"{most}. {number(round(case.pool_after))} tokens{shrunk} / {number(round(each))} per typical request within "
        f"the caps = {room} that fit"
    )
    if room < low:
        why += f"; one step cuts by {span}, so {new} now, and again if requests are still preempted."
    else:
        why += f": a cut of {1.0 - new / base:.0%}, within {span}."
    return _cut(case, new, why)


def fewer_sequences_as_predicted(case: Case, model: Model, step: Step) -> Action:
    """Return the action that cuts `max_num_seqs`, as predicted."""
    why = f"Requests preempt each other: the pool holds only {holds(model.state)} of them until they finish."
    return _cut(case, int(step.change.value), why, step.expected)


def _cut(case: Case, new: int, why: str, predicted: Expected | None = None) -> Action:
    return Action(
        key=SEQUENCES,
        title=f"Cut {case.own.words.limits[SEQUENCES]}",
        current=case.shown(SEQUENCES),
        new=number(new),
        why=why,
        cost="Further requests wait in the queue instead of preempting others. "
        "When requests become shorter again, raise it.",
        checks=(
            "Within 2 minutes of the restart:",
            expected(case, "requests_running", "<=", new),
            unpreempted(case),
        ),
        flags=case.own.flags.set(SEQUENCES, str(new)),
        expected=predicted,
    )


def smaller_steps(case: Case) -> Action | None:
    """Halve the tokens of a step; None when it is small already."""
    limit, least = case.limits.max_num_batched_tokens, int(case.thresholds.advice.step_tokens_min_tokens)
    if limit is not None and limit.value <= least:
        return None
    keep = 1.0 - case.thresholds.advice.sequences_cut_max_ratio
    new = 2 * least if limit is None else max(least, int(limit.value * keep))
    unknown = " Leave it out if it is set to less already." if limit is None else ""
    return _smaller_steps(case, new, case.pool_after or case.capacity or 1.0, unknown)


def smaller_steps_as_predicted(case: Case, _: Model, step: Step) -> Action:
    """Return the action that cuts the tokens of a step, as predicted."""
    return _smaller_steps(case, int(step.change.value), 1.0, predicted=step.expected)


def _smaller_steps(
    case: Case, new: int, pool: float, unknown: str = "", *, predicted: Expected | None = None
) -> Action:
    return Action(
        key=STEP,
        title=f"Cut {case.own.words.limits[STEP]}",
        current=case.shown(STEP),
        new=number(new),
        why=f"{case.own.words.step_why}{unknown}",
        cost=case.own.words.step_cost,
        checks=("After the restart, at the same memory target:", expected(case, "kv_capacity_tokens", ">=", pool)),
        flags=case.own.flags.set(STEP, str(new)),
        expected=predicted,
    )


def larger_steps(case: Case, new: int, predicted: Expected | None) -> Action:
    """Return the action that raises the tokens of a step."""
    return Action(
        key=STEP,
        title=f"Raise {case.own.words.limits[STEP]}",
        current=str(case.limits.max_num_batched_tokens),
        new=str(new),
        why="Each step's tokens are spent before the queue is through.",
        cost="Larger steps take longer, so each answer's tokens come further apart, and more GPU memory is needed "
        "outside the pool.",
        checks=no_longer(case, "concurrency_bound", "2 minutes of traffic"),
        flags=case.own.flags.set(STEP, str(new)),
        expected=predicted,
        value=new,
    )
