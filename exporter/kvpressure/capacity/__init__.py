"""PURE: how much fits a GPU before anything runs: weights, KV cache, requests, and the flags that follow."""
