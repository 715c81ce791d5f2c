"""llama.cpp's server, run for real on the CPU (build b10434) and from its source (b11434).

llama.cpp's metrics page, which it serves with `--metrics`.

It has slots (`--parallel`) and no pool that requests are admitted to. A request waits, "deferred", for one thing alone:
a free slot (tools/server/server-context.cpp). Each slot has `--ctx-size / --parallel` tokens of its own, or all share
them (`--kv-unified`). A prompt that is longer than a slot is refused with 400; where a shared context is full, every
request that runs ends with "Context size has been exceeded." Neither makes requests wait, nothing is preempted.

So the number of slots is known in the moment that requests wait, and the use of the context is not: `kv_cache_*` is
gone from its page since 2025, and counted what idle slots keep of past prompts, too; it is not read. Series have no
labels, and there is no process start. Counters of tokens move with every batch; there are no histograms.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

from kvpressure.commandline.options import Dialect, Given, Options, whole
from kvpressure.commandline.programs import Launch, base
from kvpressure.commandline.words import Words
from kvpressure.runtimes.runtime import Advice, Audit, Facts, Planning, Runtime, Wordings, logged_count
from kvpressure.runtimes.starting import Flags, Sizing, Starting, image_name, port_or, with_variables
from kvpressure.runtimes.table import OptionalSignal, Row, Table


def complete(gauges: dict[str, float]) -> dict[str, float]:
    """Return the gauges with what follows from slots: no request waits for room, and one that waits finds none free."""
    waiting, running = gauges.get("waiting"), gauges.get("running")
    if waiting is None:
        return gauges
    if waiting >= 1 and running:
        gauges["seats"] = running
    return {**gauges, "waiting_room": 0.0}


LLAMACPP: Final = Table(
    runtime="llamacpp",
    prefix="llamacpp:",
    spellings=("llamacpp:", "llamacpp_"),
    gauges=(
        Row("running", ("llamacpp:requests_processing",)),
        Row("waiting", ("llamacpp:requests_deferred",)),
    ),
    counters=(
        # Without those in the slot's own cache.
        Row("prompt_tokens", ("llamacpp:prompt_tokens_total",)),
        Row("prefill_tokens", ("llamacpp:prompt_tokens_total",)),
        Row("generation_tokens", ("llamacpp:tokens_predicted_total",)),
        Row("prefill_seconds", ("llamacpp:prompt_seconds_total",), slow=True),
        Row("accepted_draft_tokens", ("llamacpp:spec_decode_num_accepted_tokens_total",)),
        Row("steps", ("llamacpp:n_decode_total",)),
    ),
    complete=complete,
)


EVIDENCE: Final = (
    OptionalSignal(
        what="how much of the context is in use, in all slots",
        signals=("kv_usage", "capacity_tokens"),
        how="no current build of llama.cpp exports it; GET /slots has it request by request",
    ),
)


def _slots(facts: Facts, match: re.Match[str]) -> None:
    """Note the tokens of all slots: each has its own, or they share those that each may take."""
    slots, tokens = logged_count(match[1]), logged_count(match[2])
    facts.tokens = tokens if match[3] == "true" else slots * tokens


LOGS: Final = Wordings(
    rows=(
        ("engine_dead", "ggml_assert(", ""),
        ("kv_exhausted", "context size has been exceeded", ""),
        ("kv_exhausted", "failed to find free space in the kv cache", ""),
        ("kv_capacity", "n_ctx_slot = ", r"\binitializing, n_slots = \d"),
    ),
    words=("n_ctx_slot = ",),
    facts=(
        (re.compile(r"\binitializing, n_slots = (\d{1,6}), n_ctx_slot = (\d{1,12}), kv_unified = '(\w+)'"), _slots),
    ),
    banner="initializing, n_slots = ",
)


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


_FLAGS: Final = {
    "max_num_seqs": "--parallel",
    "max_num_batched_tokens": "--batch-size",
    "kv_cache_dtype": "--cache-type-k",
}

_MEMORY: Final = "the memory that the context takes (--ctx-size)"


ADVICE: Final = Advice(
    serve="llama-server --metrics --model MODEL",
    port=PORT,
    process="llama-server",
    failures="out of memory|GGML_ASSERT|failed to allocate|Context size has been exceeded",
    series="llamacpp:",
    flags=_FLAGS,
    words={
        "max_num_seqs": "--parallel, the number of slots",
        "max_num_batched_tokens": "--batch-size",
        "max_model_len": "--ctx-size",
        "gpu_memory_utilization": _MEMORY,
    },
    unset={
        "max_num_seqs": "4 unless set, sharing one context",
        "max_num_batched_tokens": "2,048 unless set",
        "gpu_memory_utilization": "what --ctx-size needs",
    },
    cap_flags="--kv-unified-per-slot={total}",
    step_why="Prompts are computed in batches of so many tokens, whose buffers live beside the context.",
    step_cost="Long prompts are computed in more batches: time to first token rises.",
    sequences_cost="Each slot has --ctx-size / --parallel tokens: twice the slots with the same --ctx-size halve the "
    "longest request; with twice the --ctx-size it stays, for twice the memory. More at once make each token take "
    "longer.",
    too_little="",
    larger_pool="a larger --ctx-size, or --cache-type-k=q8_0 with --cache-type-v=q8_0, which halve the bytes of a "
    "token at some accuracy; or more replicas.",
    prefixes="prompts that begin as the last one of their slot did (--cache-prompt), and what --cache-ram keeps",
    flags_in_log="its log says n_slots and n_ctx_slot at start; GET /props has them too (total_slots). {flags} are in "
    "force.",
    seats="They wait for a free slot and for nothing else. --ctx-size is shared out: give as many slots as have room "
    "for the longest request each. With --kv-unified slots take from one --ctx-size as they need, and when that is "
    "full, every request that runs ends with an error: let it hold what all may have at once.",
    other_limits="--batch-size and --ubatch-size (tokens computed at once)",
    small_kv="q8_0",
)

AUDIT: Final = Audit(
    undeclared={
        "max_num_seqs": "llama.cpp takes 4 slots, which share one context",
        "max_num_batched_tokens": "llama.cpp takes 2,048",
        "gpu_memory_utilization": "llama.cpp takes what --ctx-size and the layers on the GPU need",
    },
    defaults={"max_num_seqs": (4,), "max_num_batched_tokens": (2048,)},
)

PLANNING: Final = Planning(
    command="llama-server",
    flags=_FLAGS
    | {"max_model_len": "--ctx-size", "gpu_memory_utilization": "--ctx-size", "tensor_parallel": "--tensor-split"},
    most_sequences=4,
    step_tokens=(2048, 2048),
    step_default="llama.cpp's own default is 2,048.",
    unsized="its page does not say how large the context is",
    pool_log="n_slots times n_ctx_slot",
    memory_log="KV buffer size",
    weights_log="model buffer size",
    windows="as --swa-full leaves them: by default such layers keep their window only.",
    needs_longest=False,
    by_memory=False,
)

RUNTIME: Final = Runtime(
    name="llamacpp",
    title="llama.cpp",
    table=LLAMACPP,
    starting=STARTING,
    logs=LOGS,
    advice=ADVICE,
    audit=AUDIT,
    planning=PLANNING,
    evidence=EVIDENCE,
)
