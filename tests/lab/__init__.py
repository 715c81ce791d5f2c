"""The scheduler lab: vLLM's own scheduler, KV cache manager and metrics on a virtual clock; see README.md."""
