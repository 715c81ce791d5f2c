"""KV cache pressure: the emergency order of the playbook, with computed values."""

from __future__ import annotations

from dataclasses import replace

from kvpressure.advice.case import Case
from kvpressure.advice.expectations import explained
from kvpressure.advice.forecast import Forecast, forecast_of, memory
from kvpressure.advice.memory import memory_headroom
from kvpressure.advice.predicted import as_predicted
from kvpressure.advice.replicas import route
from kvpressure.advice.rollout import apply_changes, controlled_restart, host_memory
from kvpressure.advice.shell import look_again
from kvpressure.advice.sizing import Caps, Cut, Shape, cut_sequences, fits, share_above, token_caps
from kvpressure.advice.verify import VERIFY, expected, recovered
from kvpressure.model.action import Action
from kvpressure.model.values import at, number
from kvpressure.runtimes.advising import Change
from kvpressure.simulation.config_changes import STEP


def kv_pressure(case: Case) -> list[Action | None]:
    """Return what is predicted to help; the playbook where nothing can be predicted, or after a device OOM."""
    forecast = forecast_of(case)
    routed = route(case, forecast.model)
    if forecast.model is None or forecast.choice is None or case.device_oom:
        return [routed, *_by_the_playbook(case, forecast)]
    return [routed, *as_predicted(case, forecast.model, forecast.choice)]


def _by_the_playbook(case: Case, forecast: Forecast) -> list[Action | None]:
    """Return the playbook's actions: demand first, then memory, then one rollout of all of it.

    After a device OOM the memory target comes before the engine's own limits: it treats what kills the server, and
    the pool it leaves decides how many sequences fit.
    """
    sequences, batched = fewer_sequences(case), fewer_batched_tokens(case)
    memory_step = _with_pool(case, forecast, memory_headroom(case))
    short = case.device_oom or case.symptom("memory_rising") is True
    changes: list[Action | None] = [memory_step, batched, sequences] if case.device_oom else [sequences, memory_step]
    if short and not case.device_oom:
        changes.append(batched)
    allowed = int(next(iter(sequences.flags.values()))) if sequences else None
    changes += [more_reserve(case)]
    actions = [
        cap_tokens(case),
        *changes,
        apply_changes(case, changes),
        host_memory(case),
        controlled_restart(case),
        verify_recovery(case, allowed),
    ]
    after_oom = "a server that keeps dying of device memory is not simulated" if case.device_oom else ""
    return [*explained(actions, case.diagnosis.cause, forecast.reason or after_oom)]


def _with_pool(case: Case, forecast: Forecast, action: Action) -> Action:
    """Return the action with the predicted effect of the pool that the memory target leaves."""
    change = memory(case)
    if forecast.model is None or change is None or not action.flags:
        return action
    return replace(action, expected=forecast.model.expected([], [change]))


def after_device_oom(case: Case) -> list[Action | None]:
    """Return the actions after the GPU ran out of memory while the KV pool was not the problem."""
    changes: list[Action | None] = [memory_headroom(case), fewer_batched_tokens(case)]
    return [*changes, apply_changes(case, changes), controlled_restart(case)]


def cap_tokens(case: Case) -> Action:
    """Limit prompt and answer lengths where requests come in: the only step that needs no restart."""
    if case.shape is None or case.capacity is None:
        return Action(
            key="cap_tokens",
            title="Cap tokens at the edge",
            why="Long requests fill the pool. Their lengths are not known: too few requests have finished.",
            cost="Longer prompts are refused, longer answers end early.",
            commands=("# at the gateway: limit max_tokens and the length of prompts",),
        )
    return _computed_caps(case, case.shape, case.capacity)


def _computed_caps(case: Case, shape: Shape, capacity: float) -> Action:
    caps = _caps(case, shape, capacity)
    total = caps.input_tokens + caps.output_tokens
    without_gateway = case.own.caps(total, caps.output_tokens)
    enough = fits(capacity, total)
    each = case.request_p95 or 0.0
    refused = share_above(caps.input_tokens, shape.prompt_p50, shape.prompt_p95)
    ended = share_above(caps.output_tokens, shape.output_p50, shape.output_p95)
    held = at(case.derived, "kv_tokens_per_request") or total
    when = "" if shape.recent else " (since the server started)"
    long_ones_run = held > case.thresholds.advice_long_ones_run_min_factor * total
    reason = (
        f"requests that run now hold {number(round(held))} tokens each, those that ended {number(round(each))} "
        f"(p95{when}): the long ones fill the pool of {number(capacity)}."
        if long_ones_run
        else f"{caps.wanted} requests, up to twice what runs, of {number(round(each))} tokens (p95{when}) need "
        f"{number(round(caps.wanted * each))}; the pool holds {number(capacity)}."
    )
    too = ", counted by those that have ended; the long ones that run now would be too" if long_ones_run else ""
    verdict = (
        f"Within these limits {enough} fit."
        if enough >= caps.wanted
        else f"Even within these limits only {enough} fit, and lower ones would refuse too many: the pool is too small "
        "for this traffic, and only more KV memory or shorter requests will end this for good."
    )
    return Action(
        key="cap_tokens",
        title="Cap tokens at the edge",
        current=_declared_caps(case, shape),
        new=f"prompts {number(caps.input_tokens)}, answers {number(caps.output_tokens)}",
        why=f"{reason} {verdict}",
        cost=f"Up to {refused:.0%} of the prompts are refused and up to {ended:.0%} of the answers end early "
        f"(finish_reason length){too}. Lengths are read out of coarse buckets: it may be none.",
        checks=(
            "Within 5 minutes, without a restart:",
            expected(case, "admission_blocked_ratio", "<", case.thresholds.admission_blocked_min_ratio),
            expected(case, "kv_tokens_per_request", "<", min(held, total)),
        ),
        commands=(
            f"# at the gateway: prompts at most {caps.input_tokens} tokens, max_tokens at most {caps.output_tokens}",
            f"# without a gateway, as flags of {case.place.title} (restart): {without_gateway}",
        ),
    )


