"""llama.cpp's metrics page, which it serves with `--metrics`.

It has slots (`--parallel`) and no pool that requests are admitted to. A request waits, "deferred", for one thing alone:
a free slot (tools/server/server-context.cpp). Each slot has `--ctx-size / --parallel` tokens of its own, or all share
them (`--kv-unified`). A prompt that is longer than a slot is refused with 400; where a shared context is full, every
request that runs ends with "Context size has been exceeded." Neither makes anybody wait, nothing is preempted.

So the number of slots is known in the moment somebody waits, and what of the context is in use is not: `kv_cache_*` is
gone from its page since 2025, and counted what idle slots keep of past prompts, too; it is not read. Series have no
labels, and there is no process start. Counters of tokens move with every batch; there are no histograms.
"""

from __future__ import annotations

import re
from typing import Final

from kvpressure.runtimes.runtime import Facts, Wordings, whole
from kvpressure.runtimes.table import OptionalSignal, Row, Table


def complete(gauges: dict[str, float]) -> dict[str, float]:
    """Return the gauges with what follows of slots: nobody waits for room, and who waits says that all are taken."""
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
    relayed=frozenset(),
    gauges=(
        Row("running", ("llamacpp:requests_processing",)),
        Row("waiting", ("llamacpp:requests_deferred",)),
    ),
    counters=(
        # Those that the slot's own cache held are not among them.
        Row("prompt_tokens", ("llamacpp:prompt_tokens_total",)),
        Row("prefill_tokens", ("llamacpp:prompt_tokens_total",)),
        Row("generation_tokens", ("llamacpp:tokens_predicted_total",)),
        Row("prefill_seconds", ("llamacpp:prompt_seconds_total",), slow=True),
        Row("accepted_draft_tokens", ("llamacpp:spec_decode_num_accepted_tokens_total",)),
        Row("steps", ("llamacpp:n_decode_total",)),
    ),
    histograms=(),
    complete=complete,
)


EVIDENCE: Final = (
    OptionalSignal(
        what="how much of the context is in use, in all slots",
        signals=("kv_usage", "capacity_tokens"),
        series=(),
        how="no current build of llama.cpp exports it; GET /slots has it request by request",
    ),
)


def _slots(facts: Facts, match: re.Match[str]) -> None:
    """Note the tokens of all slots: each has its own, or they share those that each may take."""
    slots, tokens = whole(match[1]), whole(match[2])
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
