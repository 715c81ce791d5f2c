"""What to do where the GPU is the limit: let others into the steps of a long prompt, add servers, compute less."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from kvpressure.advice.case import Case
from kvpressure.advice.forecast import more_gpus
from kvpressure.advice.others import remedied
from kvpressure.advice.pressure import declined
from kvpressure.advice.replicas import replicas
from kvpressure.advice.rollout import apply_changes, expected, watch
from kvpressure.model.action import Action
from kvpressure.model.values import at

LONG_PROMPT_STEP_RATIO: Final = 0.25
"""Of a step, for a prompt that others wait for. In the lab (`compute-long-prompt`) p95 of all requests is 102 s with
the whole step, 62 s with half of it and 39 s with a quarter; on a real server that of the others is 91 s and, with a
quarter, 0.7 s (decision 0250)."""


def compute_bound(case: Case) -> tuple[list[Action | None], str]:
    """Return the actions for a saturated GPU: more of them, or less work per request."""
    busy, most = at(case.derived, "engine_gpu_utilization_ratio"), case.thresholds.gpu.compute_high_min_ratio
    share = "" if busy is None else f" ({busy:.0%} busy)"
    why = f"The GPU is at work{share} and the KV cache is not what holds requests back."
    forecast = more_gpus(case)
    choice = forecast.printed(case)
    words = case.own.words
    less_work = Action(
        key="less_work",
        title="Less work per request",
        why=f"A GPU computes less per request with shorter prompts, {words.prefixes} and a quantized model (FP8 or AWQ "
        f"weights). {words.limits['max_num_seqs']} does not help: more at once is not more per second.",
        cost="A quantized model has to be evaluated before it serves users.",
        checks=("Under the same traffic:", expected(case, "engine_gpu_utilization_ratio", "<", most)),
    )
    shared = _shared_steps(case)
    return [
        shared,
        apply_changes(case, [shared]),
        replicas(case, choice, why),
        less_work,
        declined(case, choice),
        watch(case, "compute_bound", "5 minutes of traffic on the new replica"),
    ], forecast.reason


def _shared_steps(case: Case) -> Action | None:
    """Return the action that lets others into the steps of a long prompt; None where there is no such flag."""
    remedy, budget = case.own.remedies.details.get(case.diagnosis.detail), case.limits.max_num_batched_tokens
    if remedy is None:
        return None
    flags = dict[str, str]()
    if remedy.flag and budget is not None:
        count = max(1, int(budget.value * LONG_PROMPT_STEP_RATIO))
        flags, remedy = {remedy.flag: str(count)}, replace(remedy, new=remedy.counted.format(count=count))
    return replace(remedied(case, remedy, "compute_bound", remedy.why), flags=flags)
