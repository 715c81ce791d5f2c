"""Which programs and images are SGLang servers, and on which port they serve their API and `/metrics`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from kvpressure.commandline.numbers import share, whole
from kvpressure.commandline.options import Dialect, Given, Options
from kvpressure.commandline.programs import Launch, base
from kvpressure.commandline.shell import Words
from kvpressure.model.environment import ROLE_CODES
from kvpressure.runtimes.starting import Flags, KServe, Sizing, Starting, image_name, port_or, start_script

NAMES: Final[Mapping[str, str]] = {
    "chunked-prefill-size": "chunked-p",
    "config": "config",
    "context-length": "context-l",
    "disaggregation-mode": "disaggregation-m",
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


def _role(options: Mapping[str, Given]) -> tuple[float, str] | None:
    given = options.get("disaggregation-mode")
    code = None if given is None else ROLE_CODES.get(given.text)
    return None if given is None or code is None else (code, given.written)


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
    role=_role,
    model="model-path",
    ranks=(
        ("--tensor-parallel-size", "--tp-size", "--tp"),
        ("--pipeline-parallel-size", "--pp-size", "--pp"),
        ("--data-parallel-size", "--dp-size", "--dp"),
    ),
    tls="ssl-certfile",
    sizing=Sizing("tp-size", "pp-size", "dp-size", "ep-size", "kv-cache-dtype", "dtype", "quantization"),
)


MODULE: Final = "sglang.launch_server"
PORT: Final = 30000

_IMAGES: Final = re.compile(r"sglang(-[a-z0-9.-]+)?")
_OTHERS: Final = re.compile(r"router|gateway|bench|client|proxy|sidecar|exporter|operator|controller|simulator")
_SCRIPT: Final = re.compile(r"sglang|serv|start|launch|entry")


def _launch(words: Words) -> Launch | None:
    for at, word in enumerate(words):
        following = words[at + 1] if at + 1 < len(words) else ""
        if (word == "-m" and following == MODULE) or (base(word) == "sglang" and following == "serve"):
            return Launch(words[at + 2 :])
        if word.endswith("sglang/launch_server.py"):
            return Launch(words[at + 1 :])
    return None


def _worker(options: Options) -> bool:
    """Return whether this is not the first node: of several, only the first serves the API."""
    rank = options.given.get("node-rank")
    return rank is not None and whole(rank.text) is not None


def _serves(module: str, options: Options, image: str) -> bool:  # noqa: ARG001 - there is one module
    return not _worker(options)


def _image_serves(image: str, command: Words, args: Words, options: Sequence[Options]) -> bool:  # noqa: ARG001
    """Return whether an image's start script serves, by its name; the images' own entrypoint is a shell."""
    name = image_name(image)
    if not command or not _IMAGES.fullmatch(name) or _OTHERS.search(name):
        return False
    script = start_script((*command, *args))
    return _SCRIPT.search(script) is not None and not _OTHERS.search(script)


STARTING: Final = Starting(FLAGS, _launch, _image_serves, port_or(PORT), _worker, _serves)


def _deployed(model: Mapping[str, Any]) -> bool:
    described = model.get("modelFormat")
    name = described.get("name") if isinstance(described, Mapping) else ""
    return any("sglang" in text.lower() for text in (name, model.get("runtime")) if isinstance(text, str))


KSERVE: Final = KServe(_deployed)
