"""What prometheus_client says of this process: the standard `process_*`, `python_gc_*` and `python_info` families."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import GC_COLLECTOR, PLATFORM_COLLECTOR, PROCESS_COLLECTOR
from prometheus_client.metrics_core import Metric


class OwnProcess:
    """The library's collectors of process, garbage collector and platform. What cannot be read is left out."""

    def collect(self) -> Iterator[Metric]:
        """Their families, as of now."""
        for collector in (PROCESS_COLLECTOR, GC_COLLECTOR, PLATFORM_COLLECTOR):
            try:
                yield from list(collector.collect())
            except (OSError, ValueError, LookupError, NameError):  # a /proc that is not quite Linux': no page is lost
                continue