def _caps(case: Case, shape: Shape, capacity: float) -> Caps:
    running, waiting = (at(case.derived, f"requests_{state}") or 0.0 for state in ("running", "waiting"))
    most = case.thresholds.advice_refused_max_ratio
    return token_caps(shape, capacity, running, waiting, most_refused_ratio=most).within(case.limits)


def _declared_caps(case: Case, shape: Shape) -> str:
    declared = (case.limits.max_input_tokens, case.limits.max_output_tokens)
    seen = (f"p95 {number(round(shape.prompt_p95))} seen", f"p95 {number(round(shape.output_p95))} seen")
    prompt, answer = (text if limit is None else str(limit) for limit, text in zip(declared, seen, strict=True))
    return f"prompts {prompt}, answers {answer}"


def fewer_sequences(case: Case) -> Action | None:
    """Cut `max_num_seqs` to what the pool holds of typical requests; None where as many run, or it is not known.

    Only against requests that throw each other out: where they wait without that, the pool holds them back as it is.
    """
    if case.symptom("preempting") is not True or case.shape is None or case.pool_after is None:
        return None
    limit, caps = case.limits.max_num_seqs, _caps(case, case.shape, case.pool_after)
    highest = at(case.derived, "requests_running_max")
    bases = [value for value in (highest, None if limit is None else limit.value) if value]
    each = min(caps.input_tokens + caps.output_tokens, case.shape.prompt_p50 + case.shape.output_p50)
    room = fits(case.pool_after, each)
    cut = cut_sequences(min(bases), room, case.thresholds) if bases else None
    if cut is None:
        return None
    return Action(
        key="max_num_seqs",
        title=f"Cut {case.own.words['max_num_seqs']}",
        current=f"not visible ({case.own.unset['max_num_seqs']})" if limit is None else str(limit),
        new=number(cut.new),
        why=_why_sequences(case, cut, each, room),
        cost="Further requests wait in the queue instead of preempting others. "
        "When requests become shorter again, raise it.",
        checks=(
            "Within 2 minutes of the restart:",
            expected(case, "requests_running_max", "<=", cut.new),
            expected(case, "preempted_request_ratio", "<", case.thresholds.preempting_min_ratio),
        ),
        flags=case.own.change("max_num_seqs", str(cut.new)),
    )


def _why_sequences(case: Case, cut: Cut, each: float, room: int) -> str:
    t, limit = case.thresholds, case.limits.max_num_seqs
    span = f"{t.advice_sequences_cut_min_ratio:.0%} to {t.advice_sequences_cut_max_ratio:.0%}"
    base = f"At most {cut.base} run at once"
    if limit is not None and limit.value > cut.base:
        base += f", so a limit above that ({number(limit.value)} now) holds nothing back"
    shrunk = " left by the lower memory target" if case.pool_after != case.capacity else ""
    pool = f"{number(round(case.pool_after or 0.0))} tokens{shrunk}"
    sum_ = f"{pool} / {number(round(each))} per typical request within the caps = {room} that fit"
    if cut.fewer:
        return f"{base}. {sum_}; one step cuts by {span}, so {cut.new} now, and again if requests are still preempted."
    return f"{base}. {sum_}: a cut of {1.0 - cut.new / cut.base:.0%}, within {span}."


def fewer_batched_tokens(case: Case) -> Action | None:
    """Halve the tokens of a step; None when it is small already."""
    limit, least = case.limits.max_num_batched_tokens, int(case.thresholds.advice_step_tokens_min_tokens)
    if limit is not None and limit.value <= least:
        return None
    keep = 1.0 - case.thresholds.advice_sequences_cut_max_ratio
    new = 2 * least if limit is None else max(least, int(limit.value * keep))
    unknown = " Leave it out if it is set to less already." if limit is None else ""
    return Action(
        key="max_num_batched_tokens",
        title=f"Cut {case.own.words[STEP]}",
        current=f"not visible ({case.own.unset[STEP]})" if limit is None else str(limit),
        new=number(new),
        why=f"{case.own.step_why}{unknown}",
        cost=case.own.step_cost,
        checks=("After the restart, at the same memory target:", _capacity(case)),
        flags=case.own.change(STEP, str(new)),
    )


def more_reserve(case: Case) -> Action | None:
    """Return the change that keeps admitted requests in the batch; None without preemptions, or without such a flag."""
    if case.own.reserve is None or case.symptom("preempting") is not True:
        return None
    calm = expected(case, "preempted_request_ratio", "<", case.thresholds.preempting_min_ratio)
    return changed(case.own.reserve, ("Within 2 minutes of the restart:", calm))


def _capacity(case: Case) -> str:
    return expected(case, "kv_capacity_tokens", ">=", case.pool_after or case.capacity or 1.0)


def verify_recovery(case: Case, sequences: int | None = None) -> Action:
    """Return the action that checks the recovery."""
    return Action(
        key=VERIFY,
        title="Verify recovery",
        why="Only traffic shows whether the pressure is gone: an idle server looks recovered.",
        checks=recovered(case, sequences),
        commands=look_again(case.place),
    )


def changed(change: Change, checks: tuple[str, ...]) -> Action:
    """Return the action that makes the change."""
    return Action(
        key=change.key,
        title=change.title,
        current=change.current,
        new=change.value,
        why=change.why,
        cost=change.cost,
        checks=checks,
        flags={change.flag: change.value},
    )
