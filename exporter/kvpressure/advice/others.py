"""What to do about causes that lie outside the batch: the host, a hung or silent server; and a pool that fills."""

from __future__ import annotations

from kvpressure.advice.case import Case
from kvpressure.advice.pressure import cap_tokens, changed, verify_recovery
from kvpressure.advice.rollout import apply_changes, watch
from kvpressure.advice.shell import more_cpu, replace_stuck, save_evidence, whether_it_runs
from kvpressure.advice.verify import no_longer, series
from kvpressure.model.action import Action
from kvpressure.model.verdict import Stage


def host_bound(case: Case) -> list[Action | None]:
    """Return the actions for a GPU that waits for the host."""
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
    return [*order, apply_changes(case, order), watch(case, "host_bound", "2 minutes of traffic")]


def stuck(case: Case) -> list[Action | None]:
    """Return the actions for a stuck server: save the evidence, then replace it."""
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
    """Return the action to check whether the server still runs, before a restart loses its log."""
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
    """Return the actions for a healthy engine whose pool fills at a steady rate."""
    if case.diagnosis.stage is not Stage.BUILDING:
        return []
    return [cap_tokens(case), verify_recovery(case)]
