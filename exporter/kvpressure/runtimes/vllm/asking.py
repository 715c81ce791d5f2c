"""How one vLLM engine is asked for a token."""

from __future__ import annotations

from typing import Final

from kvpressure.runtimes.runtime import Asking

ASKING: Final = Asking(
    # `_get_data_parallel_rank` of its serving classes: 0.12 to 0.33 alike.
    rank_header="X-data-parallel-rank",
    dead=(
        "EngineDeadError",
        "EngineCore encountered an issue",
        "The server had an error while processing your request.",  # EngineDeadError.CLIENT_MESSAGE of 0.33
    ),
)
