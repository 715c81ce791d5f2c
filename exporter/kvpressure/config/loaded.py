"""Settings together with the thresholds they name: what the exporter runs on and `check-config` checks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from kvpressure.config.settings import Settings
from kvpressure.config.small_file import read_text
from kvpressure.config.thresholds import Thresholds, load_thresholds


@dataclass(frozen=True, slots=True)
class Loaded:
    """Settings and thresholds that were read together."""

    settings: Settings
    thresholds: Thresholds


def load(read: Callable[[], Settings]) -> Loaded:
    """Return the settings, and the thresholds with the overrides file that they name. Raises ConfigError."""
    settings = read()
    path = settings.thresholds_file
    if path is None:
        return Loaded(settings, load_thresholds())
    return Loaded(settings, load_thresholds(read_text(path), override_name=str(path)))
