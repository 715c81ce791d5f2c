"""KV cache pressure: what is predicted to help, or the emergency order of the playbook, with computed values.

Predicted are the steps by how much they help, one rollout of their flags, more memory or servers; and what would not
help.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from kvpressure.advice import batch, cache, edge, rollout
from kvpressure.advice.case import Case
from kvpressure.advice.forecast import (
    Forecast,
    as_shown,
    forecast_of,
    memory,
    of_eviction,
    with_sessions,
    without_gpu,
    without_restart,
)
from kvpressure.advice.memory import leave_memory, memory_headroom
from kvpressure.advice.replicas import NO_POOL, enough, keep_apart, replica, replicas, replicas_as_predicted, route
from kvpressure.model.action import SIMULATED_ALONE, UNPREDICTABLE, Action
from kvpressure.model.limits import KV_DTYPE
from kvpressure.model.values import at, number
from kvpressure.model.verdict import Stage
from kvpressure.simulation.config_changes import (
    MEMORY,
    OFFLOAD,
    PREFIX_CACHING,
    ROUTE_BY_LENGTH,
    SESSIONS,
    SHORT_FIRST,
    STEP,
)
from kvpressure.simulation.consequences import Model
from kvpressure.simulation.greedy_search import HOLD, Choice, Step

_WITHOUT_RESTART: Final = ("cap_prompt", "cap_output", "add_replica")
_LAST: Final = (KV_DTYPE, ROUTE_BY_LENGTH)
"""Not part of the one rollout: the first is to be evaluated before, the other is no flag."""


def kv_pressure(case: Case) -> tuple[list[Action | None], str]:
    """Return what is predicted to help; the playbook where nothing can be predicted, or after a device OOM.

    Where contexts are evicted as well, and the engine with its sessions cannot be simulated, the cures of both.
    """
    forecast = None if case.device_oom else with_sessions(case)
    choice = None if forecast is None else forecast.printed(case)
    if choice is not None and choice.steps:
        return _cures_of_eviction(case, choice), ""
    actions, reason = _with_room_for_what_runs(case)
    if case.symptom("evicting") is not True:
        return actions, reason
    beside, why = evicted(case, forecast)
    return _both(actions, beside), reason or why


def _both(actions: Sequence[Action | None], beside: Sequence[Action | None]) -> list[Action | None]:
    """Return all of the first, then those of the others that do something else; what checks all of it comes last."""
    first, then = ([action for action in some if action is not None] for some in (actions, beside))
    done = {action.key for action in first} | {rollout.VERIFY}
    last = [action for action in first if action.key == rollout.VERIFY]
    return [
        *(action for action in first if action not in last),
        *(action for action in then if action.key not in done),
        *last,
    ]


def _with_room_for_what_runs(case: Case) -> tuple[list[Action | None], str]:
    forecast = forecast_of(case)
    routed, choice = route(case, forecast.model), forecast.printed(case)
    if forecast.model is None or choice is None or case.device_oom:
        after_oom = "a server that keeps dying of device memory is not simulated" if case.device_oom else ""
        return [routed, *_by_the_playbook(case, forecast)], forecast.reason or after_oom
    return [routed, *as_predicted(case, forecast.model, choice)], ""


def _by_the_playbook(case: Case, forecast: Forecast) -> list[Action | None]:
    """Return the playbook's actions: demand first, then memory, then one rollout of all of it.

    After a device OOM the memory target comes before the engine's own limits: it treats what kills the server, and
    the pool it leaves decides how many sequences fit.
    """
    sequences, steps = batch.fewer_sequences(case), batch.smaller_steps(case)
    memory_step = _with_pool(case, forecast, memory_headroom(case))
    changes: list[Action | None] = [memory_step, steps, sequences]
    if not case.device_oom:
        changes = [sequences, memory_step, steps if case.symptom("memory_rising") is True else None]
    changes.append(cache.more_reserve(case))
    return [
        edge.cap_tokens(case),
        None if case.device_oom else replicas(case, None, NO_POOL),
        *changes,
        rollout.apply_changes(case, changes),
        rollout.host_memory(case),
        rollout.controlled_restart(case),
        rollout.verify_recovery(case),
    ]


def _with_pool(case: Case, forecast: Forecast, action: Action) -> Action:
    """Return the action with the predicted effect of the pool that the memory target leaves."""
    change = memory(case)
    if forecast.model is None or change is None or not action.flags:
        return action
    return replace(action, expected=forecast.model.expected([], [change]))


def after_device_oom(case: Case) -> list[Action | None]:
    """Return the actions after the GPU ran out of memory while the KV pool was not the problem."""
    changes: list[Action | None] = [memory_headroom(case), batch.smaller_steps(case)]
    return [*changes, rollout.apply_changes(case, changes), rollout.controlled_restart(case)]


def building(case: Case) -> tuple[list[Action | None], str]:
    """Return the actions for a healthy engine whose pool fills at a steady rate."""
    cap = edge.cap_tokens(case) if case.diagnosis.stage is Stage.BUILDING else None
    return [] if cap is None else [cap, rollout.verify_recovery(case)], ""


def evicted(case: Case, forecast: Forecast | None = None) -> tuple[list[Action | None], str]:
    """Return what to do about contexts that are evicted and computed again, the most helpful first.

    Fewer of them for each pool, or a pool that keeps more; each is priced by itself, by the `forecast` where it is made
    already.
    """
    forecast = forecast or of_eviction(case)
    if (choice := forecast.printed(case)) is not None:
        return _cures_of_eviction(case, choice), ""
    hits = _hits_check(case)
    cures = [make(case, hits) for make in _CURES_OF_EVICTION.values()]
    return [route(case), *cures, cache.measure_evictions(case), _verify_hits(case, hits)], forecast.reason


def reserved(case: Case) -> tuple[list[Action | None], str]:
    """Return what admits requests for which there is room: a smaller reserve, then a larger pool."""
    changes = [cache.less_reserve(case), _larger_pool(case, "")]
    actions = [
        edge.ask_less(case),
        *changes,
        rollout.apply_changes(case, changes),
        replicas(case, None, NO_POOL),
        rollout.host_memory(case),
        rollout.controlled_restart(case),
        rollout.verify_recovery(case),
    ]
    return actions, "what is reserved for answers is not simulated"


def _cures_of_eviction(case: Case, choice: Choice) -> list[Action | None]:
    hits = _hits_check(case)
    made = [_as_priced(case, hits, step) for step in choice.steps]
    return [route(case), *made, cache.measure_evictions(case), declined(case, choice), _verify_hits(case, hits)]


def _hits_check(case: Case) -> str:
    now = at(case.derived, "prefix_cache_hit_ratio")
    least = 0.5 if now is None else min(0.9, now + (1.0 - now) / 2)
    return rollout.expected(case, "prefix_cache_hit_ratio", ">=", least)


def _verify_hits(case: Case, hits: str) -> Action:
    return Action(
        key=rollout.VERIFY,
        title="Verify recovery",
        why="Only sessions that come back show whether the cache keeps their contexts.",
        checks=rollout.no_longer(case, "kv_cache_pressure", "10 minutes of the usual traffic", hits),
    )


def _as_priced(case: Case, hits: str, step: Step) -> Action | None:
    """Return one cure of eviction with what it does by itself; None where the runtime cannot."""
    value = number(step.change.value)
    if step.change.key == "add_replica":
        why = "Each of them then keeps the contexts of its own sessions: send each session always to the same one."
        return replica(case, why, int(step.change.value), step.expected)
    action = _CURES_OF_EVICTION[step.change.key](case, hits)
    if action is None:
        return None
    if step.change.key == SESSIONS:
        action = replace(action, new=f"at most {value} sessions at a time", value=step.change.value)
    if step.change.key == OFFLOAD:
        action = replace(action, new=f"{value} GiB for each GPU of a replica", flags=case.own.flags.set(OFFLOAD, value))
    return replace(action, expected=step.expected)


def _larger_pool(case: Case, _: str) -> Action | None:
    action = memory_headroom(case)
    return action if action.flags else None


_CURES_OF_EVICTION: Final[dict[str, Callable[[Case, str], Action | None]]] = {
    SESSIONS: edge.fewer_sessions,
    KV_DTYPE: cache.small_kv_for_contexts,
    MEMORY: _larger_pool,
    OFFLOAD: cache.tier_for_contexts,
}
"""In the order in which they are listed where none is priced: what needs no restart first."""


def as_predicted(case: Case, model: Model, choice: Choice) -> list[Action | None]:
    """Return what needs no restart, then the other steps by how much they help, one rollout of their flags, the rest.

    What is declined comes last.
    """
    at_once = without_restart(case, model)
    later = [step for step in choice.steps if step.change.key not in _WITHOUT_RESTART]
    steps = (*at_once.steps, *later)
    together = None
    if len(steps) > 1 and sum(step.change.by > 1 for step in steps) < 2:
        together = model.expected([], [step.change for step in steps])
    beside = _beside_gpus(case, model, steps)
    at_once_steps = [*at_once.steps, *(step for step in beside if step.change.key in _WITHOUT_RESTART)]
    later += [step for step in beside if step.change.key not in _WITHOUT_RESTART]
    now = [_MAKE[step.change.key](case, model, step) for step in at_once_steps]
    changes = [_MAKE[step.change.key](case, model, step) for step in later if step.change.key not in _LAST]
    for_last = [_MAKE[step.change.key](case, model, step) for step in later if step.change.key in _LAST]
    kinds = {step.change.key for step in (*at_once_steps, *later)}
    declined_ones = {step.change.key: step for step in (*choice.declined, *at_once.declined)}
    choice = replace(choice, declined=tuple(sentence for key, sentence in declined_ones.items() if key not in kinds))
    calm = not kinds and case.replicas == 1 and bool(model.known.demand.rate)
    return [
        enough(case, model) if calm else None,
        *now,
        *changes,
        rollout.apply_changes(case, changes),
        *for_last,
        rollout.host_memory(case),
        rollout.controlled_restart(case),
        None if choice.step(MEMORY) else leave_memory(case),
        declined(case, choice),
        rollout.verify_recovery(
            case,
            None if together is None else as_shown(case.derived, case.thresholds, together),
        ),
    ]


def _beside_gpus(case: Case, model: Model, steps: Sequence[Step]) -> list[Step]:
    """Return the best step that needs no GPU where one of `steps` does, and none of them is it; none where none helps.

    One that needs a restart stands beside replicas only, as the flags of `steps` are for one rollout.
    """
    others = {step.change.key for step in steps if step.change.by == 1}
    if len(others) == len(steps) or (best := without_gpu(case, model)) is None:
        return []
    at_once = best.change.key in _WITHOUT_RESTART
    return [best] if not others or (at_once and best.change.key not in others) else []


def declined(case: Case, choice: Choice | None) -> Action | None:
    """Return the action that lists the changes which would not help, each simulated alone; None without any.

    Of those whose effect this page leaves open it says so.
    """
    if choice is None or not choice.declined:
        return None
    sure = [step for step in choice.declined if not step.expected.doubt]
    refusals = [(f"{_described(case, step)}: {step.against}", step.expected.text) for step in sure]
    lines = [f"{what} ({effect})" if effect else what for what, effect in refusals]
    why = [f"{SIMULATED_ALONE}{'; '.join(lines)}."] if lines else []
    for doubt in dict.fromkeys(step.expected.doubt for step in choice.declined if step.expected.doubt):
        words = [_described(case, step) for step in choice.declined if step.expected.doubt == doubt]
        why.append(f"Whether {' or '.join(words)} would help {UNPREDICTABLE}{doubt}.")
    return Action(
        key="would_not_help",
        title="Do not change these: they would not help" if sure else "It is not known whether these would help",
        why=" ".join(why),
    )


def _described(case: Case, step: Step) -> str:
    value, unlike = number(step.change.value), step.expected.hit_ratio is None
    words = {
        "cap_prompt": f"prompts at most {value}",
        "cap_output": f"answers at most {value}",
        "watermark": f"{step.change.value:.0%} of the pool kept free for those that run",
        KV_DTYPE: "an fp8 KV cache",
        "add_replica": f"{value} replicas",
        HOLD: "more at once than run now",
        ROUTE_BY_LENGTH: f"{step.change.by} servers of which {step.change.long} for prompts beyond {value}",
        SHORT_FIRST: f"prompts up to {value} before longer ones",
        PREFIX_CACHING: "prefix caching (without what prompts may share)",
        OFFLOAD: f"{value} GiB of host memory for {'preempted KV' if unlike else 'evicted contexts'}",
        SESSIONS: f"at most {value} sessions at a time",
    }
    return words.get(step.change.key) or f"{case.own.words.limits[step.change.key]} {value}"


_MAKE: Final[dict[str, Callable[[Case, Model, Step], Action]]] = {
    "cap_prompt": edge.cap_prompts,
    "cap_output": edge.cap_answers,
    "max_num_seqs": batch.fewer_sequences_as_predicted,
    "watermark": cache.watermark,
    STEP: batch.smaller_steps_as_predicted,
    MEMORY: lambda case, _, step: replace(memory_headroom(case), expected=step.expected),
    KV_DTYPE: cache.small_kv,
    "add_replica": replicas_as_predicted,
    SHORT_FIRST: edge.by_priority,
    ROUTE_BY_LENGTH: keep_apart,
    PREFIX_CACHING: cache.caching,
    OFFLOAD: cache.tier,
}
