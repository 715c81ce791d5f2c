"""More demand buys no more tokens."""

from __future__ import annotations

from kvpressure.diagnosis.inputs import Inputs
from kvpressure.model.verdict import Evidence

NAME = "throughput_plateau"


def judge(inputs: Inputs) -> Evidence:
    """Judge the derived series of the same name."""
    value, rate = inputs.value("throughput_plateau"), inputs.value("tokens_per_second", "generation")
    if value is None:
        return Evidence(NAME, None, "not known: less than a window of traffic seen")
    text = "" if rate is None else f"{rate:.0f} tokens/s generated, "
    grows = "demand grows or queues and tokens do not" if value else "tokens follow demand"
    return Evidence(NAME, value > 0, text + grows, value, 1.0)
