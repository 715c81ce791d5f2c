"""A small vLLM scheduler and GPU on a virtual clock, serving pages that vLLM could have served.

Seeded and deterministic: the same scenario and seed give the same bytes. It imports nothing of ours but `samples`.
"""
