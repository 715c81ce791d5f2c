"""The prevention checklist as it is written, instead of computed limits: `--thresholds playbook`."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from kvpressure.commandline.options import human
from kvpressure.launch import ANNOTATION_PREFIX
from kvpressure_planner.audit.checks import Check
from kvpressure_planner.audit.checks.context import Context, annotation_fix, number, traffic
from kvpressure_planner.audit.checks.evidence import LOAD_TEST
from kvpressure_planner.audit.engine import Engine
from kvpressure_planner.audit.model import Verdict

MOST_SHARE: Final = 0.7
MOST_SHARE_LONG: Final = 0.6
"""For long contexts or bursts."""

EXPLICIT: Final = {
    "input-tokens": ("max_model_len", "max_input_tokens"),
    "output-tokens": ("max_output_tokens",),
    "max-num-seqs": ("max_num_seqs",),
    "max-num-batched-tokens": ("max_num_batched_tokens",),
}
MAX_STREAMS: Final = f"{ANNOTATION_PREFIX}max-streams"
"""Annotation: how many requests the gateway lets in at once; the server itself queues without a bound."""

_TRIED: Final = ("long", "burst")
_WHY: Final = "a smaller share makes the KV cache smaller, which is why the computed limit is not lower"


def judged(check: str, engine: Engine, computed: Verdict) -> Verdict:
    """Return the playbook's verdict on a check; where it differs from the computed one it says why."""
    names = EXPLICIT.get(check, ())
    given = engine.reading.limits.keys() | engine.reading.unclear.keys()
    if names and computed.status != "fail" and given.isdisjoint(names):
        reason = f"not declared, and the playbook wants it explicit; computed: {computed.status}, {computed.reason}"
        return replace(computed, status="fail", reason=reason, once="")
    if (
        check == "load-test"
        and computed.status == "pass"
        and not all(word in computed.reason.lower() for word in _TRIED)
    ):
        reason = f"{computed.reason}: does not say that long prompts and bursts were tried"
        fix = annotation_fix(LOAD_TEST, f"{computed.reason} with long prompts and bursts")
        return replace(computed, status="fail", reason=reason, fix=fix)
    if check == "memory-target" and computed.status != "fail":
        limit = engine.reading.limits.get("gpu_memory_utilization")
        share = engine.runtime.planning.memory_share if limit is None else limit.value
        most = MOST_SHARE_LONG if traffic(engine) & {"long", "bursty"} else MOST_SHARE
        if share > most:
            reason = f"{number(share)} is above {most}, the playbook's most; computed: {computed.reason}; {_WHY}"
            return replace(computed, status="fail", reason=reason, once="")
    return computed


def streams(engine: Engine, context: Context) -> Verdict:  # noqa: ARG001 - every check gets both
    """Check: The number of streams is bounded in front of the server.

    The server queues every request that it cannot run yet, and each waits behind all that came before.
    """
    value = engine.annotations.get(MAX_STREAMS, "").strip()
    if not value:
        reason = f"annotation {MAX_STREAMS} is missing, and {engine.runtime.title} queues without a bound"
        return Verdict("fail", reason, annotation_fix(MAX_STREAMS, "NUMBER") + "  # once the gateway enforces it")
    count = human(value)
    if not count:
        return Verdict("fail", f"{value[:60]!r} is not a number of streams")
    place = engine.annotation_place(MAX_STREAMS)
    return Verdict("pass", f"{number(count)} streams, enforced by the gateway", place=place)


CHECKS: Final[tuple[Check, ...]] = (
    Check("streams", "warning", streams, lambda engine: engine.annotation_place(MAX_STREAMS)),
)
"""What only the playbook asks for."""
