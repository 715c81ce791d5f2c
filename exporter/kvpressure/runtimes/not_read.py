"""Servers that are recognised by their metrics and not read: no verdict is made of them, and no error."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from kvpressure.promtext.lines import Series

TGI: Final = "TGI"
LLAMA_CPP: Final = "llama.cpp"

OF_METRIC: Final[Mapping[str, str]] = {
    **dict.fromkeys(
        (
            "tgi_queue_size",
            "tgi_batch_current_size",
            "tgi_batch_current_max_tokens",
            "tgi_batch_inference_count",
            "tgi_request_count",
            "tgi_request_success",
        ),
        TGI,
    ),
    **{
        f"{prefix}{name}": LLAMA_CPP
        for prefix in ("llamacpp:", "llamacpp_")
        for name in ("requests_processing", "requests_deferred", "prompt_tokens_total", "n_decode_total")
    },
}
"""A metric that its server has from the start, and whose it is."""

METRICS: Final = frozenset(name.encode() for name in OF_METRIC)


def server_not_read(series: Iterable[Series]) -> str:
    """Return the name of the server whose metrics these are, "" where they are of none that is known here."""
    return next((OF_METRIC[sample.name] for sample in series if sample.name in OF_METRIC), "")
