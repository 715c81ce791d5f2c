"""The limits that an engine runs under, and where each is known from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from kvpressure.model.record import changed, record
from kvpressure.model.values import number

DECLARED: Final = "declared"
PAGE: Final = "page"
LEARNED: Final = "learned plateau of running"

KV_DTYPE: Final = "kv_cache_dtype"
"""The flag for the precision of the KV cache."""
SMALL_KV_BITS: Final = 8
"""What it can be lowered to."""


@record
class Limit:
    """A limit's value and where it is known from: `declared`, `page` or `learned plateau of running`."""

    value: float
    source: str = DECLARED

    def __str__(self) -> str:
        return f"{number(self.value)} ({self.source})"


@record
class Limits:
    """The limits of one engine (a data-parallel rank); None is not known.

    Sequences and tokens are counts, `gpu_memory_utilization` is a ratio, `kv_capacity_tokens` is what all requests of
    the rank together can hold, `kv_watermark_ratio` the share of it that stays free when one is admitted beside others.
    `max_input_tokens` and `max_output_tokens` are those of the gateway in front.
    """

    max_num_seqs: Limit | None = None
    max_num_batched_tokens: Limit | None = None
    max_model_len: Limit | None = None
    gpu_memory_utilization: Limit | None = None
    max_input_tokens: Limit | None = None
    max_output_tokens: Limit | None = None
    kv_capacity_tokens: Limit | None = None
    kv_watermark_ratio: Limit | None = None

    def with_declared(self, declared: Mapping[str, float]) -> Limits:
        """Return these limits with later declarations, by field name; other names, such as `kv_role`, are no limits."""
        known = self.__dataclass_fields__
        later = {name: Limit(value) for name, value in declared.items() if name in known}
        return changed(self, **later) if later else self
