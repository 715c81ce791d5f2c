"""Options that vLLM once had: its parser ends the server at an unknown one. And the version that an image's tag says.

From `engine/arg_utils.py` and `cli_args.py` of 0.12.0, 0.22.1, 0.32.0 and 0.33.0; which versions between these had an
option is not known here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

Version = tuple[int, int]

NEWEST: Final[Version] = (999, 0)

REMOVED: Final[Mapping[str, tuple[Version | None, Version]]] = {
    **dict.fromkeys(
        (
            *("disable-async-output-proc", "enable-prompt-adapter", "enable-reasoning", "guided-decoding-backend"),
            *("lora-extra-vocab-size", "max-prompt-adapters", "max-seq-len-to-capture", "multi-step-stream-outputs"),
            *("num-lookahead-slots", "num-scheduler-steps", "num-speculative-tokens", "override-neuron-config"),
            *("override-pooler-config", "preemption-mode", "rope-scaling", "rope-theta", "scheduler-delay-factor"),
            *("speculative-model", "tokenizer-pool-size", "use-v2-block-manager", "worker-use-ray"),
        ),
        (None, (0, 12)),
    ),
    **dict.fromkeys(
        (
            *("cuda-graph-sizes", "disable-frontend-multiprocessing", "disable-log-requests", "swap-space", "task"),
            *("disable-mm-preprocessor-cache", "enable-multimodal-encoder-data-parallel", "logits-processor-pattern"),
        ),
        ((0, 12), (0, 22)),
    ),
    **dict.fromkeys(("max-long-partial-prefills", "max-num-partial-prefills"), ((0, 22), (0, 32))),
}
"""The last version that is known to have an option, None for none of them, and the first that is known not to."""

_UPSTREAM: Final = re.compile(r"(?:^|/)vllm/vllm-openai(?:-[a-z0-9]+)?(?::([^/@]*))?(?:@.*)?$|[:_-]vllm_?(\d[^/@]*)$")
# An image built on it has its version in the tag, where that looks like one of vLLM's; LMCache's are its own.
_NAMED: Final = re.compile(r"^(?!.*lmcache).*vllm[^/:@]*:v?(0)\.(\d{1,3})\.\d")
_TAG: Final = re.compile(r"v?(\d{1,3})\.(\d{1,3})\b.*")


def version_of(image: str) -> Version | None:
    """Return vLLM's version by an image's tag: the newest for `latest`, None where it says none."""
    tagged = _UPSTREAM.search(image)
    if tagged is None:
        named = _NAMED.search(image)
        return None if named is None else (int(named[1]), int(named[2]))
    tag = tagged[1] or tagged[2] or "latest"
    version = _TAG.fullmatch(tag)
    if version is None:
        return NEWEST if tag.startswith(("latest", "nightly")) else None
    return int(version[1]), int(version[2])
