"""Where an engine publishes its KV events."""

from __future__ import annotations

from pydantic import Field

from kvpressure.config.settings.polling import Section
from kvpressure.config.settings.types import Integer, Label


class KvEventsSettings(Section):
    """KV events that the engine publishes on its own host (`--kv-events-config`); data-parallel rank n at port + n."""

    port: Integer = Field(
        default=5557,
        ge=1,
        le=65535,
        description="Port of `endpoint` of the engine's `--kv-events-config`. Needs "
        "`pip install 'kv-pressure-exporter[kv-events]'`.",
    )
    replay_port: Integer | None = Field(
        default=None,
        ge=1,
        le=65535,
        description="Port of its `replay_endpoint`, which is asked for events that were missed; without it, what was "
        "evicted before them is forgotten.",
    )
    topic: Label = Field(default="", description="Only messages whose topic begins so; its `topic`.", max_length=200)
    ranks: Integer = Field(default=1, ge=1, le=64, description="Data-parallel ranks that publish there.")
