"""The whole of the settings. `docs/configuration.md` is rendered from these models.

House rules: names carry units, `*_file` keys are paths, secrets are only ever named by the file they are in.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import Field, PrivateAttr, ValidationInfo, create_model, field_validator, model_validator

from kvpressure.config.settings.kubernetes import KubernetesSettings
from kvpressure.config.settings.polling import DERIVED, EngineSettings, PollSettings, Section, at_least
from kvpressure.config.settings.types import (
    Boolean,
    Directory,
    Integer,
    JournalUnit,
    Label,
    ListenAddress,
    ListenAddresses,
    Number,
    ResourceNames,
    Switch,
    TargetName,
    TelemetryPath,
    Vendors,
)

DEFAULT_RESOURCE_NAMES: Final = (
    "nvidia.com/gpu",
    "nvidia.com/gpu.shared",
    "nvidia.com/mig-*",
    "amd.com/gpu",
    "amd.com/?px_nps*",
)
"""`.shared` is what NVIDIA's plugin renames replicas to, `?px_nps*` what AMD's calls partitions (`cpx_nps4`)."""


class PodResourcesSettings(Section):
    """The kubelet's pod-resources API, which reports the GPUs of each container."""

    enabled: Switch = "auto"
    """Query the kubelet; `auto`: if socket_dir exists."""
    socket_dir: Path = Path("/var/lib/kubelet/pod-resources")
    """Directory of `kubelet.sock`. Mount the directory: a restarted kubelet creates a new socket."""
    interval_seconds: Number = Field(default=10.0, ge=1, le=300)
    """Time between two queries."""
    resource_names: ResourceNames = DEFAULT_RESOURCE_NAMES
    """Resources that are GPUs; `*` and `?` stand for any characters."""


class LogFileSettings(Section):
    """The log of one engine on a machine without Kubernetes: a file or a journal unit."""

    target: TargetName
    """Name of the target whose log it is."""
    path: Directory | None = None
    """The log file; it may be rotated."""
    journal_unit: JournalUnit | None = None
    """The systemd unit whose journal is read, through `journalctl`."""

    @model_validator(mode="after")
    def _one_place(self) -> LogFileSettings:
        if (self.path is None) == (self.journal_unit is None):
            raise ValueError("needs either path or journal_unit")
        return self


class LogsSettings(Section):
    """The engines' log lines, counted by kind."""

    enabled: Switch = "auto"
    """Read logs: `auto` (when the directory exists or files are given), `true`, `false`."""
    directory: Directory = Path("/var/log/pods")
    """Where the kubelet keeps containers' logs."""
    link_directories: tuple[Directory, ...] = ()
    """Further directories that symbolic links in `directory` may lead into, such as /var/lib/docker/containers; links
    to anywhere else are not followed."""
    max_bytes_per_second: Integer = Field(default=1024 * 1024, ge=16 * 1024, le=64 * 1024 * 1024)
    """Bytes read per second of each container's log; the oldest part of a larger backlog is skipped."""
    files: tuple[LogFileSettings, ...] = ()
    """Logs on a machine without Kubernetes."""


class ExpositionSettings(Section):
    """Which series are exported."""

    profile: Literal["full", "fleet"] = "full"
    """`full`: all series. `fleet`: at most 15 per healthy engine, none of GPUs; docs/scaling.md."""


class HostSettings(Section):
    """CPU pressure of this machine, and CPU throttling of the engines' containers."""

    enabled: Boolean = True
    """Read them."""
    proc_dir: Directory = Path("/proc")
    """The host's procfs; only pressure/cpu is read."""
    cgroup_dir: Directory = Path("/sys/fs/cgroup")
    """The host's control groups; only cpu.stat of containers is read."""


class WebSettings(Section):
    """The exporter's own HTTP server."""

    listen_address: ListenAddresses = (ListenAddress("", 10405),)
    """Addresses to listen on: `host:port`, `:port` or `[ipv6]:port`; one, or a list."""
    telemetry_path: TelemetryPath = "/metrics"
    """Path under which metrics are served; not `/`, nor below `/-`, `/api`, `/runbooks` or `/targets`."""
    config_file: Path | None = None
    """Web configuration file with TLS and basic auth, in the exporter-toolkit's format."""


