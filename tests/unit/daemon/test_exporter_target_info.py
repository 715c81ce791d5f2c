"""Which targets have an address beside their name, and what it looks like."""

from __future__ import annotations

import pytest

from kvpressure.config.target import Target
from kvpressure.daemon.exporter import addresses


@pytest.mark.parametrize(
    ("target", "address"),
    [
        (Target("demo", "http://127.0.0.1:41234"), "127.0.0.1:41234"),
        (Target("chat", "http://gpu-1"), "gpu-1:80"),
        (Target("chat", "https://gpu-1:8443"), "https://gpu-1:8443"),
        (Target("gpu-1:8000/llama", "http://gpu-1:8000", "/llama"), "http://gpu-1:8000/llama"),
        (Target("gpu-1:8443", "https://gpu-1:8443"), "https://gpu-1:8443"),
    ],
)
def test_a_target_whose_name_is_not_its_address_has_one(target: Target, address: str) -> None:
    assert addresses([target]) == {target.name: {address: 1.0}}


@pytest.mark.parametrize(
    "target",
    [
        Target("gpu-1:8000", "http://gpu-1:8000"),
        Target("prod/llm-0:8000", "http://10.0.0.9:8000", namespace="prod", pod="llm-0"),
    ],
)
def test_a_pod_and_a_target_called_by_its_address_have_none(target: Target) -> None:
    assert addresses([target]) == {}
