"""The host's CPU pressure and the throttling of containers."""

from __future__ import annotations

from kvpressure.sources.host.source import HostSource

__all__ = ["HostSource"]
