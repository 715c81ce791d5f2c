"""What must be seen after a change, and within how long, in terms of our series."""

from __future__ import annotations

import re

from kvpressure.advice.case import Case, Place
from kvpressure.model.severity import CALM, TROUBLE
from kvpressure.model.values import at, number
from kvpressure.model.verdict import Stage

Lines = tuple[str, ...]


def series(name: str, place: Place, **labels: str) -> str:
    r"""Return a PromQL selector for the engine, by labels that a rollout does not change: never its pod.

    >>> series("score", Place(namespace="prod", model_name='a"b'), kind="e2e")
    'kvpressure_score{namespace="prod",model_name="a\\"b",kind="e2e"}'
    """
    target = "" if place.namespace or place.in_kubernetes else place.target
    wanted = {"target": target, "namespace": place.namespace, "model_name": place.model_name, **labels}
    escaped = {key: re.sub(r'(["\\])', r"\\\1", value).replace("\n", "\\n") for key, value in wanted.items() if value}
    chosen = ",".join(f'{key}="{value}"' for key, value in escaped.items())
    return f"kvpressure_{name}" + (f"{{{chosen}}}" if chosen else "")


def expected(case: Case, name: str, sign: str, bound: float, path: tuple[str, ...] = (), **labels: str) -> str:
    """Return one comparison that must hold, with the current value."""
    now = at(case.derived, name, *path)
    seen = "" if now is None else f"  # now {number(now)}"
    return f"{series(name, case.place, **labels)} {sign} {number(bound).replace(',', '')}{seen}"


def unblocked(case: Case) -> str:
    """Return the check that few polls see requests that are not admitted."""
    return expected(case, "admission_blocked_ratio", "<", case.thresholds.admission_blocked_min_ratio)


def unpreempted(case: Case) -> str:
    """Return the check that few requests are preempted."""
    return expected(case, "preempted_request_ratio", "<", case.thresholds.preempting_min_ratio)


def after_restart(case: Case) -> Lines:
    """Return the checks of a change for requests that did not fit: they are admitted, and stay."""
    return "Within 2 minutes of the restart:", unblocked(case), unpreempted(case)


def recovered(case: Case, sequences: int | None = None, *, shared: bool = False) -> Lines:
    """Return the checks that KV pressure is over; with a new `max_num_seqs`, the batch cannot be larger than that.

    Where the traffic is `shared` with another server, neither batch nor tokens of this one need be what they were.
    """
    batch = at(case.derived, "effective_batch_size_quantile", "0.95")
    tokens = at(case.derived, "tokens_per_second", "generation")
    lines = [
        "Within 2 minutes of traffic on the restarted server, and then for 5 minutes on end, each gives a result:",
        f"{series('bottleneck', case.place, cause='kv_cache_pressure')} == 0",
        unblocked(case),
        unpreempted(case),
    ]
    if batch is not None and not shared:
        bound = batch if sequences is None else min(batch, 0.9 * sequences)
        lines.append(expected(case, "effective_batch_size_quantile", ">=", bound, ("0.95",), quantile="0.95"))
    if tokens is not None and not shared and case.symptom("batch_collapse"):
        lines.append(expected(case, "tokens_per_second", ">=", tokens, ("generation",), kind="generation"))
    return (*lines, "If one of them is not so, ask again: what to do next follows from what the server does then.")


def no_longer(case: Case, cause: str, within: str, *more: str) -> Lines:
    """Return the checks that a cause is over within a time, and `more` holds."""
    return (f"Within {within}:", f"{series('bottleneck', case.place, cause=cause)} == 0", *more)


def with_open_check(case: Case, checks: Lines) -> Lines:
    """Return `checks` with at least one that fails now: one that passes before any change proves nothing.

    What fails while a cause holds is that it does not; and while pressure is only predicted, that nothing is.
    """
    if not any("kvpressure_" in line for line in checks):
        return checks
    if case.diagnosis.stage is Stage.BUILDING and case.diagnosis.cause in CALM:
        wanted = f"absent({series('kv_exhaustion_seconds', case.place)})"
    elif case.diagnosis.cause not in TROUBLE:
        return checks
    else:
        wanted = f"{series('bottleneck', case.place, cause=case.diagnosis.cause.value)} == 0"
    return checks if wanted in checks else (checks[0], wanted, *checks[1:])
