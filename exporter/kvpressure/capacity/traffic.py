"""The traffic a plan is made for."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Traffic:
    """The shape of requests in tokens, at least 1 each; `burstiness` is peak over mean arrivals.

    `concurrency` is the peak number of requests in flight, running and waiting; `held_now` the mean KV tokens of the
    requests that an engine runs at this moment.
    """

    prompt_p95: float
    output_p95: float
    prompt_p50: float | None = None
    output_p50: float | None = None
    concurrency: float | None = None
    burstiness: float | None = None
    held_now: float | None = None

    @property
    def request_p95(self) -> int:
        """Prompt and output of a long request. Both p95 at once is more than the p95 of the sum: on the safe side."""
        return math.ceil(self.prompt_p95) + math.ceil(self.output_p95)

    @property
    def request_p50(self) -> int | None:
        """Prompt and output of a typical request, None unless both are known."""
        if self.prompt_p50 is None or self.output_p50 is None:
            return None
        return math.ceil(self.prompt_p50) + math.ceil(self.output_p50)


def whole_blocks(tokens: float, block_tokens: int) -> int:
    """Return the tokens of the blocks that `tokens` take."""
    return math.ceil(tokens / block_tokens) * block_tokens
