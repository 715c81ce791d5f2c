"""PURE: which log lines repeat what a client sent. Nothing is counted, learned or kept of those."""

from __future__ import annotations

import re
from typing import Final

from kvpressure.runtimes.registry import RUNTIMES

_REQUEST: Final = re.compile(
    r"\bprompts?: |\bprompts?="
    r"|['\"](?:prompt|messages|input|content)['\"]\s*:|\binput_value=|\bmessages="
    r"|\"[A-Z]{3,10} \S{0,4000} HTTP/\d"
    # Errors of a request alone, whose messages name its parts, its template's complaints and the URLs it asked for.
    r"|\b(?:NotImplementedError|TypeError|KeyError|HTTPException|HTTPError|InvalidURL|UnidentifiedImageError"
    r"|\w{0,40}(?:Client|Template|Undefined|Validation|JSONDecode|BadRequest)\w{0,40}Error): "
    + "".join(f"|{runtime.logs.quotes}" for runtime in RUNTIMES if runtime.logs.quotes),
    re.IGNORECASE,
)


def quotes_request(text: str) -> bool:
    """Whether the line repeats what a client sent: a prompt, an answer, a request's path, its body or its model."""
    return _REQUEST.search(text) is not None
