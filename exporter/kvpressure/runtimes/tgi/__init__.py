"""Text Generation Inference, from its source and documentation (router and launcher 3.3); no server was run.

TGI's metrics page, which its router serves on the port of the API.

A request joins the batch when its prompt and all that it may generate (`max_new_tokens`) fit into
`max_batch_total_tokens` beside what those in it have reserved in the same way (backends/v3/src/queue.rs), and prompts
joining together are no more than `max_batch_prefill_tokens`. The page has what is reserved
(`tgi_batch_current_max_tokens`), and of what, the log alone says. Nothing is preempted: what was reserved suffices.

Series have no labels but `method` and `err`, and there is no process start. Lengths are counted when a request comes
in, tokens and latencies when it ends.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

from kvpressure.commandline.options import Dialect, Options, share, whole
from kvpressure.commandline.programs import SHELLS, Launch, base
from kvpressure.commandline.words import Words
from kvpressure.runtimes.runtime import Advice, Audit, Planning, Remedy, Runtime, Wordings, note_least, without_dashes
from kvpressure.runtimes.starting import Flags, Sizing, Starting, image_name, port_or, with_variables
from kvpressure.runtimes.table import WHY_WAITING, OptionalSignal, Row, Table, never_exported

TGI: Final = Table(
    runtime="tgi",
    prefix="tgi_",
    spellings=("tgi_",),
    gauges=(
        Row("running", ("tgi_batch_current_size",)),
        Row("waiting", ("tgi_queue_size",)),
        Row("kv_tokens", ("tgi_batch_current_max_tokens",)),
    ),
    counters=(
        Row("generation_tokens", ("tgi_request_generated_tokens_sum",)),
        Row("steps", ("tgi_batch_inference_count",)),
        Row("finished", ("tgi_request_success",)),
        Row("rejected", ("tgi_request_failure",), where=(("err", "overloaded"),)),
        # A batch of those that join is one observation of how many they are.
        Row("started", ("tgi_batch_next_size_sum",)),
        Row("finished_prompts", ("tgi_request_input_length_count",)),
        Row("finished_prompt_tokens", ("tgi_request_input_length_sum",)),
        Row("finished_output_tokens", ("tgi_request_generated_tokens_sum",)),
        Row("ended", ("tgi_request_duration_count",), slow=True),
        Row("e2e_seconds", ("tgi_request_duration_sum",), slow=True),
        Row("queue_seconds", ("tgi_request_queue_duration_sum",), slow=True),
        Row("inference_seconds", ("tgi_request_inference_duration_sum",), slow=True),
    ),
    histograms=(
        Row("e2e", ("tgi_request_duration",)),
        Row("inter_token", ("tgi_request_mean_time_per_token_duration",)),
        Row("queue", ("tgi_request_queue_duration",)),
        Row("request_prompt_tokens", ("tgi_request_input_length",)),
        Row("request_max_tokens", ("tgi_request_max_new_tokens",)),
        Row("request_output_tokens", ("tgi_request_generated_tokens",)),
    ),
    admission="reserved",
)


EVIDENCE: Final = (
    never_exported(WHY_WAITING, "waiting_deferred", "TGI"),
    OptionalSignal(
        what="how many tokens the KV cache holds, of which the page tells only what is reserved",
        signals=("capacity_tokens",),
        how="no version of TGI exports it: let kvpressure read the engine's log from its start on (logs in the "
        "settings), which says Setting max batch total tokens to",
    ),
    OptionalSignal(
        what="how long prefill took",
        signals=("prefill_seconds",),
        how="no version of TGI exports it request by request",
    ),
)


LOGS: Final = Wordings(
    rows=(
        ("engine_dead", " crashed", r"\bshard \d+ crashed\b"),
        ("engine_dead", "shard complete standard error output", ""),
        ("kv_capacity", "setting max batch total tokens to ", r"\bsetting max batch total tokens to \d"),
    ),
    words=("setting max batch total tokens to ",),
    facts=((re.compile(r"\bsetting max batch total tokens to (\d{1,12})"), note_least("tokens")),),
    banner="setting max batch total tokens to ",
)


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


_FLAGS: Final = {
    "max_num_seqs": "--max-batch-size",
    "max_num_batched_tokens": "--max-batch-prefill-tokens",
    "max_model_len": "--max-total-tokens",
    "gpu_memory_utilization": "--cuda-memory-fraction",
    "kv_cache_dtype": "--kv-cache-dtype",
}


ADVICE: Final = Advice(
    serve="text-generation-launcher --model-id MODEL",
    port=PORT,
    process="text-generation-",
    failures="out of memory|Shard [0-9]+ crashed|Not enough memory",
    series="tgi_",
    flags=_FLAGS,
    words=without_dashes(_FLAGS),
    unset={
        "max_num_seqs": "no limit unless set",
        "max_num_batched_tokens": "the longest prompt and 50 unless set",
        "gpu_memory_utilization": "1.0 unless set",
    },
    cap_flags="--max-total-tokens={total} --max-input-tokens={rest}",
    step_why="At start a batch of so many prompt tokens is tried, and what that leaves of the memory is the cache "
    "(--max-batch-total-tokens): a smaller one leaves more to it.",
    step_cost="Fewer prompts join the batch at a time, and none may be longer.",
    sequences_cost="Larger batches make each token take longer. Requests join by what they reserve, so without this "
    "flag --max-batch-total-tokens is the limit.",
    too_little="",
    larger_pool="more replicas or GPUs (--num-shard), or --kv-cache-dtype=fp8_e4m3fn, which halves the bytes per token "
    "at some accuracy; and requests that ask for no more than they need (max_new_tokens), all of which is reserved.",
    prefixes="shared prefixes (unless PREFIX_CACHING=0)",
    flags_in_log="its first log line (Args) names {flags} with the new values.",
    remedies={
        "queue_limit": Remedy(
            title="raise --max-concurrent-requests",
            current="128 unless set",
            new="about as many as come at once, and no more than may wait",
            why="More requests come at once than it takes in: the others are refused with 429.",
            cost="Those that are taken in wait longer.",
        ),
    },
    other_limits="--max-batch-prefill-tokens (prompts that join at a time), --waiting-served-ratio and "
    "--max-waiting-tokens (how long those that run go on before others join)",
    small_kv="fp8_e4m3fn",
)

AUDIT: Final = Audit(
    undeclared={
        "max_num_seqs": "TGI takes as many as their prompts and max_new_tokens fit the cache",
        "max_num_batched_tokens": "TGI takes the longest prompt and 50",
        "gpu_memory_utilization": "TGI takes all that is free",
    },
    defaults={"max_num_seqs": (), "max_num_batched_tokens": (4096, 16384)},
)

PLANNING: Final = Planning(
    command="text-generation-launcher",
    flags=_FLAGS | {"tensor_parallel": "--num-shard"},
    most_sequences=1024,
    step_tokens=(4096, 4096),
    step_default="TGI's own default is the longest prompt and 50.",
    unsized="its page does not say how many tokens the cache holds; its log does",
    pool_log="Setting max batch total tokens to",
    memory_log="max batch total tokens",
    weights_log="the size of the model's files",
    windows="as its attention has them.",
    memory_share=1.0,
    by_memory=False,
    cache_types={"fp8": "fp8_e4m3fn"},
)

RUNTIME: Final = Runtime(
    name="tgi",
    title="TGI",
    table=TGI,
    starting=STARTING,
    logs=LOGS,
    advice=ADVICE,
    audit=AUDIT,
    planning=PLANNING,
    evidence=EVIDENCE,
)
