"""Everything that is said to a Kubernetes API server: one client for all that asks, at a prompt or on a node."""
