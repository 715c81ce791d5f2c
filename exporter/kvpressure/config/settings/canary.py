"""Whether engines are asked for one token, and when."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from kvpressure.config.settings.polling import Section
from kvpressure.config.settings.types import Boolean, Number


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
