"""Which programs and images are TensorRT-LLM servers, and on which port they serve their API and their page."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

from kvpressure.commandline.numbers import share, whole
from kvpressure.commandline.options import Dialect, Options
from kvpressure.commandline.programs import Launch, base
from kvpressure.commandline.shell import Words
from kvpressure.runtimes.starting import Flags, Sizing, Starting, image_name, port_or, start_script

NAMES: Final[Mapping[str, str]] = dict.fromkeys(
    (
        "config",
        "free-gpu-memory-fraction",
        "max-batch-size",
        "max-num-tokens",
        "max-seq-len",
        "moe-expert-parallel-size",
        "pipeline-parallel-size",
        "port",
        "tensor-parallel-size",
    ),
    "\0",
)
"""Options that are looked for, which are written with underscores; none may be abbreviated."""

_ALIASES: Final = {
    "ep-size": "moe-expert-parallel-size",
    "extra-llm-api-options": "config",
    "kv-cache-free-gpu-memory-fraction": "free-gpu-memory-fraction",
    "pp-size": "pipeline-parallel-size",
    "tp-size": "tensor-parallel-size",
}
_SWITCH: Final = re.compile(r"--(trust|fail|enable)[-_]")

FLAGS: Final = Flags(
    dialect=Dialect(NAMES, _SWITCH, aliases=_ALIASES),
    limits={
        "max_model_len": ("max-seq-len", whole),
        "max_num_seqs": ("max-batch-size", whole),
        "max_num_batched_tokens": ("max-num-tokens", whole),
        "gpu_memory_utilization": ("free-gpu-memory-fraction", share),
    },
    model="",
    ranks=(
        ("--tensor_parallel_size", "--tensor-parallel-size", "--tp_size", "--tp-size"),
        ("--pipeline_parallel_size", "--pipeline-parallel-size", "--pp_size", "--pp-size"),
    ),
    sizing=Sizing("tensor-parallel-size", "pipeline-parallel-size", expert="moe-expert-parallel-size"),
)

PORT: Final = 8000
_OTHER_COMMANDS: Final = frozenset(("disaggregated", "disaggregated_mpi_worker", "mm_embedding_serve"))
_SCRIPT: Final = re.compile(r"trtllm|serv|start|launch")


def _launch(words: Words) -> Launch | None:
    for at, word in enumerate(words):
        if base(word) == "trtllm-serve":
            after = words[at + 1 :]
            if after[:1] and after[0] in _OTHER_COMMANDS:
                return None
            return Launch(after[1:] if after[:1] == ("serve",) else after)
    return None


def _image_serves(image: str, command: Words, args: Words, options: Sequence[Options]) -> bool:  # noqa: ARG001
    """Return whether a start script in its image serves, by its name; the image's own entrypoint is a shell."""
    script = start_script((*command, *args)) if command and image_name(image) == "tensorrt-llm" else ""
    return _SCRIPT.search(script) is not None


STARTING: Final = Starting(FLAGS, _launch, _image_serves, port_or(PORT))
