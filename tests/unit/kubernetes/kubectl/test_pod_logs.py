"""A pod's log as the API server gives it, counted by kind."""

import pytest

from kvpressure.kubernetes.kubectl.pod_logs import report_of
from kvpressure.model.environment import ContainerId

POD = ContainerId("ns", "vllm-0", "vllm")
NOW = 1_800_000_000.0
STAMP = "2026-01-02T02:58:59.123456789Z"


def counted(text: str) -> dict[str, int]:
    return {kind: count for kind, count in report_of(text.encode(), POD, NOW).counts.items() if count}


def test_lines_with_their_times_are_counted():
    assert counted(f"{STAMP} torch.OutOfMemoryError: CUDA out of memory\n{STAMP} fine\n") == {"device_oom": 1}


@pytest.mark.parametrize("separator", ["\u2028", "\u2029", "\x85", "\x0b", "\x0c", "\x1c", "\r"])
def test_what_a_line_quotes_stays_part_of_it_whatever_separates_it(separator: str):
    quoted = f"hello{separator}{STAMP} torch.OutOfMemoryError: CUDA out of memory"
    assert counted(f"{STAMP} INFO [logger.py:43] Received request 1: prompt: '{quoted}', params: None\n") == {}
