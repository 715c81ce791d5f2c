"""The whole of the settings. `docs/configuration.md` is rendered from these models.

House rules: names carry units, `*_file` keys are paths, secrets are only ever named by the file they are in.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Final, Literal, cast

from kvpressure.config.settings.kubernetes import KubernetesSettings
from kvpressure.config.settings.polling import Conflicts, EngineSettings, PollSettings, below
from kvpressure.config.settings.section import Section, Within, derived, fields_of
from kvpressure.config.settings.types import (
    Directory,
    JournalUnit,
    Label,
    ListenAddress,
    ListenAddresses,
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
    interval_seconds: Annotated[float, Within(1, 300)] = 10.0
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

    def conflicts(self) -> Conflicts:
        """Yield none or both of the two places."""
        if (self.path is None) == (self.journal_unit is None):
            yield ("", "path", "journal_unit"), "needs either path or journal_unit"


class LogsSettings(Section):
    """The engines' log lines, counted by kind."""

    enabled: Switch = "auto"
    """Read logs: `auto` (when the directory exists or files are given), `true`, `false`."""
    directory: Directory = Path("/var/log/pods")
    """Where the kubelet keeps containers' logs."""
    link_directories: tuple[Directory, ...] = ()
    """Further directories that symbolic links in `directory` may lead into, such as /var/lib/docker/containers; links
    to anywhere else are not followed."""
    max_bytes_per_second: Annotated[int, Within(16 * 1024, 64 * 1024 * 1024)] = 1024 * 1024
    """Bytes read per second of each container's log; the oldest part of a larger backlog is skipped."""
    files: tuple[LogFileSettings, ...] = ()
    """Logs on a machine without Kubernetes."""


class ExpositionSettings(Section):
    """Which series are exported."""

    profile: Literal["full", "fleet"] = "full"
    """`full`: all series. `fleet`: at most 15 per healthy engine, none of GPUs; docs/scaling.md."""


class HostSettings(Section):
    """CPU pressure of this machine, and CPU throttling of the engines' containers."""

    enabled: bool = True
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
    interval_seconds: Annotated[float, Within(0.2, 60)] = 1.0
    """Time between two readings."""
    gpm: bool = True
    """Read SM, tensor and DRAM activity if the card and privileges allow it."""
    price_per_hour: Annotated[float, Within(0, 1e6, above=True)] | None = None
    """Price of one GPU per hour; the page then shows the cost of incidents."""
    currency: Label = "USD"
    """Currency of `price_per_hour`, as shown on the page."""


class LimitSettings(Section):
    """Bounds on what is kept and exported; each time one is reached is counted."""

    max_targets: Annotated[int, Within(1, 4096)] = 256
    """Targets polled."""
    max_engines: Annotated[int, Within(1, 16384)] = 512
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
    window_seconds: Annotated[float, Within(20, 600)] = derived(
        "60, or 4 times poll.interval_seconds when that is longer",
        lambda settings: max(60.0, 4 * settings.poll.interval_seconds),
    )
    """The window of derived series; at least four polls."""
    long_window_seconds: Annotated[float, Within(20, 3600)] = 600.0
    """The long window, in which lengths of requests are known; at least window_seconds."""
    staleness_seconds: Annotated[float, Within(0.5, 300)] = derived(
        "10, or 3 times the longer of poll.interval_seconds and gpu.interval_seconds",
        lambda settings: max(10.0, 3 * settings.longer_interval_seconds),
    )
    """Age at which a reading is dropped and its series disappear; at least two polls. An engine's page may always be as
    old as poll.timeout_seconds + 3 times poll.interval_seconds: slow is not gone."""
    thresholds_file: Path | None = None
    """Overrides of single thresholds: `name: value`."""
    _config_file: Path | None = None

    @property
    def single_machine(self) -> bool:
        """Whether no engines were configured at all: serve an engine on localhost:8000 and every GPU found."""
        return self.engines == EngineSettings()

    @property
    def config_file(self) -> Path | None:
        """The file these settings were read from, None when there was none."""
        return self._config_file

    def with_file(self, file: Path | None) -> Settings:
        """Return these settings with the file they were read from."""
        return replace(self, _config_file=file)

    @property
    def longer_interval_seconds(self) -> float:
        """The longer of the times between readings of engines and of GPUs."""
        return max(self.poll.interval_seconds, self.gpu.interval_seconds)

    @property
    def watched_files(self) -> tuple[Path, ...]:
        """Files whose change means a reload; the web configuration and file_sd watch their own."""
        return tuple(path for path in (self.config_file, self.thresholds_file) if path is not None)

    def conflicts(self) -> Conflicts:
        """Yield windows that are too short for the times between readings."""
        window, polls = self.window_seconds, "4 times poll.interval_seconds"
        yield from below(("window_seconds",), window, 4 * self.poll.interval_seconds, polls)
        keys = "long_window_seconds", "window_seconds"
        yield from below(keys, self.long_window_seconds, window, "window_seconds")
        least, longer = 2 * self.longer_interval_seconds, "the longer of poll.interval_seconds and gpu.interval_seconds"
        yield from below(("staleness_seconds",), self.staleness_seconds, least, f"2 times {longer}")


def with_sections(sections: Mapping[str, type[Section]]) -> type[Settings]:
    """Return the settings' model with the `sections` that it lacks: a source brings its own."""
    more = {name: section for name, section in sections.items() if name not in fields_of(Settings)}
    if not more:
        return Settings
    defaults = {name: section() for name, section in more.items()}
    body = {"__annotations__": more, "__doc__": Settings.__doc__, "__module__": __name__, **defaults}
    return cast("type[Settings]", type("Settings", (Settings,), body))
