"""vLLM as one record."""

from __future__ import annotations

from typing import Final

from kvpressure.runtimes.runtime import Runtime
from kvpressure.runtimes.vllm.advice import ADVICE, AUDIT, PLANNING
from kvpressure.runtimes.vllm.asking import ASKING
from kvpressure.runtimes.vllm.deploying import KSERVE, PRODUCTION_STACK
from kvpressure.runtimes.vllm.evidence import EVIDENCE
from kvpressure.runtimes.vllm.launch import STARTING
from kvpressure.runtimes.vllm.logs import LOGS
from kvpressure.runtimes.vllm.metrics import VLLM

RUNTIME: Final = Runtime(
    name="vllm",
    title="vLLM",
    table=VLLM,
    starting=STARTING,
    logs=LOGS,
    advice=ADVICE,
    audit=AUDIT,
    planning=PLANNING,
    asking=ASKING,
    kserve=KSERVE,
    evidence=EVIDENCE,
    charts=(PRODUCTION_STACK,),
    assumed=True,
)
