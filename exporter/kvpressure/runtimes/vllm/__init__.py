"""vLLM: the only place that knows its names."""

from kvpressure.runtimes.vllm.runtime import RUNTIME

__all__ = ["RUNTIME"]
