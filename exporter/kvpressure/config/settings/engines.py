"""Which engines are watched: fixed targets and file_sd."""

from __future__ import annotations

from typing import Any

from pydantic import Field, model_validator

from kvpressure.config.settings.canary import CanarySettings
from kvpressure.config.settings.polling import DERIVED, ClientSettings, Section
from kvpressure.config.settings.types import (
    BY_ITS_PAGE,
    BaseUrl,
    Gpus,
    HttpPath,
    Label,
    Number,
    Runtime,
    SdPatterns,
    TargetName,
    default_name,
    split_url,
)


class TargetLabels(Section):
    """Labels that say where an engine runs."""

    namespace: Label = Field(default="", description="Kubernetes namespace.")
    pod: Label = Field(default="", description="Kubernetes pod.")


class TargetSettings(ClientSettings):
    """One engine server to poll."""

    url: BaseUrl = Field(
        description="`http://host:port` or `https://host:port`; may carry the path. Not a cloud's metadata service, "
        "nor a name that leads to one or to a link-local address."
    )
    path: HttpPath = Field(default="/metrics", description="Path of the metrics page.")
    name: TargetName = Field(
        default_factory=lambda data: default_name(data.get("url", "")),
        description="The `target` label; must be unique.",
        json_schema_extra={DERIVED: "the URL's host:port"},
    )
    runtime: Runtime = Field(
        default=BY_ITS_PAGE, description="What serves the model: `auto`, or the one whose page is expected."
    )
    labels: TargetLabels = Field(default=TargetLabels(), description="Where the engine runs.")
    gpus: Gpus | None = Field(
        default=None,
        description="GPUs the engine uses: `all`, or a list of uuids or indices. Without it, none are joined to it.",
    )
    kv_bytes_per_token: Number | None = Field(
        default=None,
        gt=0,
        le=1e9,
        description="KV cache bytes of one token over all layers of one rank, if the page does not say.",
    )

    @model_validator(mode="before")
    @classmethod
    def _path_in_url(cls, data: Any) -> Any:
        if not isinstance(data, dict) or not isinstance(data.get("url"), str):
            return data
        try:
            _, path = split_url(data["url"])
        except ValueError:
            return data
        return {**data, "path": path} if path and "path" not in data else data


class FileSdSettings(ClientSettings):
    """Targets listed in files, in Prometheus's file_sd format."""

    files: SdPatterns = Field(description="Files or globs ending in .json, .yml or .yaml.")
    refresh_seconds: Number = Field(default=5.0, ge=1, le=3600, description="Time between two looks at the files.")


class EngineSettings(Section):
    """The engines to watch."""

    targets: tuple[TargetSettings, ...] = Field(default=(), description="Engines at fixed addresses.")
    file_sd: tuple[FileSdSettings, ...] = Field(default=(), description="Engines listed in files that may change.")
    canary: CanarySettings = CanarySettings()
