"""Our exporter against a real vLLM on the CPU: `make e2e-vllm`, or `python -m tests.e2e_vllm`.

pytest collects nothing here: the run takes a quarter of an hour, and its environment several GB.
"""
