"""Settings: `kvpressure.yaml`, environment and flags, checked together and frozen."""

from __future__ import annotations

from kvpressure.config.files import read_text
from kvpressure.config.settings.load import FLAGS, load_settings
from kvpressure.config.settings.model import GpuSettings, Settings, WebSettings, with_sections
from kvpressure.config.settings.polling import (
    BasicAuthSettings,
    ClientSettings,
    FileSdSettings,
    PollSettings,
    TlsSettings,
)
from kvpressure.config.settings.types import ListenAddress, parse_listen_address
from kvpressure.config.strict_yaml import ConfigError, Problem

__all__ = [
    "FLAGS",
    "BasicAuthSettings",
    "ClientSettings",
    "ConfigError",
    "FileSdSettings",
    "GpuSettings",
    "ListenAddress",
    "PollSettings",
    "Problem",
    "Settings",
    "TlsSettings",
    "WebSettings",
    "load_settings",
    "parse_listen_address",
    "read_text",
    "with_sections",
]
