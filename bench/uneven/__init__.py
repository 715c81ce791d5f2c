"""Whether uneven replicas are told: routers on vLLM's own scheduler, and the rules as shipped in promtool."""
