"""Every rule, one file per cause. A new one is a row in its cause's file, and its place in `precedence`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from kvpressure.diagnosis.rule import Rule
from kvpressure.diagnosis.rules import (
    compute_bound,
    concurrency_bound,
    deferred,
    healthy,
    host_bound,
    idle,
    kv_cache_pressure,
    paused,
    stuck,
    unknown,
)

_FILES: Final = (
    paused,
    unknown,
    stuck,
    idle,
    deferred,
    kv_cache_pressure,
    concurrency_bound,
    compute_bound,
    host_bound,
    healthy,
)

BY_ID: Final[Mapping[str, Rule]] = {rule.id: rule for file in _FILES for rule in file.RULES}
