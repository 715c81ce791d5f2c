"""What to do about causes other than KV pressure: another limit that requests wait for, the GPU, the host, a hang."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Final

from kvpressure.advice import batch
from kvpressure.advice.case import Case
from kvpressure.advice.forecast import more_batch, more_gpus, without_limit
from kvpressure.advice.limits import SEQUENCE_CAPS
from kvpressure.advice.pressure import declined
from kvpressure.advice.replicas import replicas
from kvpressure.advice.rollout import apply_changes, changed, expected, gone, no_longer, series, watch
from kvpressure.advice.shell import look_again, more_cpu, whether_it_runs
from kvpressure.model.action import Action, Expected
from kvpressure.model.values import at, number
from kvpressure.runtimes.runtime import Remedy
from kvpressure.simulation.config_changes import STEP
from kvpressure.simulation.greedy_search import HOLD, Choice

LARGEST_STEP_FACTOR: Final = 2.0
"""`max_num_seqs` is at most doubled at once where nothing is predicted: each step's time grows with it."""
_GATEWAY: Final = Remedy(
    title="raise the gateway's own limit",
    current="not visible",
    new="what holds it back in its EndpointPickerConfig: maxConcurrency of a concurrency-detector, or thresholds that "
    "differ from those in gateways.targets; of Dynamo's frontend --active-decode-blocks-threshold, "
    "--active-prefill-tokens-threshold or --router-queue-threshold",
    why="Requests wait at the gateway or are refused there, and neither the use of the engines' caches nor "
    "their queues is what its thresholds are said to be.",
    cost="More requests at once in each engine: each step takes longer.",
)
_BLIND_GATEWAY: Final = Remedy(
    title="let the gateway read its engines' metrics",
    current="it cannot",
    new="path, port, TLS and labels of its metrics data source as the engines have them; else raise its "
    "metricsStalenessThreshold, or set stalenessPolicy: ignore; its log names the engines",
    why="To its saturation detector an engine whose metrics are missing or old is full, so nothing is sent on "
    "although the engines have room. No limit of its own is reached, and more replicas would be as unreadable.",
    cost="The gateway's configuration, or a restart of it.",
)
_BLIND: Final = "gateway_blind"
NO_ROOM: Final = "Requests wait although the KV pool has room for them."


def concurrency_bound(case: Case) -> tuple[list[Action | None], str]:
    """Raise `max_num_seqs` as far as the pool allows; more servers where it does not. Or another of the limits."""
    if case.diagnosis.detail not in SEQUENCE_CAPS:
        return _another(case)
    forecast = more_batch(case)
    choice = forecast.printed(case)
    if choice is None:
        return _more_sequences(case), forecast.reason
    step = choice.step("max_num_seqs")
    change = None
    if step is not None:
        knee = None if forecast.model is None else forecast.model.known.knee_requests
        change = batch.more_sequences(case, int(step.change.value), step.expected, knee_requests=knee)
    return [
        change,
        apply_changes(case, [change]),
        replicas(case, choice, "The KV pool holds no more requests at once than run, and others wait."),
        declined(case, choice),
        watch(case, "concurrency_bound", "2 minutes of traffic"),
    ], ""


def _more_sequences(case: Case) -> list[Action | None]:
    """Return the actions where nothing can be predicted."""
    limit, room = case.limits.max_num_seqs, case.room
    if limit is None or room is None:
        return [batch.more_sequences_in_steps(case), replicas(case, None, NO_ROOM)]
    new = min(room, math.ceil(batch.demand(case)), int(limit.value * LARGEST_STEP_FACTOR))
    if new <= limit.value:
        why = f"{number(limit.value)} run at once, and no more than {room} fit the KV pool at p95 length."
        return [replicas(case, None, why)]
    change = batch.more_sequences(case, new)
    return [change, apply_changes(case, [change]), watch(case, "concurrency_bound", "2 minutes of traffic")]


