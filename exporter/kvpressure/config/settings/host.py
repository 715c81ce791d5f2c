"""Whether and where CPU pressure and throttling of this machine are read."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from kvpressure.config.settings.polling import Section
from kvpressure.config.settings.types import Boolean, Directory, Number


class HostSettings(Section):
    """CPU pressure of this machine, and CPU throttling of the engines' containers."""

    enabled: Boolean = Field(default=True, description="Read them.")
    proc_dir: Directory = Field(default=Path("/proc"), description="The host's procfs; only pressure/cpu is read.")
    cgroup_dir: Directory = Field(
        default=Path("/sys/fs/cgroup"), description="The host's control groups; only cpu.stat of containers is read."
    )
    interval_seconds: Number = Field(default=5.0, ge=1, le=60, description="Time between two readings.")
