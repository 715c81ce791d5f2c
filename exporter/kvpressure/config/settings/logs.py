"""Whether and where engines' logs are read."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Final

from pydantic import AfterValidator, Field, model_validator

from kvpressure.config.settings.polling import Section
from kvpressure.config.settings.types import Directory, Integer, Switch, TargetName

_UNIT: Final = re.compile(r"[A-Za-z0-9_.:@\\][A-Za-z0-9_.:@\\-]*")


def journal_unit(text: str) -> str:
    """Check the name of a systemd unit. Raises ValueError."""
    if not _UNIT.fullmatch(text):
        raise ValueError("must be the name of a systemd unit, such as llama.service")
    return text


JournalUnit = Annotated[str, AfterValidator(journal_unit)]


class LogFileSettings(Section):
    """The log of one engine on a machine without Kubernetes: a file or a journal unit."""

    target: TargetName = Field(description="Name of the target whose log it is.")
    path: Directory | None = Field(default=None, description="The log file; it may be rotated.")
    journal_unit: JournalUnit | None = Field(
        default=None, description="The systemd unit whose journal is read, through `journalctl`."
    )

    @model_validator(mode="after")
    def _one_place(self) -> LogFileSettings:
        if (self.path is None) == (self.journal_unit is None):
            raise ValueError("needs either path or journal_unit")
        return self


class LogsSettings(Section):
    """The engines' log lines, counted by kind."""

    enabled: Switch = Field(
        default="auto", description="Read logs: `auto` (when the directory exists or files are given), `true`, `false`."
    )
    directory: Directory = Field(default=Path("/var/log/pods"), description="Where the kubelet keeps containers' logs.")
    link_directories: tuple[Directory, ...] = Field(
        default=(),
        description="Further directories that symbolic links in `directory` may lead into, "
        "such as /var/lib/docker/containers; links to anywhere else are not followed.",
    )
    max_bytes_per_second: Integer = Field(
        default=1024 * 1024,
        ge=16 * 1024,
        le=64 * 1024 * 1024,
        description="Bytes read per second of each container's log; of a larger backlog the oldest part is skipped.",
    )
    files: tuple[LogFileSettings, ...] = Field(default=(), description="Logs on a machine without Kubernetes.")
