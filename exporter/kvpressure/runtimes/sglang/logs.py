"""What SGLang's log lines say; they carry no level."""

from __future__ import annotations

import re
from typing import Final

from kvpressure.runtimes.wordings import GIB, Facts, Wordings, whole

_ROWS: Final = (
    ("engine_dead", "scheduler hit an exception", ""),
    ("engine_dead", "detokenizermanager hit an exception", ""),
    ("engine_dead", "sigquit", r"received sigquit from a child process|sigquit received\."),
    ("engine_dead", "watchdog timeout (", r"\bwatchdog timeout \(self\."),
    ("preemption", "kv cache pool is full. retract requests", ""),
    ("preemption", "decode out of memory happened", ""),  # until 0.4.6
    ("kv_exhausted", "not enough memory. please try to increase --mem-fraction-static", ""),
    ("kv_exhausted", "out of memory. try to lower your batch size", r"(?:prefill|decode) out of memory\. try to lower"),
    ("kv_capacity", "kv cache is allocated.", r"\bkv cache is allocated\..{0,80}#tokens: \d"),
    ("kv_capacity", "max_total_num_tokens=", r"\bmax_total_num_tokens=\d{1,12}, "),
)

_TOKENS: Final = re.compile(r"\bmax_total_num_tokens=(\d{1,12}), ")
_NUMBER: Final = r"(\d{1,7}(?:\.\d{1,9})?)"
_KEYS_AND_VALUES: Final = re.compile(rf"\bkv cache is allocated\..{{0,120}}k size: {_NUMBER} gb, v size: {_NUMBER} gb")
_LATENT: Final = re.compile(rf"\bkv cache is allocated\..{{0,120}}kv size: {_NUMBER} gb")


def _tokens(facts: Facts, match: re.Match[str]) -> None:
    if tokens := whole(match[1]):
        facts.tokens = min(tokens, facts.tokens or tokens)


def _memory(facts: Facts, match: re.Match[str]) -> None:
    """Note the first pool of a start, which is the model's own; a draft model's comes after it. Its GB are GiB."""
    if facts.memory_bytes is None:
        facts.memory_bytes = sum(map(float, match.groups())) * GIB


LOGS: Final = Wordings(
    rows=_ROWS,
    words=("max_total_num_tokens=", "kv cache is allocated.", "server_args=serverargs("),
    facts=((_TOKENS, _tokens), (_KEYS_AND_VALUES, _memory), (_LATENT, _memory)),
    banner="server_args=serverargs(",
    quotes=r"\b(?:receive|finish): obj=",
)
