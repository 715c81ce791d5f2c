"""PURE: page bytes to EnginePage. `page` scans, one table per runtime (`vllm`, ...) says what to read."""
