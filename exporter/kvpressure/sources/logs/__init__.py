"""Engines' logs: lines of containers, files and the journal, counted by kind."""

from __future__ import annotations

from kvpressure.sources.logs.source import LogsSource

__all__ = ["LogsSource"]
