"""One clock for vLLM and the lab: `time.time` and `time.monotonic` of the whole process stand still between events."""

import time
from typing import Final

BEGIN: Final = 1_800_000_000.0
BOOTED: Final = BEGIN - 86_400.0
"""When the machine booted: the monotonic clock counts from here."""


class Clock:
    """Unix seconds that move when told. Never install it in a process that does anything beside the lab."""

    def __init__(self) -> None:
        self.now = BEGIN

    def install(self) -> None:
        """Make the process believe it. vLLM and prometheus_client look the functions up in `time` at each call."""
        time.time = lambda: self.now
        time.monotonic = lambda: self.now - BOOTED
        time.monotonic_ns = lambda: round((self.now - BOOTED) * 1e9)
        time.perf_counter = time.monotonic
