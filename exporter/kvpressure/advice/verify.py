"""What must be seen after a change, and within how long, in terms of our series."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from kvpressure.advice.case import Case
from kvpressure.advice.place import Place
from kvpressure.model.severity import CALM, TROUBLE
from kvpressure.model.values import at, number
from kvpressure.model.verdict import Stage

Lines = tuple[str, ...]

VERIFY: Final = "verify"
"""Key of the action that looks whether the others have helped; the last one."""


def series(name: str, place: Place, **labels: str) -> str:
    r"""Return a PromQL selector for the engine, by labels that a rollout does not change: never its pod.

    >>> series("score", Place(namespace="prod", model_name='a"b'), kind="e2e")
    'kvpressure_score{namespace="prod",model_name="a\\"b",kind="e2e"}'
    """
    target = "" if place.namespace or place.in_kubernetes else place.target
    wanted = {"target": target, "namespace": place.namespace, "model_name": place.model_name, **labels}
    chosen = ",".join(f'{key}="{_escaped(value)}"' for key, value in wanted.items() if value)
    return f"kvpressure_{name}" + (f"{{{chosen}}}" if chosen else "")


def _escaped(value: str) -> str:
    return re.sub(r'(["\\])', r"\\\1", value).replace("\n", "\\n")


def expected(case: Case, name: str, sign: str, bound: float, path: tuple[str, ...] = (), **labels: str) -> str:
    """Return one comparison that must hold, with the current value."""
    now = at(case.derived, name, *path)
    seen = "" if now is None else f"  # now {number(now)}"
    return f"{series(name, case.place, **labels)} {sign} {plain(bound)}{seen}"


def plain(value: float) -> str:
    """Return a number as PromQL takes it.

    >>> plain(8160.0), plain(0.5), plain(2.1875)
    ('8160', '0.5', '2.19')
    """
    return f"{value:.0f}" if float(value).is_integer() or abs(value) >= 100 else f"{value:.3g}"


def recovered(case: Case, sequences: int | None = None, *, shared: bool = False) -> Lines:
    """Return the checks that KV pressure is over; with a new `max_num_seqs`, the batch cannot be larger than that.

    Where the traffic is `shared` with another server, neither batch nor tokens of this one need be what they were.
    """
    t = case.thresholds
    batch = at(case.derived, "effective_batch_size_quantile", "0.95")
    tokens = at(case.derived, "tokens_per_second", "generation")
    lines = [
        "Within 2 minutes of traffic on the restarted server, and then for 5 minutes on end, each gives a result:",
        f"{series('bottleneck', case.place, cause='kv_cache_pressure')} == 0",
        expected(case, "admission_blocked_ratio", "<", t.admission_blocked_min_ratio),
        expected(case, "preempted_request_ratio", "<", t.preempting_min_ratio),
    ]
    if batch is not None and not shared:
        path = ("0.95",)
        bound = batch if sequences is None else min(batch, 0.9 * sequences)
        lines.append(expected(case, "effective_batch_size_quantile", ">=", bound, path, quantile="0.95"))
    if tokens is not None and not shared and case.symptom("batch_collapse"):
        lines.append(expected(case, "tokens_per_second", ">=", tokens, ("generation",), kind="generation"))
    return (*lines, "If one of them is not so, ask again: what to do next follows from what the server does then.")


def no_longer(case: Case, cause: str, within: str, *more: str) -> Lines:
    """Return the checks that a cause is over within a time, and `more` holds."""
    return (f"Within {within}:", f"{series('bottleneck', case.place, cause=cause)} == 0", *more)


def rolled_out(changes: Mapping[str, str], logged: str) -> Lines:
    """Return the checks that the new flags are in force; `logged` is where the log names {flags}."""
    flags = ", ".join(changes)
    return (
        "Within 15 minutes the new server is ready (a model of 100 GB loads in 2 to 10 minutes);",
        logged.format(flags=flags),
    )


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
