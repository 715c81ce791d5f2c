"""What to do where the batch itself is what limits: its cap on sequences, a step's tokens, or what the GPU computes."""

from __future__ import annotations

import math
from typing import Final

from kvpressure.advice.case import Case
from kvpressure.advice.expectations import explained
from kvpressure.advice.forecast import more_batch, more_gpus, without_limit
from kvpressure.advice.limits import SEQUENCE_CAPS
from kvpressure.advice.predicted import declined
from kvpressure.advice.replicas import replica, replicas
from kvpressure.advice.rollout import apply_changes, watch
from kvpressure.advice.verify import expected, series
from kvpressure.advice.waits import another_limit
from kvpressure.model.action import Action, Expected
from kvpressure.model.limits import LEARNED
from kvpressure.model.values import at, number

LARGEST_STEP_FACTOR: Final = 2.0
"""`max_num_seqs` is at most doubled at once where nothing is predicted: each step's time grows with it."""
NO_ROOM: Final = "Requests wait although the KV pool has room for them."


def concurrency_bound(case: Case) -> list[Action | None]:
    """Raise `max_num_seqs` as far as the pool allows; more servers where it does not. Or another of the limits."""
    if case.diagnosis.detail not in SEQUENCE_CAPS:
        return _another(case)
    forecast = more_batch(case)
    if forecast.choice is None:
        return [*explained(_unpredicted(case), case.diagnosis.cause, forecast.reason)]
    step = forecast.choice.step("max_num_seqs")
    change = None if step is None else _raise(case, int(step.change.value), step.expected)
    return [
        change,
        apply_changes(case, [change]),
        replicas(case, forecast.choice, "The KV pool holds no more requests at once than run, and others wait."),
        declined(case, forecast.choice),
        watch(case, "concurrency_bound", "2 minutes of traffic"),
    ]


def _unpredicted(case: Case) -> list[Action | None]:
    limit, room = case.limits.max_num_seqs, case.room
    if limit is None or room is None:
        return [_raise_blind(case), replica(case, NO_ROOM)]
    demand = _demand(case)
    new = min(room, math.ceil(demand), int(limit.value * LARGEST_STEP_FACTOR))
    if new <= limit.value:
        why = f"{number(limit.value)} run at once, and no more than {room} fit the KV pool at p95 length."
        return [replica(case, why)]
    change = _raise(case, new)
    return [change, apply_changes(case, [change]), watch(case, "concurrency_bound", "2 minutes of traffic")]


def _demand(case: Case) -> float:
    return sum(at(case.derived, f"requests_{state}") or 0.0 for state in ("running", "waiting"))


def _another(case: Case) -> list[Action | None]:
    """Return the actions for a limit that is not the cap on sequences: the tokens of a step, or an unknown one."""
    known = case.diagnosis.detail == "prefill_budget" and case.limits.max_num_batched_tokens is not None
    forecast = more_batch(case) if known else without_limit(case)
    change = another_limit(case, forecast)
    choice = forecast.choice
    more = replica(case, NO_ROOM) if choice is None else replicas(case, choice, NO_ROOM)
    rejected = None if choice is None else declined(case, choice)
    return [
        *explained([change, apply_changes(case, [change]), more], case.diagnosis.cause, forecast.reason),
        rejected,
    ]


def _raise(case: Case, new: int, predicted: Expected | None = None) -> Action:
    limit, usage = case.limits.max_num_seqs, at(case.derived, "kv_cache_usage_ratio")
    current = limit.value if limit else 1.0
    after = "" if usage is None else f" KV usage goes from {usage:.0%} to about {min(1.0, usage * new / current):.0%}."
    fit = (
        f"{number(case.pool_after or 0)} tokens / {number(round(case.request_p95 or 1))} per request at p95 = "
        f"{case.room} that fit.{after}"
        if predicted is None
        else "As simulated, the pool holds them without preemptions."
    )
    return Action(
        key="max_num_seqs",
        title=f"Raise {case.own.words['max_num_seqs']}",
        current=str(limit),
        new=number(new),
        why=f"{number(round(_demand(case)))} requests want to run, {number(current)} may. {fit}{_or_another(case)}",
        cost=case.own.sequences_cost,
        checks=(
            "Within 2 minutes of the restart, under the same traffic:",
            expected(case, "requests_running_max", ">", current),
            expected(case, "admission_blocked_ratio", "<", case.thresholds.admission_blocked_min_ratio),
        ),
        flags=case.own.change("max_num_seqs", str(new)),
        expected=predicted,
    )


def _or_another(case: Case) -> str:
    """Return a hint at the other flag that may cap the batch where the cap was only learned; "" otherwise."""
    limit = case.limits.max_num_seqs
    other = case.own.other_cap if limit is not None and limit.source == LEARNED else ""
    return f" Where {other} is set as low, raise that too." if other else ""


def _raise_blind(case: Case) -> Action:
    limit = case.limits.max_num_seqs
    return Action(
        key="max_num_seqs",
        title=f"Raise {case.own.words['max_num_seqs']} in small steps",
        current="not visible" if limit is None else str(limit),
        why="Requests wait although the KV pool has room. How far it may go is not known: the pool's size or the "
        "lengths of requests are missing. Take steps of a quarter, and stop when the KV cache is at 80 %.",
        cost="Larger batches make each token take longer.",
        checks=("Within 2 minutes of each restart:", f"{series('kv_cache_usage_ratio_max', case.place)} < 0.8"),
    )


def compute_bound(case: Case) -> list[Action | None]:
    """Return the actions for a saturated GPU: more of them, or less work per request."""
    busy = at(case.derived, "engine_gpu_utilization_ratio")
    seen = "" if busy is None else f" ({busy:.0%} busy)"
    why = f"The GPU is at work{seen} and the KV cache is not what holds requests back."
    forecast = more_gpus(case)
    choice = forecast.choice
    more = replica(case, why) if choice is None else replicas(case, choice, why)
    return [
        *explained([more], case.diagnosis.cause, forecast.reason),
        Action(
            key="less_work",
            title="Less work per request",
            why=f"A GPU computes less per request with shorter prompts, {case.own.prefixes} and a quantized model (FP8 "
            f"or AWQ weights). {case.own.words['max_num_seqs']} does not help: more at once is not more per second.",
            cost="A quantized model has to be evaluated before it serves users.",
            checks=("Under the same traffic:", expected(case, "engine_gpu_utilization_ratio", "<", _busy(case))),
        ),
        None if choice is None else declined(case, choice),
        watch(case, "compute_bound", "5 minutes of traffic on the new replica"),
    ]


def _busy(case: Case) -> float:
    return case.thresholds.gpu_compute_high_min_ratio
