"""KV cache pressure: what is predicted to help, or the emergency order of the playbook, with computed values."""

from __future__ import annotations

from dataclasses import replace

from kvpressure.advice.batch import fewer_sequences, smaller_steps
from kvpressure.advice.cache import more_reserve, small_kv_for_contexts, tier_for_contexts
from kvpressure.advice.case import Case
from kvpressure.advice.edge import cap_tokens, fewer_sessions
from kvpressure.advice.forecast import Forecast, forecast_of, memory
from kvpressure.advice.memory import memory_headroom
from kvpressure.advice.predicted import as_predicted
from kvpressure.advice.replicas import route
from kvpressure.advice.rollout import apply_changes, controlled_restart, host_memory, verify_recovery
from kvpressure.advice.verify import expected, no_longer
from kvpressure.model.action import Action
from kvpressure.model.values import at
from kvpressure.model.verdict import Stage


def kv_pressure(case: Case) -> tuple[list[Action | None], str]:
    """Return what is predicted to help; the playbook where nothing can be predicted, or after a device OOM."""
    forecast = forecast_of(case)
    routed = route(case, forecast.model)
    if forecast.model is None or forecast.choice is None or case.device_oom:
        after_oom = "a server that keeps dying of device memory is not simulated" if case.device_oom else ""
        return [routed, *_by_the_playbook(case, forecast)], forecast.reason or after_oom
    return [routed, *as_predicted(case, forecast.model, forecast.choice)], ""


def _by_the_playbook(case: Case, forecast: Forecast) -> list[Action | None]:
    """Return the playbook's actions: demand first, then memory, then one rollout of all of it.

    After a device OOM the memory target comes before the engine's own limits: it treats what kills the server, and
    the pool it leaves decides how many sequences fit.
    """
    sequences, steps = fewer_sequences(case), smaller_steps(case)
    memory_step = _with_pool(case, forecast, memory_headroom(case))
    changes: list[Action | None] = [memory_step, steps, sequences]
    if not case.device_oom:
        changes = [sequences, memory_step, steps if case.symptom("memory_rising") is True else None]
    changes.append(more_reserve(case))
    return [
        cap_tokens(case),
        *changes,
        apply_changes(case, changes),
        host_memory(case),
        controlled_restart(case),
        verify_recovery(case, int(next(iter(sequences.flags.values()))) if sequences else None),
    ]


def _with_pool(case: Case, forecast: Forecast, action: Action) -> Action:
    """Return the action with the predicted effect of the pool that the memory target leaves."""
    change = memory(case)
    if forecast.model is None or change is None or not action.flags:
        return action
    return replace(action, expected=forecast.model.expected([], [change]))


def after_device_oom(case: Case) -> list[Action | None]:
    """Return the actions after the GPU ran out of memory while the KV pool was not the problem."""
    changes: list[Action | None] = [memory_headroom(case), smaller_steps(case)]
    return [*changes, apply_changes(case, changes), controlled_restart(case)]


def building(case: Case) -> tuple[list[Action | None], str]:
    """Return the actions for a healthy engine whose pool fills at a steady rate."""
    return [cap_tokens(case), verify_recovery(case)] if case.diagnosis.stage is Stage.BUILDING else [], ""


def evicted(case: Case) -> tuple[list[Action | None], str]:
    """Return what to do about contexts that are evicted and computed again: what needs no restart first.

    Fewer of them for each pool, or a pool that keeps more.
    """
    now = at(case.derived, "prefix_cache_hit_ratio")
    least = 0.5 if now is None else min(0.9, now + (1.0 - now) / 2)
    hits = expected(case, "prefix_cache_hit_ratio", ">=", least)
    larger = memory_headroom(case)
    verify = Action(
        key="verify",
        title="Verify recovery",
        why="Only sessions that come back show whether the cache keeps their contexts.",
        checks=no_longer(case, "kv_cache_pressure", "10 minutes of the usual traffic", hits),
    )
    return [
        route(case),
        fewer_sessions(case, hits),
        small_kv_for_contexts(case, hits),
        larger if larger.flags else None,
        tier_for_contexts(case, hits),
        verify,
    ], "the simulated engine has no prefix cache of finite size, so what a larger one would find is not known"
