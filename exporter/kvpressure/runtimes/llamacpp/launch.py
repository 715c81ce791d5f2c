"""Which programs and images are llama.cpp servers, and on which port they serve their API and `/metrics`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

from kvpressure.commandline.numbers import whole
from kvpressure.commandline.options import Dialect, Given, Options
from kvpressure.commandline.programs import Launch, base
from kvpressure.commandline.shell import Words
from kvpressure.runtimes.starting import Flags, Sizing, Starting, image_name, port_or, with_variables

NAMES: Final[Mapping[str, str]] = dict.fromkeys(
    ("batch-size", "cache-type-k", "ctx-size", "kv-unified", "model", "parallel", "port", "ssl-cert-file"), "\0"
)
"""Options that are looked for; none may be abbreviated."""

_ALIASES: Final = {"n-parallel": "parallel", "batch": "batch-size", "hf-repo": "model", "model-url": "model"}
_SHORT: Final = {
    "-b": "batch-size",
    "-c": "ctx-size",
    "-ctk": "cache-type-k",
    "-hf": "model",
    "-kvu": "kv-unified",
    "-m": "model",
    "-np": "parallel",
}
_SWITCH: Final = re.compile(r"--?(no-|cont-batching|embedding|flash-attn|jinja|kv-unified|metrics|mlock|props|slots|v)")
_VARIABLES: Final = "LLAMA_ARG_"
_TAGS: Final = re.compile(r"server\b.*|light-server\b.*")

PORT: Final = 8080


def _context(given: Mapping[str, Given]) -> tuple[float, str] | None:
    """Return the tokens of all slots together; 0 is the model's own length, which is not known here."""
    context = given.get("ctx-size")
    tokens = None if context is None else whole(context.text)
    return (tokens, context.written) if context is not None and tokens else None


FLAGS: Final = Flags(
    dialect=Dialect(NAMES, _SWITCH, aliases=_ALIASES, short=_SHORT),
    limits={"max_num_seqs": ("parallel", whole), "max_num_batched_tokens": ("batch-size", whole)},
    capacity=_context,
    sizes_pool="ctx-size",
    tls="ssl-cert-file",
    sizing=Sizing(kv_cache_dtype="cache-type-k"),
)


def _launch(words: Words) -> Launch | None:
    for at, word in enumerate(words):
        if base(word) == "llama-server":
            return Launch(words[at + 1 :])
        if base(word) == "llama" and words[at + 1 : at + 2] in {("serve",), ("server",)}:
            return Launch(words[at + 2 :])
    return None


def _image_serves(image: str, command: Words, args: Words, options: Sequence[Options]) -> bool:  # noqa: ARG001
    """Return whether an image is the project's own with the server as its entrypoint, which its tag says."""
    tag = image.split("@", 1)[0].rpartition(":")[2]
    return not command and image_name(image) == "llama.cpp" and _TAGS.fullmatch(tag) is not None


def _option(variable: str) -> str:
    own = variable.startswith(_VARIABLES)
    return variable.removeprefix(_VARIABLES).lower().replace("_", "-") if own else ""


STARTING: Final = Starting(FLAGS, _launch, _image_serves, port_or(PORT), completed=with_variables(_option))
