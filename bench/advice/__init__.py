"""The closed loop: advice on vLLM's own scheduler, what was predicted of it, and what it did."""
