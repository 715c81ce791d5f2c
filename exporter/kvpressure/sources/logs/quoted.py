"""PURE: which log lines repeat what a client sent. Nothing is counted, learned or kept of those."""

from __future__ import annotations

import re
from typing import Final

_REQUEST: Final = re.compile(
    r"received (?:raw http )?request |generated response |request \S{1,200} details: |\bprompts?: |\bprompts?="
    r"|['\"](?:prompt|messages|input|content)['\"]\s*:|\binput_value=|\bmessages="
    r"|\"[A-Z]{3,10} \S{0,4000} HTTP/\d",
    re.IGNORECASE,
)


def quotes_request(text: str) -> bool:
    """Whether the line repeats what a client sent: a prompt, an answer, a request's path or its body."""
    return _REQUEST.search(text) is not None
