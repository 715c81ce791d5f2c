"""The prevention checklist as it is written, instead of computed limits: `--thresholds playbook`."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from kvpressure_planner.audit.checks.context import number, traffic
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
_WHY: Final = "a smaller share makes the KV cache smaller, which is why the computed limit is not lower"


def judged(check: str, engine: Engine, computed: Verdict) -> Verdict:
    """Return the playbook's verdict on a check; where it differs from the computed one it says why."""
    names = EXPLICIT.get(check, ())
    given = engine.reading.limits.keys() | engine.reading.unclear.keys()
    if names and computed.status != "fail" and given.isdisjoint(names):
        reason = f"not declared, and the playbook wants it explicit; computed: {computed.status}, {computed.reason}"
        return replace(computed, status="fail", reason=reason)
    if check == "memory-target" and computed.status == "pass":
        limit = engine.reading.limits.get("gpu_memory_utilization")
        share = engine.runtime.planning.memory_share if limit is None else limit.value
        most = MOST_SHARE_LONG if traffic(engine) & {"long", "bursty"} else MOST_SHARE
        if share > most:
            reason = f"{number(share)} is above {most}, the playbook's most; computed: {computed.reason}; {_WHY}"
            return replace(computed, status="fail", reason=reason)
    return computed
