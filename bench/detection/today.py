"""The alerts that people use today, as the benchmark judges them: those that `incidents` asks a Prometheus for too."""

from kvpressure.lookback.copied_rules import MEMORY, PREEMPTIONS, TODAY, USAGE, Rule

__all__ = ["MEMORY", "PREEMPTIONS", "TODAY", "USAGE", "Rule"]