class LogSettings(Section):
    """What is logged, and how."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    """Least severe level that is logged."""
    format: Literal["logfmt", "json"] = "logfmt"
    """Format of log lines."""


class GpuSettings(Section):
    """The GPUs of this machine."""

    vendors: Vendors = ("auto",)
    """`auto` (whichever is found), or a list of nvidia, amd; `[]` reads no GPUs."""
    interval_seconds: Number = Field(default=1.0, ge=0.2, le=60)
    """Time between two readings."""
    gpm: Boolean = True
    """Read SM, tensor and DRAM activity if the card and privileges allow it."""
    price_per_hour: Number | None = Field(default=None, gt=0, le=1e6)
    """Price of one GPU per hour; the page then shows the cost of incidents."""
    currency: Label = "USD"
    """Currency of `price_per_hour`, as shown on the page."""


class LimitSettings(Section):
    """Bounds on what is kept and exported; each time one is reached is counted."""

    max_targets: Integer = Field(default=256, ge=1, le=4096)
    """Targets polled."""
    max_engines: Integer = Field(default=512, ge=1, le=16384)
    """Engines (data-parallel ranks) over all targets."""


class Settings(Section):
    """Everything an operator can set. With nothing set, a single machine is served (`single_machine`)."""

    web: WebSettings = WebSettings()
    log: LogSettings = LogSettings()
    poll: PollSettings = PollSettings()
    engines: EngineSettings = EngineSettings()
    gpu: GpuSettings = GpuSettings()
    kubernetes: KubernetesSettings = KubernetesSettings()
    pod_resources: PodResourcesSettings = PodResourcesSettings()
    logs: LogsSettings = LogsSettings()
    host: HostSettings = HostSettings()
    limits: LimitSettings = LimitSettings()
    exposition: ExpositionSettings = ExpositionSettings()
    window_seconds: Number = Field(
        default_factory=lambda data: max(60.0, 4 * _interval(data)),
        ge=20,
        le=600,
        json_schema_extra={DERIVED: "60, or 4 times poll.interval_seconds when that is longer"},
    )
    """The window of derived series; at least four polls."""
    long_window_seconds: Number = Field(default=600.0, ge=20, le=3600)
    """The long window, in which lengths of requests are known; at least window_seconds."""
    staleness_seconds: Number = Field(
        default_factory=lambda data: max(10.0, 3 * _interval(data)),
        ge=0.5,
        le=300,
        json_schema_extra={DERIVED: "10, or 3 times the longer of poll.interval_seconds and gpu.interval_seconds"},
    )
    """Age at which a reading is dropped and its series disappear; at least two polls. An engine's page may always be as
    old as poll.timeout_seconds + 3 times poll.interval_seconds: slow is not gone."""
    thresholds_file: Path | None = None
    """Overrides of single thresholds: `name: value`."""
    _config_file: Path | None = PrivateAttr(None)

    @property
    def single_machine(self) -> bool:
        """Whether no engines were configured at all: serve an engine on localhost:8000 and every GPU found."""
        return not {"targets", "file_sd"} & self.engines.model_fields_set

    @property
    def config_file(self) -> Path | None:
        """The file these settings were read from, None when there was none."""
        return self._config_file

    def with_file(self, file: Path | None) -> Settings:
        """Return these settings with the file they were read from."""
        copy = self.model_copy()
        copy._config_file = file  # noqa: SLF001 - its own class
        return copy

    @property
    def watched_files(self) -> tuple[Path, ...]:
        """Files whose change means a reload; the web configuration and file_sd watch their own."""
        return tuple(path for path in (self.config_file, self.thresholds_file) if path is not None)

    @field_validator("window_seconds")
    @classmethod
    def _four_polls(cls, value: float, info: ValidationInfo) -> float:
        return at_least(value, 4 * _interval(info.data, gpu=False), "4 times poll.interval_seconds")

    @field_validator("long_window_seconds")
    @classmethod
    def _not_below_window(cls, value: float, info: ValidationInfo) -> float:
        return at_least(value, info.data.get("window_seconds", value), "window_seconds")

    @field_validator("staleness_seconds")
    @classmethod
    def _two_polls(cls, value: float, info: ValidationInfo) -> float:
        name = "2 times the longer of poll.interval_seconds and gpu.interval_seconds"
        return at_least(value, 2 * _interval(info.data), name)


def with_sections(sections: Mapping[str, type[Section]]) -> type[Settings]:
    """Return the settings' model with the `sections` that it lacks: a source brings its own."""
    more: dict[str, Any] = {
        name: (model, model()) for name, model in sections.items() if name not in Settings.model_fields
    }
    return create_model("Settings", __base__=Settings, __doc__=Settings.__doc__, **more) if more else Settings


def _interval(data: dict[str, Any], *, gpu: bool = True) -> float:
    # A section that failed its own checks is missing here; its problem is already reported.
    poll = data["poll"].interval_seconds if "poll" in data else 0.2
    return max(poll, data["gpu"].interval_seconds) if gpu and "gpu" in data else poll
