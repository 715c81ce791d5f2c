"""Putting changes in force: one rollout for all of them, a controlled restart, host memory; and whether it helped.

What must be so after a change, and within how long, is said in terms of our series.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from kvpressure.advice.case import Case, Place
from kvpressure.advice.shell import Lines, apply_flags, flag_words, last_words, look_again, more_host_memory, restart
from kvpressure.model.action import Action, Expected
from kvpressure.model.values import at, number
from kvpressure.model.verdict import Stage
from kvpressure.model.view import CALM, TROUBLE
from kvpressure.runtimes.runtime import Change

VERIFY: Final = "verify"
"""Key of the action that looks whether the others have helped; the last one."""


def apply_changes(case: Case, changes: Sequence[Action | None]) -> Action | None:
    """Return the action that applies all changed flags at once, as each restart costs minutes; None without any."""
    flags = {name: value for change in changes if change is not None for name, value in change.flags.items()}
    if not flags:
        return None
    return Action(
        key="apply",
        title="Apply: save, patch, roll out, watch",
        new=" ".join(flag_words(flags)),
        why="One rollout for all flags: each restart costs minutes.",
        cost="Every replica loads the model again. Without a spare GPU the new pod stays Pending until the old one is "
        "deleted. Argo CD or Flux put the old flags back unless the manifest in Git changes too.",
        checks=(
            "Within 15 minutes the new server is ready (a model of 100 GB loads in 2 to 10 minutes);",
            case.own.words.flags_in_log.format(flags=", ".join(flags)),
        ),
        commands=(*(last_words(case.place) if case.crashing else ()), *apply_flags(case.place, flags)),
        flags=flags,
    )


def controlled_restart(case: Case) -> Action | None:
    """Replace a crashing server in good order; None while nothing crashes."""
    if not case.crashing:
        return None
    return Action(
        key="restart",
        title="Controlled restart of what crashes",
        why="Only if it still crashes with the new limits: replace one server at a time. A restart alone, without "
        "them, brings the same requests and the same crash back.",
        cost="The requests running on it are lost; those of the other replicas are not.",
        checks=(
            "Within 10 minutes:",
            gone(case, "restarting"),
            "and no new out of memory line in the log.",
        ),
        commands=restart(case.place),
    )


def host_memory(case: Case) -> Action | None:
    """Return the action for a container that the kernel killed: host memory, which no flag about the GPU changes."""
    if case.symptom("host_oom") is not True:
        return None
    return Action(
        key="host_memory",
        title="Give the container more host memory",
        why="It was killed for host memory (OOMKilled, exit code 137). That is neither the GPU nor the KV pool, and "
        f"{case.own.words.limits['gpu_memory_utilization']} does not change it; swap space, tokenizers and weights "
        "being loaded do.",
        cost="The node must have it to spare.",
        checks=("Within 10 minutes:", gone(case, "host_oom")),
        commands=more_host_memory(case.place),
    )


def changed(change: Change, checks: tuple[str, ...]) -> Action:
    """Return the action that makes a change of the runtime's own."""
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


def verify_recovery(case: Case, together: Expected | None = None) -> Action:
    """Return the action that checks the recovery from KV pressure; `together` is what all steps before it do."""
    more = "" if together is None else " The expected figures are for all steps above together."
    return Action(
        key=VERIFY,
        title="Verify recovery",
        why=f"Only traffic shows whether the pressure is gone: an idle server looks recovered.{more}",
        checks=recovered(case),
        commands=look_again(case.place),
        expected=together,
    )


def watch(case: Case, cause: str, within: str) -> Action:
    """Return the action that checks that a cause is gone."""
    return Action(
        key=VERIFY,
        title="Verify recovery",
        why="Only traffic shows whether it helped.",
        checks=no_longer(case, cause, within),
        commands=look_again(case.place),
    )


