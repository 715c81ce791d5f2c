"""What cures of eviction were predicted to do, and what they did on vLLM's own scheduler."""
