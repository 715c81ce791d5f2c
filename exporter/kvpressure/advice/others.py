"""What to do about the causes that are not KV cache pressure."""

from __future__ import annotations

import math

from kvpressure.advice.case import Case
from kvpressure.advice.changes import changed
from kvpressure.advice.limits import SEQUENCE_CAPS
from kvpressure.advice.pressure import cap_tokens, verify_recovery
from kvpressure.advice.replicas import replica
from kvpressure.advice.rollout import apply_changes
from kvpressure.advice.shell import look_again, more_cpu, replace_stuck, save_evidence, whether_it_runs
from kvpressure.advice.verify import expected, no_longer, series
from kvpressure.advice.waits import another_limit
from kvpressure.model.action import Action
from kvpressure.model.values import at, number
from kvpressure.model.verdict import Stage

LARGEST_STEP_FACTOR = 2.0
"""`max_num_seqs` is at most doubled at once: each step's time grows with it, and that shows only under traffic."""


def concurrency_bound(case: Case) -> list[Action | None]:
    """Raise `max_num_seqs` as far as the pool allows; more servers where it does not. Or another of the limits."""
    if case.diagnosis.detail not in SEQUENCE_CAPS:
        change = another_limit(case)
        more = replica(case, "Requests wait although the KV pool has room for them.")
        return [change, apply_changes(case, [change]), more]
    limit, room = case.limits.max_num_seqs, case.room
    if limit is None or room is None:
        return [_raise_blind(case), replica(case, "Requests wait although the KV pool has room for them.")]
    demand = sum(at(case.derived, f"requests_{state}") or 0.0 for state in ("running", "waiting"))
    new = min(room, math.ceil(demand), int(limit.value * LARGEST_STEP_FACTOR))
    if new <= limit.value:
        why = f"{number(limit.value)} run at once, and no more than {room} fit the KV pool at p95 length."
        return [replica(case, why)]
    change = _raise(case, new, room, demand)
    return [change, apply_changes(case, [change]), _verify(case, "concurrency_bound", "2 minutes of traffic")]


def _raise(case: Case, new: int, room: int, demand: float) -> Action:
    limit, usage = case.limits.max_num_seqs, at(case.derived, "kv_cache_usage_ratio")
    current = limit.value if limit else 1.0
    after = "" if usage is None else f" KV usage goes from {usage:.0%} to about {min(1.0, usage * new / current):.0%}."
    return Action(
        key="max_num_seqs",
        title=f"Raise {case.own.words['max_num_seqs']}",
        current=str(limit),
        new=number(new),
        why=f"{number(round(demand))} requests want to run, {number(current)} may. {number(case.pool_after or 0)} "
        f"tokens / {number(round(case.request_p95 or 1))} per request at p95 = {room} that fit.{after}",
        cost=case.own.sequences_cost,
        checks=(
            "Within 2 minutes of the restart, under the same traffic:",
            expected(case, "requests_running_max", ">", current),
            expected(case, "admission_blocked_ratio", "<", case.thresholds.admission_blocked_min_ratio),
        ),
        flags=case.own.change("max_num_seqs", str(new)),
    )


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
    """The GPU does all it can: more of it, or less work per request."""
    busy = at(case.derived, "engine_gpu_utilization_ratio")
    seen = "" if busy is None else f" ({busy:.0%} busy)"
    return [
        replica(case, f"The GPU is at work{seen} and the KV cache is not what holds requests back."),
        Action(
            key="less_work",
            title="Less work per request",
            why=f"A GPU computes less per request with shorter prompts, {case.own.prefixes} and a quantized model (FP8 "
            f"or AWQ weights). {case.own.words['max_num_seqs']} does not help: more at once is not more per second.",
            cost="A quantized model has to be evaluated before it serves users.",
            checks=("Under the same traffic:", expected(case, "engine_gpu_utilization_ratio", "<", _busy(case))),
        ),
        _verify(case, "compute_bound", "5 minutes of traffic on the new replica"),
    ]


def _busy(case: Case) -> float:
    return case.thresholds.gpu_compute_high_min_ratio


def host_bound(case: Case) -> list[Action | None]:
    """The GPU waits for the host."""
    slow = f"{series('symptom', case.place, symptom='frontend_slow')} == 0"
    frontends = case.own.frontends
    servers = None if frontends is None else changed(frontends, ("Within 2 minutes of the restart:", slow))
    cpu = Action(
        key="cpu",
        title="More CPU for the server",
        current="throttled or crowded" if case.symptom("cpu_pressed") else "not known",
        why="The scheduler and the tokenizer compete for cores; a CPU limit stops them in the middle of a step.",
        cost="The node must have the cores to spare.",
        checks=("Within 2 minutes:", f"{series('symptom', case.place, symptom='cpu_pressed')} == 0"),
        commands=more_cpu(case.place),
    )
    order: list[Action | None] = [cpu, servers] if case.symptom("cpu_pressed") else [servers, cpu]
    return [*order, apply_changes(case, order), _verify(case, "host_bound", "2 minutes of traffic")]


def stuck(case: Case) -> list[Action | None]:
    """Save what tells why, then replace the server."""
    idle = case.diagnosis.detail == "unanswered"
    seen = "Asked for one token, it gave none" if idle else "It has requests, and nothing moves"
    return [
        Action(
            key="save_evidence",
            title="First save what tells why: it is gone after the restart",
            why=f"{seen}: the engine hangs. Its stacks say where.",
            cost="A minute. Reading the stacks does not change the process. py-spy comes from PyPI: where that cannot "
            "be reached, use an image that has it.",
            checks=("stacks.txt, engine.log and page.prom are not empty.",),
            commands=save_evidence(case.place),
        ),
        Action(
            key="restart",
            title="Replace this server only",
            why="A hung engine does not come back by itself; the other replicas go on serving.",
            cost="The requests that wait on it are lost: clients have to send them again.",
            checks=no_longer(
                case,
                "stuck",
                "2 minutes after the new server is ready",
                f"{series('tokens_per_second', case.place, kind='generation')} > 0",
            ),
            commands=replace_stuck(case.place),
        ),
    ]


def silent(case: Case) -> list[Action | None]:
    """See whether the server still runs, before it is restarted and its log is gone."""
    return [
        Action(
            key="see_whether_it_runs",
            title="See whether the server still runs, and why it does not answer",
            why="The engine's page cannot be read any more. A crash stands in its log and in its pod's last state; a "
            "server that runs and does not answer is hung, or so busy that its API process never gets to it.",
            cost="A minute.",
            checks=(
                "It answers again once this gives a result:",
                f"{series('bottleneck_confidence', case.place)} >= 0",
            ),
            commands=whether_it_runs(case.place),
        )
    ]


def building(case: Case) -> list[Action | None]:
    """Healthy, but the pool fills at a steady rate."""
    if case.diagnosis.stage is not Stage.BUILDING:
        return []
    return [cap_tokens(case), verify_recovery(case)]


def _verify(case: Case, cause: str, within: str) -> Action:
    return Action(
        key="verify",
        title="Verify recovery",
        why="Only traffic shows whether it helped.",
        checks=no_longer(case, cause, within),
        commands=look_again(case.place),
    )
