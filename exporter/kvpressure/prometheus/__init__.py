"""Engines as a Prometheus has them: its client, and their pages put together from its series."""
