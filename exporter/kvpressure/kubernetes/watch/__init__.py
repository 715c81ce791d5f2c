"""Engines of this node as the API server tells them: targets, container states, events, memory pressure."""