def _another(case: Case) -> tuple[list[Action | None], str]:
    """Return the actions for a limit that is not the cap on sequences: the tokens of a step, or an unknown one."""
    if case.diagnosis.detail == _BLIND:
        return [remedied(case, _BLIND_GATEWAY, "concurrency_bound", _BLIND_GATEWAY.why)], ""
    known = case.diagnosis.detail == "prefill_budget" and case.limits.max_num_batched_tokens is not None
    forecast = more_batch(case) if known else without_limit(case)
    choice = forecast.printed(case)
    change, more = _another_limit(case, choice), replicas(case, choice, NO_ROOM)
    return [change, apply_changes(case, [change]), more, declined(case, choice)], forecast.reason


def deferred(case: Case) -> tuple[list[Action | None], str]:
    """Return the action that raises what requests wait for; where that is not known, how to find it out."""
    remedy, forecast = case.own.remedies.details.get(case.diagnosis.detail), without_limit(case)
    choice = forecast.printed(case)
    if remedy is None:
        return [replace(_see(case), expected=_at_best(choice))], ""
    if choice is not None and choice.declined:
        return [_see(case), declined(case, choice)], ""
    change = replace(_raise(case, remedy), expected=_at_best(choice))
    return [change, apply_changes(case, [change])], forecast.reason


def _at_best(choice: Choice | None) -> Expected | None:
    step = choice.step(HOLD) if choice else None
    return None if step is None else step.expected


def _raise(case: Case, remedy: Remedy) -> Action:
    count, flags = _count(case), dict[str, str]()
    if remedy.flag and count is not None and case.observed is not None:
        flags = {remedy.flag: str(count)}
        remedy = replace(
            remedy,
            current=f"{number(case.observed.adapter_slots or 1)} (page)",
            new=remedy.counted.format(count=count),
            why=f"{remedy.why} {number(case.observed.adapters_seen or 0)} were requested since the server started.",
        )
    action = remedied(case, remedy, "deferred", f"{remedy.why} More sequences or a larger KV pool change nothing.")
    commands = more_cpu(case.place) if case.diagnosis.detail == "grammar" else action.commands
    return replace(action, commands=commands, flags=flags)


def remedied(case: Case, remedy: Remedy, cause: str, why: str) -> Action:
    """Return a runtime's remedy as an action against `cause`."""
    return Action(
        key=case.diagnosis.detail,
        title=remedy.title[:1].upper() + remedy.title[1:],
        current=remedy.current,
        new=remedy.new,
        why=why,
        cost=remedy.cost,
        checks=no_longer(case, cause, "2 minutes after the change"),
        commands=look_again(case.place),
    )


def _count(case: Case) -> int | None:
    """Return slots for all requested adapters, at most as many as to raise at once; None if not known."""
    slots, adapters = (case.observed.adapter_slots, case.observed.adapters_seen) if case.observed else (None, None)
    if not slots or not adapters or adapters <= slots:
        return None
    return int(min(adapters, case.thresholds.advice.raise_max_factor * slots))


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


def _another_limit(case: Case, choice: Choice | None) -> Action | None:
    """Return the action for a limit other than the sequences'; None where raising it would not help."""
    budget = case.limits.max_num_batched_tokens
    if case.diagnosis.detail == "prefill_budget" and budget is not None:
        step = choice.step(STEP) if choice else None
        if step is None:
            return batch.larger_steps(case, int(2 * budget.value), None) if choice is None else None
        return batch.larger_steps(case, int(step.change.value), step.expected)
    detail = case.diagnosis.detail
    remedy = _GATEWAY if detail == "held_at_gateway" else case.own.remedies.details.get(detail)
    if remedy is not None:
        return remedied(case, remedy, "concurrency_bound", remedy.why)
    return Action(
        key="another_limit",
        title="See which of the scheduler's limits holds requests back",
        why=f"It is not the number of sequences. What else may: {case.own.words.other_limits}; "
        "or a long prompt at the head of the queue that does not fit what is left of a step.",
        cost="A minute.",
        checks=no_longer(case, "concurrency_bound", "2 minutes after the change"),
        commands=look_again(case.place),
        expected=_at_best(choice),
    )


