"""TensorRT-LLM, as trtllm-serve and as a backend of Triton, from its source (1.2 and later); no server was run."""

from __future__ import annotations

from typing import Final

from kvpressure.runtimes.runtime import Asking, Runtime
from kvpressure.runtimes.trtllm.advice import ADVICE, AUDIT, PLANNING
from kvpressure.runtimes.trtllm.launch import STARTING
from kvpressure.runtimes.trtllm.metrics import EVIDENCE, LOGS, TRTLLM

RUNTIME: Final = Runtime(
    name="trtllm",
    title="TensorRT-LLM",
    table=TRTLLM,
    starting=STARTING,
    logs=LOGS,
    advice=ADVICE,
    audit=AUDIT,
    planning=PLANNING,
    asking=Asking(page="/prometheus/metrics"),
    evidence=EVIDENCE,
)
