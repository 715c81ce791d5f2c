"""Whether and where metrics are pushed to."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from kvpressure.config.settings.polling import Section
from kvpressure.config.settings.types import Endpoint, Number


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
