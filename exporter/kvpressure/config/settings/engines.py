"""Which engines are watched: fixed targets and file_sd."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import Field, model_validator

from kvpressure.config.settings.kv_events import KvEventsSettings
from kvpressure.config.settings.polling import DERIVED, ClientSettings, Section
from kvpressure.config.settings.types import (
    BY_ITS_PAGE,
    BaseUrl,
    Boolean,
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


class CanarySettings(Section):
    """Requests of one token, which tell whether an engine that seems to hang, or stays idle, still answers."""

    enabled: Boolean = Field(
        default=False,
        description="Send such requests: `POST /v1/completions` (`/v1/embeddings` where the model cannot generate), "
        "never more than one at a time to an engine, none while it sleeps or is paused.",
    )
    idle_seconds: Number = Field(
        default=30.0,
        ge=10,
        le=3600,
        description="Ask an engine that has had traffic once its page has been idle for so long: "
        "one that has lost its queue looks idle.",
    )
    interval_seconds: Number = Field(
        default=60.0, ge=30, le=3600, description="Time between two requests while nothing else happens."
    )
    api_key_file: Path | None = Field(
        default=None,
        description="File that holds the engines' API key, sent as bearer token instead of the target's own "
        "credentials. Never sent to a pod that was found: name the key in kubernetes.bearer_token_file for those.",
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

    kv_events: KvEventsSettings | None = Field(
        default=None,
        description="Read the engine's KV events, which tell exactly what was evicted and computed again; `{}` for the "
        "defaults. Unset: they are not read.",
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
