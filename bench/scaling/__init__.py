"""Several autoscalers on the same traffic: engines of vLLM's own scheduler behind a router, on a virtual clock."""
