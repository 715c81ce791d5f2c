"""vLLM: the only place that knows its names."""

from __future__ import annotations

from typing import Final

from kvpressure.runtimes.runtime import Asking, Runtime
from kvpressure.runtimes.vllm.advice import ADVICE, AUDIT, PLANNING
from kvpressure.runtimes.vllm.launch import KSERVE, PRODUCTION_STACK, STARTING
from kvpressure.runtimes.vllm.logs import LOGS
from kvpressure.runtimes.vllm.metrics import EVIDENCE, VLLM

RUNTIME: Final = Runtime(
    name="vllm",
    title="vLLM",
    table=VLLM,
    starting=STARTING,
    logs=LOGS,
    advice=ADVICE,
    audit=AUDIT,
    planning=PLANNING,
    asking=Asking(
        # `_get_data_parallel_rank` of its serving classes: 0.12 to 0.33 alike.
        rank_header="X-data-parallel-rank",
        dead=(
            "EngineDeadError",
            "EngineCore encountered an issue",
            "The server had an error while processing your request.",  # EngineDeadError.CLIENT_MESSAGE of 0.33
        ),
    ),
    kserve=KSERVE,
    evidence=EVIDENCE,
    charts=(PRODUCTION_STACK,),
    assumed=True,
)
