"""The alerts that people use today, as the benchmark judges them: those that `incidents` asks a Prometheus for too."""

from __future__ import annotations

from typing import Final

from kvpressure.tools.incidents.judged_alerts import MEMORY, PREEMPTIONS, TODAY, USAGE, Rule

TODAY_SERIES: Final = frozenset({USAGE, PREEMPTIONS, "vllm:num_requests_waiting"})
"""What of vLLM's page these ask for."""

__all__ = ["MEMORY", "PREEMPTIONS", "TODAY", "TODAY_SERIES", "USAGE", "Rule"]
