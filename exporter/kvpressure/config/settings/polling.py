"""How engines are reached: intervals, TLS and authentication. Secrets are only ever named by the file they are in."""

from __future__ import annotations

from pathlib import Path
from typing import Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator, model_validator

from kvpressure.config.settings.types import Boolean, Integer, Label, Number

DERIVED: Final = "derived"
"""Key under which a field whose default depends on another one says how."""


class Section(BaseModel):
    """A frozen group of settings; unknown keys are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True, validate_default=False)


class TlsSettings(Section):
    """TLS towards engines. The files are read again when they change."""

    ca_file: Path | None = Field(default=None, description="CA certificates to trust instead of the system's.")
    cert_file: Path | None = Field(default=None, description="Client certificate.")
    key_file: Path | None = Field(default=None, description="Key of the client certificate.")
    server_name: Label = Field(
        default="", description="Name expected in the server's certificate, if not the URL's host."
    )
    insecure_skip_verify: Boolean = Field(default=False, description="Accept any server certificate.")

    @model_validator(mode="after")
    def _pair(self) -> TlsSettings:
        if (self.cert_file is None) != (self.key_file is None):
            raise ValueError("needs cert_file and key_file together")
        return self


class BasicAuthSettings(Section):
    """Basic auth towards engines."""

    username: Label = Field(description="User name.")
    password_file: Path = Field(description="File that holds the password; read again when it changes.")


class ClientSettings(Section):
    """How to authenticate to engines."""

    tls: TlsSettings | None = Field(default=None, description="TLS towards the engine.")
    bearer_token_file: Path | None = Field(
        default=None, description="File that holds a bearer token; read again on change."
    )
    basic_auth: BasicAuthSettings | None = Field(
        default=None, description="Basic auth; not together with a bearer token."
    )

    @field_validator("basic_auth")
    @classmethod
    def _one_auth(cls, value: BasicAuthSettings | None, info: ValidationInfo) -> BasicAuthSettings | None:
        if value is not None and info.data.get("bearer_token_file") is not None:
            raise ValueError("cannot be combined with bearer_token_file: keep one of the two")
        return value


class PollSettings(ClientSettings):
    """How engines are polled; its tls, bearer_token_file and basic_auth hold for every target without its own."""

    interval_seconds: Number = Field(default=1.0, ge=0.2, le=60, description="Time between two polls of an engine.")
    timeout_seconds: Number = Field(
        default=10.0,
        gt=0,
        le=120,
        description="Deadline of one request. It may be longer than the interval: polls that would begin meanwhile are "
        "skipped and counted.",
    )
    histogram_interval_seconds: Number = Field(
        default_factory=lambda data: max(6.0, data.get("interval_seconds", 1.0)),
        ge=0.2,
        le=60,
        description="Time between two polls that ask for histograms too.",
        json_schema_extra={DERIVED: "6, or poll.interval_seconds when that is longer"},
    )
    max_page_bytes: Integer = Field(
        default=8 << 20, ge=64 << 10, le=64 << 20, description="Longest page that is read, after decompression."
    )
    filter: Literal["auto", "always", "never"] = Field(
        default="auto",
        description="Ask engines for the needed series only (`name[]`): where they honour it, always, or never.",
    )

    @field_validator("histogram_interval_seconds")
    @classmethod
    def _not_below_interval(cls, value: float, info: ValidationInfo) -> float:
        interval = info.data.get("interval_seconds", value)
        if value < interval:
            raise ValueError(f"must be at least poll.interval_seconds ({interval:g}), got {value:g}")
        return value
