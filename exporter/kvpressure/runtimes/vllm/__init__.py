"""vLLM: the only place, beside the simulator of one, that knows its names."""

from kvpressure.runtimes.vllm.runtime import RUNTIME

__all__ = ["RUNTIME"]
