"""What to do about causes other than KV pressure: another limit that requests wait for, the GPU, the host, a hang.

Where prefill and decode are apart, the cure is on the side that limits, which need not be the one where requests wait.
For an engine that serves nobody nothing here buys capacity: a server more does not wake it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Final

from kvpressure.advice import batch
from kvpressure.advice.case import Case
from kvpressure.advice.forecast import more_batch, more_gpus, without_limit
from kvpressure.advice.limits import SEQUENCE_CAPS
from kvpressure.advice.pressure import declined
from kvpressure.advice.replicas import replicas
from kvpressure.advice.rollout import apply_changes, changed, expected, generates, gone, no_longer, series, watch
from kvpressure.advice.shell import look_again, more_cpu, replace_stuck, save_evidence, whether_it_runs
from kvpressure.model.action import Action, Expected
from kvpressure.model.values import at, number
from kvpressure.model.verdict import Cause
from kvpressure.model.view import DecodeEngine
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


MAX_NAMED: Final = 3
_NOT_SIMULATED: Final = "what the other side would do is not simulated"
_NOT_HERE: Final = "More KV cache or replicas on the prefill side would only keep more of them."
_SLOW: Final = "transfer"
_OF_TRANSFERS: Final = frozenset({_SLOW, "remote_kv", "external_kv"})
"""Details of `deferred` that wait for what prefill engines computed."""


def held_for_transfer(case: Case) -> tuple[list[Action | None], str]:
    """Return what to do on the decode side, by what its engines' verdicts say; where to look while none is known."""
    short = _named(engine for engine in case.decode_side if engine.cause is Cause.KV_CACHE_PRESSURE)
    slow = _named(
        engine for engine in case.decode_side if engine.cause is Cause.DEFERRED and engine.detail in _OF_TRANSFERS
    )
    if short:
        action = Action(
            key="decode_replica",
            title="Add decode replicas, or KV cache on the decode side",
            why=f"{short} out of KV cache: prompts that are finished here are not read. {_NOT_HERE}",
            cost="Another GPU (or set of GPUs) for as long as it runs; what the decode engines' own advice changes may "
            "cost less.",
            checks=no_longer(case, "kv_cache_pressure", "5 minutes after the decode side has room"),
            commands=look_again(case.place),
        )
    elif slow and (remedy := case.own.remedies.details.get(_SLOW)) is not None:
        why = f"{slow} waiting for transfers. {remedy.why} {_NOT_HERE}"
        action = _network(case, remedy, "kv_cache_pressure", why)
    else:
        action = Action(
            key="see_decode_side",
            title="See why the decode side does not read finished prompts",
            why="Most of the KV cache in use here are prompts that are finished. kv_cache_pressure of the decode "
            "engines: add decode replicas, or KV cache there. deferred: the network between the two is slow. Neither: "
            f"the router lost their requests, or the connector failed (its log). {_NOT_HERE}",
            cost="A minute.",
            checks=no_longer(case, "kv_cache_pressure", "5 minutes after the change"),
            commands=look_again(case.place),
        )
    return [action], _NOT_SIMULATED


def slow_transfer(case: Case) -> tuple[list[Action | None], str]:
    """Return what makes transfers faster; no change of this engine's batch or cache does.

    Where requests spend hardly any of their time in transfer it says so instead.
    """
    remedy, share = case.own.remedies.details.get(_SLOW), _waiting_share(case)
    if remedy is None:
        return [], _NOT_SIMULATED
    if share is None:
        return [_network(case, remedy, "deferred", remedy.why)], _NOT_SIMULATED
    most = f"Requests wait for at most {share:.0%} of their time here: a faster network gains no more than that."
    if share < case.thresholds.advice.gain_min_ratio:
        return [Action(key="would_not_help", title="Leave the network: transfers hardly matter", why=most)], ""
    return [_network(case, remedy, "deferred", f"{remedy.why} {most}")], _NOT_SIMULATED


def _waiting_share(case: Case) -> float | None:
    """Return the share of their time at this engine that requests wait, by how many wait and run (Little's law)."""
    waiting, running = (at(case.derived, f"requests_{state}") for state in ("waiting", "running"))
    return None if waiting is None or running is None or not waiting + running else waiting / (waiting + running)


def _network(case: Case, remedy: Remedy, cause: str, why: str) -> Action:
    action = remedied(case, remedy, cause, why)
    return replace(action, key=_SLOW, checks=no_longer(case, cause, "5 minutes after the change"))


