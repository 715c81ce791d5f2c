"""What to do about causes that are neither pool nor limits: a saturated GPU, the host, a hung or silent server."""

from __future__ import annotations

from kvpressure.advice.case import Case
from kvpressure.advice.forecast import more_gpus
from kvpressure.advice.predicted import declined
from kvpressure.advice.replicas import replicas
from kvpressure.advice.rollout import apply_changes, changed, watch
from kvpressure.advice.shell import more_cpu, replace_stuck, save_evidence, whether_it_runs
from kvpressure.advice.verify import expected, no_longer, series
from kvpressure.model.action import Action
from kvpressure.model.values import at


def compute_bound(case: Case) -> tuple[list[Action | None], str]:
    """Return the actions for a saturated GPU: more of them, or less work per request."""
    busy, most = at(case.derived, "engine_gpu_utilization_ratio"), case.thresholds.gpu_compute_high_min_ratio
    seen = "" if busy is None else f" ({busy:.0%} busy)"
    why = f"The GPU is at work{seen} and the KV cache is not what holds requests back."
    forecast = more_gpus(case)
    less_work = Action(
        key="less_work",
        title="Less work per request",
        why=f"A GPU computes less per request with shorter prompts, {case.own.prefixes} and a quantized model (FP8 "
        f"or AWQ weights). {case.own.words['max_num_seqs']} does not help: more at once is not more per second.",
        cost="A quantized model has to be evaluated before it serves users.",
        checks=("Under the same traffic:", expected(case, "engine_gpu_utilization_ratio", "<", most)),
    )
    return [
        replicas(case, forecast.choice, why),
        less_work,
        declined(case, forecast.choice),
        watch(case, "compute_bound", "5 minutes of traffic on the new replica"),
    ], forecast.reason


def host_bound(case: Case) -> tuple[list[Action | None], str]:
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
    return [*order, apply_changes(case, order), watch(case, "host_bound", "2 minutes of traffic")], ""


def stuck(case: Case) -> tuple[list[Action | None], str]:
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
    ], ""


def silent(case: Case) -> Action:
    """Return the action to check whether the server still runs, before a restart loses its log."""
    return Action(
        key="see_whether_it_runs",
        title="See whether the server still runs, and why it does not answer",
        why="The engine's page cannot be read any more. A crash stands in its log and in its pod's last state; a "
        "server that runs and does not answer is hung, or so busy that its API process never gets to it.",
        cost="A minute.",
        checks=("It answers again once this gives a result:", f"{series('bottleneck_confidence', case.place)} >= 0"),
        commands=whether_it_runs(case.place),
    )
