"""Whether and how the kubelet is asked which container holds which GPU."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from kvpressure.config.settings.polling import Section
from kvpressure.config.settings.types import Directory, Integer, Number, Switch, TargetName

DEFAULT_RESOURCE_NAMES: Final = (
    "nvidia.com/gpu",
    "nvidia.com/gpu.shared",
    "nvidia.com/mig-*",
    "amd.com/gpu",
    "amd.com/?px_nps*",
)
"""`.shared` is what NVIDIA's plugin renames replicas to, `?px_nps*` what AMD's calls partitions (`cpx_nps4`)."""

_RESOURCE_NAME: Final = re.compile(r"[A-Za-z0-9.*?-]+/[A-Za-z0-9._*?-]+")


def _resource_name(text: str) -> str:
    if not _RESOURCE_NAME.fullmatch(text):
        raise ValueError(f"must be a resource name such as nvidia.com/gpu, may have * and ?, got {text!r}")
    return text


def _split(value: Any) -> Any:
    items = [item.strip() for item in value.split(",")] if isinstance(value, str) else value
    if items in ([], (), [""]):
        raise ValueError("must have at least one entry")
    return items


ResourceNames = Annotated[tuple[Annotated[str, AfterValidator(_resource_name)], ...], BeforeValidator(_split)]


class PodResourcesSettings(Section):
    """The kubelet's pod-resources API, which says which container holds which GPU."""

    enabled: Switch = Field(default="auto", description="Ask the kubelet; `auto`: once socket_dir is there.")
    socket_dir: Path = Field(
        default=Path("/var/lib/kubelet/pod-resources"),
        description="Directory of `kubelet.sock`. Mount the directory: a restarted kubelet makes a new socket.",
    )
    interval_seconds: Number = Field(default=10.0, ge=1, le=300, description="Time between two questions.")
    keep_seconds: Number = Field(
        default=300.0, ge=0, le=3600, description="How long the last answer holds while the kubelet does not answer."
    )
    resource_names: ResourceNames = Field(
        default=DEFAULT_RESOURCE_NAMES, description="Resources that are GPUs; `*` and `?` stand for any characters."
    )


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