def _named(engines: Iterable[DecodeEngine]) -> str:
    """Return the decode engines as the beginning of a sentence; "" where there is none."""
    found = [engine.target for engine in engines]
    more = f" and {len(found) - MAX_NAMED} more" if len(found) > MAX_NAMED else ""
    named = f"{', '.join(found[:MAX_NAMED])}{more}"
    return f"Decode engine{'s' if len(found) > 1 else ''} {named} {'are' if len(found) > 1 else 'is'}" if found else ""


_WITHIN: Final = "2 minutes after it"


def stuck(case: Case) -> tuple[list[Action | None], str]:
    """Return the actions for a stuck server: save the evidence, end what blocks it where that is known, replace it."""
    cure = _CURES.get(case.diagnosis.detail)
    return [_evidence(case), None if cure is None else cure(case), _restart(case)], ""


def _evidence(case: Case) -> Action:
    symptom = _SYMPTOMS.get(case.diagnosis.detail, "It has requests, and nothing moves")
    return Action(
        key="save_evidence",
        title="First save the evidence: it is gone after the restart",
        why=f"{symptom}: the engine hangs. Its stacks say where.",
        cost="A minute. Reading the stacks does not change the process. py-spy comes from PyPI: where that cannot "
        "be reached, use an image that has it.",
        checks=("stacks.txt, engine.log and page.prom are not empty.",),
        commands=save_evidence(case.place),
    )


def _restart(case: Case) -> Action:
    why = "A hung engine does not come back by itself; the other replicas go on serving."
    if case.diagnosis.detail in _COMES_BACK:
        why = "Where the request is not known, this ends it; but it comes back with its client's next try."
    return Action(
        key="restart",
        title="Replace this server only",
        why=why,
        cost="The requests that wait on it are lost: clients have to send them again.",
        checks=no_longer(
            case,
            case.diagnosis.cause.value,
            "2 minutes after the new server is ready",
            generates(case),
        ),
        commands=replace_stuck(case.place),
    )


def _abort(case: Case) -> Action:
    """Return the action that ends the one request that cannot be served, and refuses the next like it."""
    capacity, words = case.capacity, case.own.words.limits
    least = "the tokens of the KV cache" if capacity is None else f"{number(capacity)} tokens"
    return Action(
        key="abort_request",
        title="End the request that cannot be served, and refuse others like it",
        new=f"prompt and answer below {least}, at the gateway or by {words['max_model_len']}",
        why="A prompt that does not fit the whole cache, or fits it without its answer, is tried for ever, and all "
        "others wait behind it. It ends when its client closes the connection; a restart alone brings it back with "
        "the client's next try.",
        cost="That request is refused: it needs a server with a larger cache.",
        checks=no_longer(case, case.diagnosis.cause.value, _WITHIN),
        commands=look_again(case.place),
    )


def _release(case: Case) -> Action:
    """Return the action that frees blocks which a connector holds."""
    return Action(
        key="release_blocks",
        title="End the requests that hold the cache, then stop or cap the connector",
        new=case.own.words.connector,
        why="Requests that are not in the batch hold blocks that those in the queue need, and neither goes on: KV that "
        "is being loaded or sent is kept until the connector is done with it. Caps on tokens or another server do not "
        "free them.",
        cost="The requests that hold blocks are lost: clients have to send them again.",
        checks=no_longer(case, case.diagnosis.cause.value, _WITHIN),
        commands=look_again(case.place),
    )


def _what_for(case: Case) -> Action:
    return Action(
        key="see_what_is_waited_for",
        title="See what the deferred requests wait for",
        why="All that wait are put off for something outside the batch: KV from another pod or an offload tier, a "
        "grammar, a slot for an adapter. It has not come for minutes. The engine's log names it; where it is another "
        "pod, look at that one first.",
        cost="A minute.",
        checks=no_longer(case, case.diagnosis.cause.value, _WITHIN),
        commands=look_again(case.place),
    )


_CURES: Final[Mapping[str, Callable[[Case], Action]]] = {
    "looping": _abort,
    "too_large": _abort,
    "held_blocks": _release,
    "stranded": _release,
    "deferred": _what_for,
}
"""What ends the stretch without a restart, by detail."""

_SYMPTOMS: Final[Mapping[str, str]] = {
    "held_blocks": "Nothing runs, and requests that do not run hold the cache",
    "stranded": "Nothing runs, and requests that do not run hold the cache",
    "looping": "It computes, and nothing comes of it",
    "trickle": "It has requests, and hardly a token comes",
    "crawling": "Its steps take many times as long as before",
}

_COMES_BACK: Final = frozenset({"looping", "too_large"})
