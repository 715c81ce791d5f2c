"""What is exported of what is known, and where it is pushed."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from kvpressure.config.settings.polling import Section
from kvpressure.config.settings.types import Endpoint, Number


class ExpositionSettings(Section):
    """Which series are exported."""

    profile: Literal["full", "fleet"] = Field(
        default="full",
        description="`full`: all series. `fleet`: at most 15 of a healthy engine, none of GPUs; docs/scaling.md.",
    )


class OtlpSettings(Section):
    """Push the same series over OTLP/HTTP too, to an OpenTelemetry collector or a Prometheus that receives OTLP."""

    endpoint: Endpoint | None = Field(
        default=None,
        description="Address to which `/v1/metrics` is added, such as `http://collector:4318`; unset: nothing is "
        "pushed. Needs `pip install 'kv-pressure-exporter[otlp]'`.",
    )
    interval_seconds: Number = Field(default=15.0, ge=1, le=300, description="Time between two pushes.")
    timeout_seconds: Number = Field(
        default=10.0, ge=1, le=60, description="How long a push may take, retries included."
    )
    headers_file: Path | None = Field(
        default=None, description="File of headers to send, `Name: value` a line, such as a token's."
    )
    ca_file: Path | None = Field(default=None, description="CA certificates (PEM) to verify the receiver with.")
