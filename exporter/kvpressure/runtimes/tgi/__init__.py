"""Text Generation Inference, from its source and documentation (router and launcher 3.3); no server was run."""

from __future__ import annotations

from typing import Final

from kvpressure.runtimes.runtime import Runtime
from kvpressure.runtimes.tgi.advice import ADVICE, AUDIT, PLANNING
from kvpressure.runtimes.tgi.launch import STARTING
from kvpressure.runtimes.tgi.metrics import EVIDENCE, LOGS, TGI

RUNTIME: Final = Runtime(
    name="tgi",
    title="TGI",
    table=TGI,
    starting=STARTING,
    logs=LOGS,
    advice=ADVICE,
    audit=AUDIT,
    planning=PLANNING,
    evidence=EVIDENCE,
)
