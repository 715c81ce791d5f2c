"""KV cache pressure where consequences can be predicted: what is predicted to help, most first, and what is not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from kvpressure.advice.case import Case
from kvpressure.advice.further import by_priority, caching, keep_apart, tier
from kvpressure.advice.memory import leave_memory, memory_headroom
from kvpressure.advice.replicas import replica
from kvpressure.advice.rollout import apply_changes, controlled_restart, host_memory
from kvpressure.advice.shell import apply_flags, look_again
from kvpressure.advice.verify import VERIFY, recovered
from kvpressure.advice.verify import expected as check
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
    holds,
)
from kvpressure.simulation.consequences import Model
from kvpressure.simulation.greedy_search import Choice, Step
from kvpressure.simulation.other_limits import HOLD

_APART: Final = (KV_DTYPE, "add_replica", APART)
"""Not part of the rollout that ends the emergency: one is to be evaluated first, the other is no flag."""


def as_predicted(case: Case, model: Model, choice: Choice) -> list[Action | None]:
    """Return the steps by how much they help, one rollout of their flags, more memory or servers, and the declined."""
    made = [_MAKE[step.change.key](case, model, step) for step in choice.steps]
    changes = [action for action, step in zip(made, choice.steps, strict=True) if step.change.key not in _APART]
    apart = [action for action, step in zip(made, choice.steps, strict=True) if step.change.key in _APART]
    memory = None if choice.step(MEMORY) else leave_memory(case)
    return [
        *changes,
        apply_changes(case, changes),
        *apart,
        host_memory(case),
        controlled_restart(case),
        memory,
        declined(case, choice),
        _verify(case, choice),
    ]


def _cap_prompts(case: Case, model: Model, step: Step) -> Action:
    cap, longest = int(step.change.value), model.known.outputs.longest
    least, most = model.known.prompts.above(cap)
    flags = case.own.caps(int(cap + longest), int(longest))
    return Action(
        key="cap_tokens",
        title="Cap prompts at the edge",
        current=_declared(case, "max_input_tokens"),
        new=f"prompts {number(cap)}",
        why=f"{_share(least, most)} of the prompts are longer, and hold the part of the pool that the others wait for.",
        cost=f"{_share(least, most)} of the prompts are refused: send them to a deployment of their own.",
        checks=_without_restart(case),
        commands=(
            f"# at the gateway: prompts at most {cap} tokens",
            f"# without a gateway, as flags of {case.place.title} (restart): {flags}",
        ),
        expected=step.expected,
    )


def _cap_answers(case: Case, model: Model, step: Step) -> Action:
    cap = int(step.change.value)
    least, most = model.known.outputs.above(cap)
    return Action(
        key="cap_answers",
        title="Cap answers at the edge",
        current=_declared(case, "max_output_tokens"),
        new=f"answers {number(cap)}",
        why=f"{_share(least, most)} of the answers are longer, and grow into the room that others wait for.",
        cost=f"{_share(least, most)} of the answers end early (finish_reason length).",
        checks=_without_restart(case),
        commands=(f"# at the gateway: max_tokens at most {cap}",),
        expected=step.expected,
    )


def _sequences(case: Case, model: Model, step: Step) -> Action:
    most, limit = int(step.change.value), case.limits.max_num_seqs
    return Action(
        key="max_num_seqs",
        title=f"Cut {case.own.words['max_num_seqs']}",
        current=f"not visible ({case.own.unset['max_num_seqs']})" if limit is None else str(limit),
        new=number(most),
        why=f"Requests preempt each other: the pool holds only {holds(model.state)} of them until they finish.",
        cost="Further requests wait in the queue instead of preempting others. "
        "When requests become shorter again, raise it.",
        checks=(
            "Within 2 minutes of the restart:",
            check(case, "requests_running_max", "<=", most),
            check(case, "preempted_request_ratio", "<", case.thresholds.preempting_min_ratio),
        ),
        flags=case.own.change("max_num_seqs", str(most)),
        expected=step.expected,
    )


def _kept_free(case: Case, _: Model, step: Step) -> Action:
    ratio = number(step.change.value)
    return Action(
        key="kept_free",
        title="Keep a part of the pool for those that run",
        current="not visible (0 unless set)",
        new=ratio,
        why="Admitted requests grow and preempt each other; some room kept free for that growth makes it rarer.",
        cost="Requests are admitted a little later. Recent versions only: leave it out if the server does not know it.",
        checks=(
            "Within 2 minutes of the restart:",
            check(case, "preempted_request_ratio", "<", case.thresholds.preempting_min_ratio),
        ),
        flags=case.own.change("kept_free", ratio),
        expected=step.expected,
    )


def _step_tokens(case: Case, _: Model, step: Step) -> Action:
    limit, new = case.limits.max_num_batched_tokens, int(step.change.value)
    return Action(
        key=STEP,
        title=f"Cut {case.own.words[STEP]}",
        current=str(limit),
        new=number(new),
        why=case.own.step_why,
        cost=case.own.step_cost,
        checks=("After the restart, at the same memory target:", check(case, "kv_capacity_tokens", ">=", 1.0)),
        flags=case.own.change(STEP, str(new)),
        expected=step.expected,
    )


def _memory(case: Case, _: Model, step: Step) -> Action:
    return replace(memory_headroom(case), expected=step.expected)


def _kv_dtype(case: Case, model: Model, step: Step) -> Action:
    flags = case.own.change(KV_DTYPE, case.own.small_kv)
    pool = case.capacity or model.known.server.pool_tokens
    return Action(
        key=KV_DTYPE,
        title="Keep the KV cache in 8 bits",
        current="not visible (as the model's weights unless set)",
        new=case.own.small_kv,
        why=f"The same memory holds twice as much: about {number(round(2 * pool))} tokens instead of "
        f"{number(round(pool))}. Leave it out if the cache is in 8 bits already.",
        cost="Some accuracy: evaluate answers before users see them. Needs a GPU and an attention backend that take "
        "it; where they do not, the server ends at start and says so.",
        checks=("After the restart:", check(case, "kv_capacity_tokens", ">=", 1.9 * pool)),
        commands=apply_flags(case.place, flags),
        expected=step.expected,
    )


def _replicas(case: Case, _: Model, step: Step) -> Action:
    waiting = number(round(step.expected.waiting.before))
    why = f"With the steps above, if any, {waiting} requests wait still: what is asked needs more pool than there is."
    return replica(case, why, int(step.change.value), step.expected)


def declined(case: Case, choice: Choice) -> Action | None:
    """Return the action that lists the changes which would not help, each simulated alone; None without any."""
    lines = [
        f"{_described(case, step)}: {step.against or _why_not(step, case.thresholds.advice_gain_min_ratio)} "
        f"({step.expected.text})"
        for step in choice.declined
    ]
    if not lines:
        return None
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


def _verify(case: Case, choice: Choice) -> Action:
    step = choice.step("max_num_seqs")
    shared = any(step.change.by > 1 for step in choice.steps)
    together = "" if choice.together is None else " The expected figures are for all steps above together."
    return Action(
        key=VERIFY,
        title="Verify recovery",
        why=f"Only traffic shows whether the pressure is gone: an idle server looks recovered.{together}",
        checks=recovered(case, None if step is None else int(step.change.value), shared=shared),
        commands=look_again(case.place),
        expected=choice.together,
    )


def _share(least: float, most: float) -> str:
    return f"{most:.0%}" if round(100 * least) == round(100 * most) else f"{least:.0%} to {most:.0%}"


def _declared(case: Case, name: str) -> str:
    limit = getattr(case.limits, name)
    return "no cap known" if limit is None else str(limit)


def _without_restart(case: Case) -> tuple[str, ...]:
    blocked = check(case, "admission_blocked_ratio", "<", case.thresholds.admission_blocked_min_ratio)
    return "Within 5 minutes, without a restart:", blocked


_MAKE: Final[dict[str, Callable[[Case, Model, Step], Action]]] = {
    "cap_prompt": _cap_prompts,
    "cap_output": _cap_answers,
    "max_num_seqs": _sequences,
    "kept_free": _kept_free,
    STEP: _step_tokens,
    MEMORY: _memory,
    KV_DTYPE: _kv_dtype,
    "add_replica": _replicas,
    SHORT_FIRST: by_priority,
    APART: keep_apart,
    PREFIX_CACHING: caching,
    OFFLOAD: tier,
}
