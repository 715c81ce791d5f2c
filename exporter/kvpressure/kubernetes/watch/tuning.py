"""Times of list and watch, apart so that tests can hurry."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Tuning:
    """How long things may take and how long to wait.

    `watch_seconds`, give or take a fifth, is asked of the API server, which then ends the watch; one that is silent
    for `grace_seconds` longer hangs. `spacing_seconds` is the least time between two watches. Waits after failures
    double from `retry_seconds` to `retry_limit_seconds`, after a refusal (401, 403) to `refused_limit_seconds`. Events
    of deleted pods are shown for `linger_seconds`; an unconfirmed condition of the node for `condition_seconds`.
    """

    page_items: int = 250
    list_seconds: float = 30.0
    open_seconds: float = 15.0
    watch_seconds: int = 240
    grace_seconds: float = 15.0
    spacing_seconds: float = 1.0
    retry_seconds: float = 1.0
    retry_limit_seconds: float = 30.0
    refused_limit_seconds: float = 60.0
    linger_seconds: float = 600.0
    condition_seconds: float = 120.0