def series(name: str, place: Place, **labels: str) -> str:
    r"""Return a PromQL selector for the engine, by labels that a rollout does not change: never its pod.

    >>> series("score_ratio", Place(namespace="prod", model_name='a"b'), kind="e2e")
    'kvpressure_score_ratio{namespace="prod",model_name="a\\"b",kind="e2e"}'
    """
    target = "" if place.namespace or place.in_kubernetes else place.target
    matchers = {"target": target, "namespace": place.namespace, "model_name": place.model_name, **labels}
    escaped = {key: re.sub(r'(["\\])', r"\\\1", value).replace("\n", "\\n") for key, value in matchers.items() if value}
    chosen = ",".join(f'{key}="{value}"' for key, value in escaped.items())
    return f"kvpressure_{name}" + (f"{{{chosen}}}" if chosen else "")


def expected(case: Case, name: str, sign: str, bound: float) -> str:
    """Return one comparison that must hold, with the current value; "" where it holds already."""
    now = at(case.derived, name)
    if now is not None and _SIGNS[sign](now, bound):
        return ""
    value = "" if now is None else f"  # now {number(now)}"
    return f"{series(name, case.place)} {sign} {number(bound).replace(',', '')}{value}"


_SIGNS: Final[Mapping[str, Callable[[float, float], bool]]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


def gone(case: Case, symptom: str) -> str:
    """Return the check that a symptom is gone; "" where it is not there now."""
    return "" if case.symptom(symptom) is False else f"{series('symptom', case.place, symptom=symptom)} == 0"


def generates(case: Case) -> str:
    """Return the check that tokens are generated; "" where some are."""
    if at(case.derived, "tokens_per_second", "generation"):
        return ""
    return f"rate({series('tokens_total', case.place, kind='generation')}[2m]) > 0"


def unblocked(case: Case) -> str:
    """Return the check that few polls see requests that are not admitted; at a gateway, that its queue is empty."""
    if case.at_gateway:
        return expected(case, "gateway_queue_requests", "<", 1)
    return expected(case, "admission_blocked_ratio", "<", case.thresholds.symptoms.admission_blocked_min_ratio)


def unqueued(case: Case, most: int = 1) -> str:
    """Return the check that fewer requests wait than so many."""
    return expected(case, "requests_waiting", "<", most)


def unpreempted(case: Case) -> str:
    """Return the check that few requests are preempted."""
    return expected(case, "preempted_request_ratio", "<", case.thresholds.symptoms.preempting_min_ratio)


def after_restart(case: Case) -> Lines:
    """Return the checks of a change for requests that did not fit: they are admitted, and stay."""
    return "Within 2 minutes of the restart:", unblocked(case), unpreempted(case)


def recovered(case: Case) -> Lines:
    """Return the checks that KV pressure is over."""
    return (
        "Within 2 minutes of traffic after the change, and then for 5 minutes on end, each holds:",
        f"{series('bottleneck', case.place, cause='kv_cache_pressure')} == 0",
        unblocked(case),
        "" if case.at_gateway else unpreempted(case),
        "If one does not hold, run triage again: the next step depends on what the server does then.",
    )


def no_longer(case: Case, cause: str, within: str, *more: str) -> Lines:
    """Return the checks that a cause is over within a time, and `more` holds."""
    return (f"Within {within}:", f"{series('bottleneck', case.place, cause=cause)} == 0", *more)


def with_open_check(case: Case, checks: Lines) -> Lines:
    """Return `checks` without those that hold already, and at least one that fails now: others prove nothing.

    What fails while a cause holds is that it does not; and while pressure is only predicted, that nothing is.
    """
    held, checks = "" in checks, tuple(filter(None, checks))
    if not held and not any("kvpressure_" in line for line in checks):
        return checks
    if case.diagnosis.detail == "full_pool":
        check = expected(case, "kv_cache_usage_ratio", "<", case.thresholds.symptoms.kv_full_min_ratio)
    elif case.diagnosis.stage is Stage.BUILDING and case.diagnosis.cause in CALM:
        check = f"absent({series('kv_exhaustion_seconds', case.place)})"
    elif case.diagnosis.cause not in TROUBLE:
        return checks
    else:
        check = f"{series('bottleneck', case.place, cause=case.diagnosis.cause.value)} == 0"
    return checks if check in checks else (checks[0], check, *checks[1:])
