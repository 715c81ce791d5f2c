"""One request on its way through front end, queue, batch and back."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass


@dataclass(slots=True, eq=False)
class Request:
    """Lengths in tokens, times in unix seconds.

    `computed` tokens have their KV stored. While a request decodes, `computed` and `generated` are those it had at
    `step_joined`, the rank's step count when it joined the decoding batch; each step since added one to both.
    """

    id: int
    prompt: int
    output: int
    arrived: float
    api: int = 0
    client: int | None = None
    max_tokens: int = 0
    reason: str = "length"
    prefix_key: Hashable | None = None
    prefix_tokens: int = 0
    queued: float = 0.0
    admitted: float | None = None
    first_token: float | None = None
    last_token: float = 0.0
    computed: int = 0
    generated: int = 0
    prefill_target: int = 0
    shared_blocks: int = 0
    hit_tokens: int = 0
    preemptions: int = 0
    decoding: bool = False
    step_joined: int = 0
    epoch: int = 0

    @property
    def tokens(self) -> int:
        """Tokens a (re)computation has to cover: the prompt and what was generated so far."""
        return self.prompt + self.generated
