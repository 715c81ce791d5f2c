"""How well lost tokens are told: calm, then trouble on vLLM's own scheduler, beside the same with room for all."""
