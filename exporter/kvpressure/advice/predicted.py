"""KV cache pressure where consequences can be predicted: what is predicted to help, most first, and what is not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from kvpressure.advice.batch import fewer_sequences_as_predicted, smaller_steps_as_predicted
from kvpressure.advice.cache import caching, kept_free, small_kv, tier
from kvpressure.advice.case import Case
from kvpressure.advice.edge import by_priority, cap_answers, cap_prompts
from kvpressure.advice.memory import leave_memory, memory_headroom
from kvpressure.advice.replicas import keep_apart, replicas_as_predicted
from kvpressure.advice.rollout import apply_changes, controlled_restart, host_memory, verify_recovery
from kvpressure.model.action import Action
from kvpressure.model.values import number
from kvpressure.simulation.config_changes import (
    APART,
    KV_DTYPE,
    MEMORY,
    OFFLOAD,
    PREFIX_CACHING,
    SHORT_FIRST,
    STEP,
)
from kvpressure.simulation.consequences import Model
from kvpressure.simulation.greedy_search import HOLD, Choice, Step

_APART: Final = (KV_DTYPE, "add_replica", APART)
"""Not part of the rollout that ends the emergency: one is to be evaluated first, the other is no flag."""


def as_predicted(case: Case, model: Model, choice: Choice) -> list[Action | None]:
    """Return the steps by how much they help, one rollout of their flags, more memory or servers, and the declined."""
    made = [_MAKE[step.change.key](case, model, step) for step in choice.steps]
    changes = [action for action, step in zip(made, choice.steps, strict=True) if step.change.key not in _APART]
    apart = [action for action, step in zip(made, choice.steps, strict=True) if step.change.key in _APART]
    fewer = choice.step("max_num_seqs")
    shared = any(step.change.by > 1 for step in choice.steps)
    return [
        *changes,
        apply_changes(case, changes),
        *apart,
        host_memory(case),
        controlled_restart(case),
        None if choice.step(MEMORY) else leave_memory(case),
        declined(case, choice),
        verify_recovery(
            case, None if fewer is None else int(fewer.change.value), shared=shared, together=choice.together
        ),
    ]


def declined(case: Case, choice: Choice | None) -> Action | None:
    """Return the action that lists the changes which would not help, each simulated alone; None without any."""
    if choice is None or not choice.declined:
        return None
    lines = [
        f"{_described(case, step)}: {step.against or _why_not(step, case.thresholds.advice_gain_min_ratio)} "
        f"({step.expected.text})"
        for step in choice.declined
    ]
    return Action(
        key="would_not_help",
        title="Do not change these: they would not help",
        why=f"Simulated one at a time: {'; '.join(lines)}.",
    )


def _described(case: Case, step: Step) -> str:
    value = number(step.change.value)
    words = {
        "cap_prompt": f"prompts at most {value}",
        "cap_output": f"answers at most {value}",
        "kept_free": f"{step.change.value:.0%} of the pool kept free for those that run",
        KV_DTYPE: "the KV cache in 8 bits",
        "add_replica": f"{value} replicas",
        HOLD: "more at once than run now",
        APART: f"{step.change.by} servers of which {step.change.long} for prompts beyond {value}",
        SHORT_FIRST: f"prompts up to {value} before longer ones",
        PREFIX_CACHING: "prefix caching (without what prompts may share)",
        OFFLOAD: f"{value} GiB of host memory for preempted KV",
    }
    return words.get(step.change.key) or f"{case.own.words[step.change.key]} {value}"


def _why_not(step: Step, least: float) -> str:
    shift = step.expected.tokens_per_second
    if step.change.at_best:
        return "gains too little even at best"
    if step.expected.shortened_ratio > 0:
        return "answers that are cut short do not count as served"
    gain = shift.after / shift.before - 1 if shift.before else 0.0
    if gain < -least:
        return f"{-gain:.0%} fewer tokens"
    if gain > least:
        return "gains nothing more once the steps above are taken"
    return f"gains less than {least:.0%} in the worst case"


_MAKE: Final[dict[str, Callable[[Case, Model, Step], Action]]] = {
    "cap_prompt": cap_prompts,
    "cap_output": cap_answers,
    "max_num_seqs": fewer_sequences_as_predicted,
    "kept_free": kept_free,
    STEP: smaller_steps_as_predicted,
    MEMORY: lambda case, _, step: replace(memory_headroom(case), expected=step.expected),
    KV_DTYPE: small_kv,
    "add_replica": replicas_as_predicted,
    SHORT_FIRST: by_priority,
    APART: keep_apart,
    PREFIX_CACHING: caching,
    OFFLOAD: tier,
}
