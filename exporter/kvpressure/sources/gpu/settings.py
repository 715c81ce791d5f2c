"""What the GPU sources can be told."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class GpuSettings:
    """Settings of the GPU sources; the defaults serve a real machine, tests shorten the times.

    `vendors` are rows of `backend.BACKENDS`, or ("auto",) for all of them. `library_paths` are searched for vendor
    libraries before the loader's own path.
    """

    vendors: tuple[str, ...] = ("auto",)
    interval_seconds: float = 1.0
    gpm: bool = True
    library_paths: tuple[str, ...] = ()
    detach_seconds: float = 60.0
    start_seconds: float = 30.0
    deadline_seconds: float | None = None
    device_wait_seconds: float | None = None
    device_error_seconds: float = 5.0
    reopen_seconds: float = 30.0
    probe_seconds: float = 60.0
    backoff_min_seconds: float = 1.0
    backoff_max_seconds: float = 30.0

    @property
    def report_deadline_seconds(self) -> float:
        """How long a child that has reported once may stay silent before it is killed."""
        if self.deadline_seconds is not None:
            return self.deadline_seconds
        return max(5.0, 5 * self.interval_seconds)

    @property
    def device_patience_seconds(self) -> float:
        """How long one report waits for its slowest device."""
        return 0.5 * self.interval_seconds if self.device_wait_seconds is None else self.device_wait_seconds