def unknown(case: Case) -> tuple[list[Action | None], str]:
    """Return the actions that get the missing evidence."""
    symptoms = [name for name, evidence in case.diagnosis.symptoms.items() if evidence.state is None]
    why = ["The page is stale, too young, asleep, or lacks the series a verdict needs"]
    why += [f"not judged: {', '.join(symptoms)}"] if symptoms else []
    missing = "".join(f" Missing: {evidence.what} ({evidence.how})." for evidence in case.diagnosis.missing)
    prefix = case.own.server.series
    return [
        Action(
            key="look_longer",
            title="Get the evidence that is missing",
            why=f"{'; '.join(why)}.{missing}",
            cost="A minute.",
            checks=(f"A cause other than unknown; else look at the page itself: it must have {prefix} series.",),
            commands=look_again(case.place),
        )
    ], ""


def unconfirmed(case: Case) -> Action:
    """Return the action that comes before any change while the evidence does not agree with the verdict."""
    floor, confidence = case.thresholds.advice.destructive_min_confidence_ratio, case.diagnosis.confidence
    return Action(
        key="look_longer",
        title="Look again before anything is changed",
        why=f"The newest polls do not support the verdict: its confidence is {confidence:.0%}, and changes are advised "
        f"from {floor:.0%} on. The burst may be over.",
        cost="A minute.",
        checks=(f"A verdict with a confidence of {floor:.0%} or more, or that the cause is gone.",),
        commands=look_again(case.place),
    )


def host_bound(case: Case) -> tuple[list[Action | None], str]:
    """Return the actions for a GPU that waits for the host."""
    slow = f"{series('symptom', case.place, symptom='frontend_slow')} == 0"
    frontends = case.own.remedies.frontends
    servers = None if frontends is None else changed(frontends, ("Within 2 minutes of the restart:", slow))
    cpu = Action(
        key="cpu",
        title="More CPU for the server",
        current="throttled or crowded" if case.symptom("cpu_pressed") else "not known",
        why="The scheduler and the tokenizer compete for cores; a CPU limit stops them in the middle of a step.",
        cost="The node must have the cores to spare.",
        checks=("Within 2 minutes:", gone(case, "cpu_pressed")),
        commands=more_cpu(case.place),
    )
    order: list[Action | None] = [cpu, servers] if case.symptom("cpu_pressed") else [servers, cpu]
    return [*order, apply_changes(case, order), watch(case, "host_bound", "2 minutes of traffic")], ""


_TOKEN: Final = (
    "Give kvpressure the token that the server wants",
    ("The server answers and refuses: its token was changed, or kvpressure has none (bearer_token_file)."),
)
_PATH: Final = (
    "Correct the address of its metrics",
    (
        "Something answers there that is no page of an engine: the path has changed, a proxy answers, or another "
        "server has its port."
    ),
)
_UNREAD: Final = {
    "credentials": _TOKEN,
    "http_401": _TOKEN,
    "http_403": _TOKEN,
    "http_404": _PATH,
    "not_metrics": _PATH,
    "redirect": _PATH,
    "timeout": (
        "See whether the server is stopped or hung",
        (
            "It does not answer: it is stopped (state T in ps; kill -CONT), hung, or so busy that its API process "
            "never gets to it. One that is hung needs a restart, once its log is saved."
        ),
    ),
}
"""Titles and reasons of the first action, by how the last poll ended."""
_FAILS: Final = (
    "Read the server's log: it answers with an error",
    "The server runs, and its metrics page fails: the reason is in its log.",
)
_GONE: Final = (
    "See whether the server still runs, and why it does not answer",
    (
        "The engine's page cannot be read any more. A crash is in its log and in its pod's last state; a "
        "server that runs and does not answer is hung, or so busy that its API process never gets to it."
    ),
)


def silent(case: Case, reason: str = "") -> Action:
    """Return the action to take before a restart loses the log; `reason` is the word of how the last poll ended."""
    title, why = _FAILS if reason.startswith("http_5") else _UNREAD.get(reason, _GONE)
    return Action(
        key="see_whether_it_runs",
        title=title,
        why=why,
        cost="A minute.",
        checks=(
            "It answers again once this gives a result:",
            f"{series('bottleneck_confidence_ratio', case.place)} >= 0",
        ),
        commands=whether_it_runs(case.place),
    )


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
