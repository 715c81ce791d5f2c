"""Our exporter against a real vLLM on the CPU: `make e2e-vllm`, or `python -m tests.e2e_vllm`.

pytest collects only the tests of its tables and its judge: the run takes half an hour, and its environment several GB.
"""
