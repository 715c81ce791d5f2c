"""SGLang, from its documented metrics, server arguments and log lines (0.4 to 0.5)."""

from kvpressure.runtimes.sglang.runtime import RUNTIME

__all__ = ["RUNTIME"]
