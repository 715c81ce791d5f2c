"""llama.cpp's server, run for real on the CPU (build b10434) and from its source (b11434)."""

from __future__ import annotations

from typing import Final

from kvpressure.runtimes.llamacpp.advice import ADVICE, AUDIT, PLANNING
from kvpressure.runtimes.llamacpp.launch import STARTING
from kvpressure.runtimes.llamacpp.metrics import EVIDENCE, LLAMACPP, LOGS
from kvpressure.runtimes.runtime import Runtime

RUNTIME: Final = Runtime(
    name="llamacpp",
    title="llama.cpp",
    table=LLAMACPP,
    starting=STARTING,
    logs=LOGS,
    advice=ADVICE,
    audit=AUDIT,
    planning=PLANNING,
    evidence=EVIDENCE,
)
