"""TGI's metrics page, which its router serves on the port of the API.

A request joins the batch when its prompt and all that it may generate (`max_new_tokens`) fit into
`max_batch_total_tokens` beside what those in it have reserved in the same way (backends/v3/src/queue.rs), and prompts
joining together are no more than `max_batch_prefill_tokens`. The page has what is reserved
(`tgi_batch_current_max_tokens`), and of what, the log alone says. Nothing is preempted: what was reserved suffices.

Series have no labels but `method` and `err`, and there is no process start. Lengths are counted when a request comes
in, tokens and latencies when it ends.
"""

from __future__ import annotations

import re
from typing import Final

from kvpressure.runtimes.runtime import Wordings, note_least
from kvpressure.runtimes.table import OptionalSignal, Row, Table

TGI: Final = Table(
    runtime="tgi",
    prefix="tgi_",
    spellings=("tgi_",),
    relayed=frozenset(),
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
    OptionalSignal(
        what="why requests wait: for room, or put off on their own account",
        signals=("waiting_deferred",),
        series=(),
        how="no version of TGI exports it",
    ),
    OptionalSignal(
        what="how many tokens the KV cache holds, of which the page tells only what is reserved",
        signals=("capacity_tokens",),
        series=(),
        how="no version of TGI exports it: let kvpressure read the engine's log from its start on (logs in the "
        "settings), which says Setting max batch total tokens to",
    ),
    OptionalSignal(
        what="how long prefill took",
        signals=("prefill_seconds",),
        series=(),
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
