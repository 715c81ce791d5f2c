"""Settings: `kvpressure.yaml`, environment and flags, checked together and frozen."""

from __future__ import annotations

from kvpressure.settings.engines import EngineSettings, FileSdSettings, TargetLabels, TargetSettings
from kvpressure.settings.layers import CONFIG_FLAG, FLAGS
from kvpressure.settings.load import load_settings
from kvpressure.settings.model import GpuSettings, LimitSettings, LogSettings, Settings, WebSettings
from kvpressure.settings.polling import BasicAuthSettings, ClientSettings, PollSettings, TlsSettings
from kvpressure.settings.reference import settings_reference
from kvpressure.settings.types import ListenAddress, parse_listen_address
from kvpressure.small_file import read_text
from kvpressure.strict_yaml import ConfigError, Problem

__all__ = [
    "CONFIG_FLAG",
    "FLAGS",
    "BasicAuthSettings",
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
]
