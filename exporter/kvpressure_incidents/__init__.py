"""Looks back: the past that a Prometheus holds of engines, through the same diagnosis as the present."""
