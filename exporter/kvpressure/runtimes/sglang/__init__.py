"""SGLang, from its documented metrics, server arguments and log lines (0.4 to 0.5)."""

from __future__ import annotations

from typing import Final

from kvpressure.runtimes.runtime import Runtime
from kvpressure.runtimes.sglang.advice import ADVICE, AUDIT, PLANNING
from kvpressure.runtimes.sglang.launch import KSERVE, STARTING
from kvpressure.runtimes.sglang.metrics import EVIDENCE, LOGS, SGLANG

RUNTIME: Final = Runtime(
    name="sglang",
    title="SGLang",
    table=SGLANG,
    starting=STARTING,
    logs=LOGS,
    advice=ADVICE,
    audit=AUDIT,
    planning=PLANNING,
    kserve=KSERVE,
    evidence=EVIDENCE,
)
