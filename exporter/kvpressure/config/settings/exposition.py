"""What is exported of what is known."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from kvpressure.config.settings.polling import Section


class ExpositionSettings(Section):
    """Which series are exported."""

    profile: Literal["full", "fleet"] = Field(
        default="full",
        description="`full`: all series. `fleet`: at most 15 of a healthy engine, none of GPUs; docs/scaling.md.",
    )
