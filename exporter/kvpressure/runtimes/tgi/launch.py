"""Which programs and images are TGI servers, and on which port they serve their API and `/metrics`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

from kvpressure.commandline.numbers import share, whole
from kvpressure.commandline.options import Dialect, Options
from kvpressure.commandline.programs import SHELLS, Launch, base
from kvpressure.commandline.shell import Words
from kvpressure.runtimes.starting import Flags, Sizing, Starting, image_name, port_or, with_variables

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


def _image_serves(image: str, command: Words, args: Words, options: Sequence[Options]) -> bool:  # noqa: ARG001
    name = image_name(image)
    if command or not _IMAGES.fullmatch(name):
        return False
    return not args or base(args[0]) not in SHELLS


def _option(variable: str) -> str:
    option = variable.lower().replace("_", "-")
    return option if variable.isupper() and (option in NAMES or option in _ALIASES) else ""


STARTING: Final = Starting(FLAGS, _launch, _image_serves, port_or(PORT), completed=with_variables(_option))
