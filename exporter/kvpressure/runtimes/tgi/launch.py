"""Which programs and images are TGI servers, and on which port they serve their API and `/metrics`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

from kvpressure.commandline.budget import Budget
from kvpressure.commandline.numbers import share, whole
from kvpressure.commandline.options import Dialect, Options
from kvpressure.commandline.programs import SHELLS, Launch, base
from kvpressure.commandline.shell import Words
from kvpressure.runtimes.starting import Flags, Sizing, Starting, image_name

NAMES: Final[Mapping[str, str]] = dict.fromkeys(
    (
        "cuda-memory-fraction",
        "dtype",
        "kv-cache-dtype",
        "max-batch-prefill-tokens",
        "max-batch-size",
        "max-batch-total-tokens",
        "max-concurrent-requests",
        "max-input-tokens",
        "max-total-tokens",
        "model-id",
        "num-shard",
        "port",
        "quantize",
    ),
    "\0",
)
"""Options that are looked for; none may be abbreviated. Each is a variable in capitals as well."""

_ALIASES: Final = {"max-input-length": "max-input-tokens"}
_SWITCH: Final = re.compile(r"--?(trust-remote-code|json-output|disable-|env|ngrok$|enable-|h$|help)")

FLAGS: Final = Flags(
    dialect=Dialect(NAMES, _SWITCH, aliases=_ALIASES, short={"-p": "port"}),
    limits={
        "max_input_tokens": ("max-input-tokens", whole),
        "max_model_len": ("max-total-tokens", whole),
        "max_num_seqs": ("max-batch-size", whole),
        "max_num_batched_tokens": ("max-batch-prefill-tokens", whole),
        "gpu_memory_utilization": ("cuda-memory-fraction", share),
        # What fits by itself counts instead where the model's attention lets the server find that out.
        "kv_capacity_tokens": ("max-batch-total-tokens", whole),
    },
    model="model-id",
    ranks=(("--num-shard",),),
    sizing=Sizing(tensor="num-shard", kv_cache_dtype="kv-cache-dtype", dtype="dtype", quantization="quantize"),
)

PORT: Final = 80
"""Of its images; the launcher's own default is 3000."""

_IMAGES: Final = re.compile(r"text-generation-inference|huggingface-pytorch-tgi-inference")


def _launch(words: Words) -> Launch | None:
    found = (at for at, word in enumerate(words) if base(word) == "text-generation-launcher")
    return next((Launch(words[at + 1 :]) for at in found), None)


def _worker(options: Options) -> bool:  # noqa: ARG001 - shards are its own processes
    return False


def _serves(module: str, options: Options, image: str) -> bool:  # noqa: ARG001 - there is one program
    return True


def _image_serves(image: str, command: Words, args: Words, options: Sequence[Options]) -> bool:  # noqa: ARG001
    name = image_name(image)
    if command or not _IMAGES.fullmatch(name):
        return False
    return not args or base(args[0]) not in SHELLS


def _port(module: str, options: Options) -> int | None:  # noqa: ARG001 - there is one program
    value = options.given.get("port")
    if value is None:
        return PORT
    port = whole(value.text)
    return int(port) if port is not None and port <= 65535 else None


def _completed(words: Words, args: Sequence[str], env: Mapping[str, str], budget: Budget) -> Words:  # noqa: ARG001
    """Return the words behind the options that its variables stand for, over which those of the command line win."""
    found: list[str] = []
    for name, value in env.items():
        option = name.lower().replace("_", "-")
        if name.isupper() and (option in NAMES or option in _ALIASES):
            budget.take(len(value))
            found += [f"--{option}", value]
    return (*found, *words)


STARTING: Final = Starting(FLAGS, _launch, _worker, _serves, _image_serves, _port, _completed)
