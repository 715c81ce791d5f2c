"""The options of `sglang.launch_server` that limits are read from."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from kvpressure.commandline.numbers import share, whole
from kvpressure.commandline.options import Dialect
from kvpressure.runtimes.starting import Flags, Sizing

NAMES: Final[Mapping[str, str]] = {
    "chunked-prefill-size": "chunked-p",
    "config": "config",
    "context-length": "context-l",
    "dp-size": "dp-size",
    "dtype": "dtype",
    "ep-size": "ep-size",
    "kv-cache-dtype": "kv-cache-d",
    "max-running-requests": "max-ru",
    "max-total-tokens": "max-to",
    "mem-fraction-static": "mem-f",
    "model-path": "model-p",
    "node-rank": "node-r",
    "port": "port",
    "pp-size": "pp-size",
    "quantization": "quantization",
    "served-model-name": "served-",
    "tp-size": "tp-size",
}
"""Options that are looked for, and the shortest beginning that means them."""

_ALIASES: Final = {
    "model": "model-path",
    "tp": "tp-size",
    "tensor-parallel-size": "tp-size",
    "pp": "pp-size",
    "pipeline-parallel-size": "pp-size",
    "dp": "dp-size",
    "data-parallel-size": "dp-size",
    "ep": "ep-size",
    "expert-parallel-size": "ep-size",
}

_SWITCH: Final = re.compile(r"--(enable|disable|trust|skip|allow|collect|is|show|delete)([-_]|$)")

FLAGS: Final = Flags(
    dialect=Dialect(NAMES, _SWITCH, aliases=_ALIASES),
    limits={
        "max_model_len": ("context-length", whole),
        "max_num_seqs": ("max-running-requests", whole),
        "max_num_batched_tokens": ("chunked-prefill-size", whole),
        "gpu_memory_utilization": ("mem-fraction-static", share),
        # At most that: a pool that memory makes smaller stays smaller.
        "kv_capacity_tokens": ("max-total-tokens", whole),
    },
    model="model-path",
    ranks=(
        ("--tensor-parallel-size", "--tp-size", "--tp"),
        ("--pipeline-parallel-size", "--pp-size", "--pp"),
        ("--data-parallel-size", "--dp-size", "--dp"),
    ),
    tls="ssl-certfile",
    sizing=Sizing("tp-size", "pp-size", "dp-size", "ep-size", "kv-cache-dtype", "dtype", "quantization"),
)
