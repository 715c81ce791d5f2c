"""Settings: `kvpressure.yaml`, environment and flags, checked together and frozen."""

from __future__ import annotations

from kvpressure.config.settings.canary import CanarySettings
from kvpressure.config.settings.engines import EngineSettings, FileSdSettings, TargetLabels, TargetSettings
from kvpressure.config.settings.layers import CONFIG_FLAG, FLAGS
from kvpressure.config.settings.load import load_settings
from kvpressure.config.settings.model import (
    GpuSettings,
    LimitSettings,
    LogSettings,
    Settings,
    WebSettings,
    with_sections,
)
from kvpressure.config.settings.polling import BasicAuthSettings, ClientSettings, PollSettings, TlsSettings
from kvpressure.config.settings.reference import settings_reference
from kvpressure.config.settings.types import ListenAddress, parse_listen_address
from kvpressure.config.small_file import read_text
from kvpressure.config.strict_yaml import ConfigError, Problem

__all__ = [
    "CONFIG_FLAG",
    "FLAGS",
    "BasicAuthSettings",
    "CanarySettings",
    "ClientSettings",
    "ConfigError",
    "EngineSettings",
    "FileSdSettings",
    "GpuSettings",
    "LimitSettings",
    "ListenAddress",
    "LogSettings",
    "PollSettings",
    "Problem",
    "Settings",
    "TargetLabels",
    "TargetSettings",
    "TlsSettings",
    "WebSettings",
    "load_settings",
    "parse_listen_address",
    "read_text",
    "settings_reference",
    "with_sections",
]
