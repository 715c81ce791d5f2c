"""What to do where requests wait for something outside the batch, for another limit, or nobody can tell for what."""

from __future__ import annotations

from dataclasses import replace

from kvpressure.advice.case import Case
from kvpressure.advice.expectations import explained
from kvpressure.advice.forecast import Forecast, without_limit
from kvpressure.advice.predicted import declined
from kvpressure.advice.rollout import apply_changes
from kvpressure.advice.shell import look_again, more_cpu
from kvpressure.advice.verify import no_longer
from kvpressure.model.action import Action
from kvpressure.model.expected import Expected
from kvpressure.model.values import number
from kvpressure.runtimes.advising import Remedy
from kvpressure.simulation.config_changes import STEP
from kvpressure.simulation.greedy_search import HOLD


def deferred(case: Case) -> list[Action | None]:
    """Return the action that raises what requests wait for; where that is not known, how to find it out."""
    remedy, forecast = case.own.remedies.get(case.diagnosis.detail), without_limit(case)
    if remedy is None:
        return [replace(_see(case), expected=_at_best(forecast))]
    if forecast.choice is not None and forecast.choice.declined:
        return [_see(case), declined(case, forecast.choice)]
    change = replace(_raise(case, remedy), expected=_at_best(forecast))
    return [*explained([change, apply_changes(case, [change])], case.diagnosis.cause, forecast.reason)]


def _at_best(forecast: Forecast) -> Expected | None:
    step = forecast.choice.step(HOLD) if forecast.choice else None
    return None if step is None else step.expected


def _raise(case: Case, remedy: Remedy) -> Action:
    compiles, count = case.diagnosis.detail == "grammar", _count(case)
    if remedy.flag and count is not None:
        slots = case.observed.adapter_slots if case.observed else None
        remedy = replace(
            remedy,
            current=f"{number(slots or 1)} (page)",
            new=remedy.counted.format(count=count),
            why=f"{remedy.why} {number(case.observed.adapters_seen or 0) if case.observed else ''} were asked for "
            "since the server started.",
        )
    return Action(
        key=case.diagnosis.detail,
        title=remedy.title[:1].upper() + remedy.title[1:],
        current=remedy.current,
        new=remedy.new,
        why=f"{remedy.why} More sequences or a larger KV pool change nothing.",
        cost=remedy.cost,
        checks=no_longer(case, "deferred", "2 minutes after the change"),
        commands=more_cpu(case.place) if compiles else look_again(case.place),
        flags={remedy.flag: str(count)} if remedy.flag and count is not None else {},
    )


def _count(case: Case) -> int | None:
    """Return slots for all requested adapters, at most as many as to raise at once; None if not known."""
    slots, seen = (case.observed.adapter_slots, case.observed.adapters_seen) if case.observed else (None, None)
    if not slots or not seen or seen <= slots:
        return None
    return int(min(seen, case.thresholds.advice_raise_max_factor * slots))


def _see(case: Case) -> Action:
    return Action(
        key="see_what_is_waited_for",
        title="See what the waiting requests wait for",
        why="The engine has put them off on their own account, and would run others: their grammar is not ready, "
        "no slot is free for their adapter, their KV is still on its way from another pod or an offload tier, or "
        "their image does not fit the encoder's cache. More sequences or a larger KV pool change nothing.",
        cost="A minute.",
        checks=no_longer(case, "deferred", "2 minutes after the change"),
        commands=look_again(case.place),
    )


def another_limit(case: Case, forecast: Forecast) -> Action | None:
    """Return the action for a limit other than the sequences'; None where raising it would not help."""
    budget = case.limits.max_num_batched_tokens
    if case.diagnosis.detail == "prefill_budget" and budget is not None:
        step = forecast.choice.step(STEP) if forecast.choice else None
        if forecast.choice is not None and step is None:
            return None
        new = str(int(2 * budget.value if step is None else step.change.value))
        return Action(
            key="max_num_batched_tokens",
            title=f"Raise {case.own.words['max_num_batched_tokens']}",
            current=str(budget),
            new=new,
            why="Each step's tokens are spent before the queue is through.",
            cost="Larger steps take longer, so each answer's tokens come further apart, and more GPU memory is needed "
            "outside the pool.",
            checks=no_longer(case, "concurrency_bound", "2 minutes of traffic"),
            flags=case.own.change("max_num_batched_tokens", new),
            expected=None if step is None else step.expected,
        )
    remedy = case.own.remedies.get(case.diagnosis.detail)
    if remedy is not None:
        return Action(
            key=case.diagnosis.detail,
            title=remedy.title[:1].upper() + remedy.title[1:],
            current=remedy.current,
            new=remedy.new,
            why=remedy.why,
            cost=remedy.cost,
            checks=no_longer(case, "concurrency_bound", "2 minutes after the change"),
            commands=look_again(case.place),
        )
    return Action(
        key="another_limit",
        title="See which of the scheduler's limits holds requests back",
        why=f"It is not the number of sequences. What else may: {case.own.other_limits or 'its own flags'}; "
        "or a long prompt at the head of the queue that does not fit what is left of a step.",
        cost="A minute.",
        checks=no_longer(case, "concurrency_bound", "2 minutes after the change"),
        commands=look_again(case.place),
        expected=_at_best(forecast),
    )


def unknown(case: Case) -> list[Action | None]:
    """Return the actions that get the missing evidence."""
    symptoms = [name for name, evidence in case.diagnosis.symptoms.items() if evidence.state is None]
    why = ["The page is stale, too young, asleep, or lacks the series a verdict needs"]
    why += [f"not judged: {', '.join(symptoms)}"] if symptoms else []
    wanted = "".join(f" Would tell: {one.what} ({one.how})." for one in case.diagnosis.missing)
    return [
        Action(
            key="look_longer",
            title="Get the evidence that is missing",
            why=f"{'; '.join(why)}.{wanted}",
            cost="A minute.",
            checks=(
                f"A cause other than unknown; else look at the page itself: it must have {case.own.series} series.",
            ),
            commands=look_again(case.place),
        )
    ]
