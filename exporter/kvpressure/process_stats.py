"""The standard `process_*` families of this process, from /proc; what cannot be read is left out."""

from __future__ import annotations

import os
import resource
import time
from pathlib import Path

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_STARTED = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)


def process_stats() -> dict[str, float]:
    """Family keys to values, in seconds, bytes and counts."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    values = {
        "process_cpu_seconds_total": usage.ru_utime + usage.ru_stime,
        "process_max_fds": float(resource.getrlimit(resource.RLIMIT_NOFILE)[0]),
    }
    try:
        virtual, resident = Path("/proc/self/statm").read_text().split()[:2]
        values["process_virtual_memory_bytes"] = float(virtual) * _PAGE_BYTES
        values["process_resident_memory_bytes"] = float(resident) * _PAGE_BYTES
        values["process_open_fds"] = float(sum(1 for _ in Path("/proc/self/fd").iterdir()))
        ticks = Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19]
        values["process_start_time_seconds"] = _STARTED + float(ticks) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        pass
    return values
