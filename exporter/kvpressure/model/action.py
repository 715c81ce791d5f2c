"""One thing to do about a verdict."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Final

from kvpressure.model.record import record
from kvpressure.model.values import number

NOW: Final = "now"
AFTER: Final = "after_incident"
"""When to take an action: at once, without a restart unless the engine is stuck; or once the incident is over, as it
needs one, or is hard to take back."""
DRAIN_MAX_SECONDS: Final = 1800.0
"""A queue that takes as long, or longer, is not said to be served."""
UNLIKE: Final = "what was simulated is not what is shown now"
UNPREDICTABLE: Final = "cannot be predicted from this page: "
SIMULATED_ALONE: Final = "Simulated one at a time: "
"""How the reason begins that lists what would not help."""


@record
class Shift:
    """A figure as it is, and as it is expected to be: the likeliest value and between which ones it lies.

    `before` is NaN where the figure of now was not measured; then nothing is compared with it.
    """

    before: float
    after: float
    low: float
    high: float


@record
class Expected:
    """Figures of one engine (of all replicas, where some are added) before and after a change.

    `goodput` counts requests a second answered in full within `limit_seconds`, twice the engine's own healthy p95.
    `latency_p95` is in seconds, `waiting` requests. `refused_ratio` and `shortened_ratio` are shares of the requests.
    """

    tokens_per_second: Shift
    goodput: Shift
    latency_p95: Shift
    waiting: Shift
    refused_ratio: float
    shortened_ratio: float
    limit_seconds: float
    gain_ratio: float = 0.0
    """How many more answers a second, late ones counting for less; by it the first step is chosen."""
    servers: int = 1
    """How many servers there are then for each one now; figures are of all of them together."""
    at_best: bool = False
    """Whether figures are upper bounds: what comes of it if requests no longer wait for anything outside the batch."""
    hit_ratio: Shift | None = None
    """Share of the prompt tokens that the prefix cache finds, where sessions are simulated; so the mean TTFT."""
    first_token_seconds: Shift | None = None
    in_time: tuple[float, float] | None = None
    """Shares of the requests that are served within `limit_seconds`, before and after, where they come at a rate."""
    drain_seconds: float | None = None
    """After which the queue of now is served, at most `DRAIN_MAX_SECONDS`, where it grows without the change."""
    doubt: str = ""
    """What leaves the range too wide for a number to say anything, "" where it is narrow enough."""
    not_known: str = ""
    """What no page tells and the range holds, in words; "" where that is lengths and steps alone."""

    @property
    def unserved_ratio(self) -> float:
        """Share of the requests that it refuses, or of the answers that it ends early, whichever is more."""
        return max(self.refused_ratio, self.shortened_ratio)

    @property
    def worse(self) -> bool:
        """Whether it is worse in what it is for, as printed: fewer tokens/s, or later answers and as many waiting."""
        tokens = self.tokens_per_second
        latency = self.latency_p95
        waiting = self.waiting
        if self.at_best:
            return False
        later = _printed(latency.after) > _printed(latency.before)
        as_many = _printed(waiting.after) >= _printed(waiting.before)
        return _printed(tokens.after) < _printed(tokens.before) or (later and as_many)

    @property
    def text(self) -> str:
        """The effect as text: tokens/s 60 -> 92 (88 to 95), p95 168 -> 71 s (65 to 80), refuses 4 %.

        A figure that was not measured before is left out; "" where none was.
        """
        tokens = self.tokens_per_second
        latency = self.latency_p95
        waiting = self.waiting
        if self.doubt:
            least = f"tokens/s {_before(tokens)}{_round(tokens.low)} or more"
            refused = f", refuses {self.refused_ratio:.0%}" if self.refused_ratio > 0 else ""
            surely = f"; {least}{refused}" if _printed(tokens.low) > _printed(tokens.before) else ""
            return f"{UNPREDICTABLE}{self.doubt}{surely}"
        if self.at_best:
            pairs = (
                (tokens, f"tokens/s {_before(tokens)}up to {_round(tokens.high)}"),
                (latency, f"p95 {_before(latency)}{_round(latency.low)} s at best"),
                (waiting, f"waiting {_before(waiting)}{_requests(waiting.low)} at best"),
            )
        else:
            pairs = (
                (tokens, f"tokens/s {_shift(tokens)}"),
                (latency, f"p95 {_shift(latency, ' s')}"),
                (waiting, f"waiting {_before(waiting)}{_requests(waiting.after)}"),
            )
        shown = [text for shift, text in pairs if not math.isnan(shift.before)]
        if not shown:
            return ""
        if self.first_token_seconds is not None:
            shown.insert(0, f"TTFT {_shift(self.first_token_seconds, ' s')}")
        if self.hit_ratio is not None:
            shown.insert(0, f"prefix hits {_percent(self.hit_ratio)}")
        if self.in_time is not None and not self.at_best:
            shown.append(f"in time {self.in_time[0]:.0%} -> {self.in_time[1]:.0%}")
        if self.drain_seconds is not None:
            shown.append(drain_text(self.drain_seconds))
        if self.refused_ratio > 0:
            shown.append(f"refuses {self.refused_ratio:.0%}")
        if self.shortened_ratio > 0:
            shown.append(f"ends {self.shortened_ratio:.0%} of the answers early")
        where = {1: "", 2: "on both: "}.get(self.servers, f"on all {self.servers}: ")
        return where + ", ".join(shown) + (f"; {self.not_known}" if self.not_known else "")


def drain_text(seconds: float) -> str:
    """Return when a queue is served, in words."""
    if seconds >= DRAIN_MAX_SECONDS:
        return f"the queue is not served within {DRAIN_MAX_SECONDS / 60:.0f} min"
    return f"the queue is served after {max(1, round(seconds / 60))} min"


def _shift(shift: Shift, unit: str = "") -> str:
    after, low, high = (_round(value) for value in (shift.after, shift.low, shift.high))
    spread = "" if low == high else f" ({low} to {high})"
    return f"{_before(shift)}{after}{unit}{spread}"


def _before(shift: Shift) -> str:
    return "" if math.isnan(shift.before) else f"{_round(shift.before)} -> "


def _percent(shift: Shift) -> str:
    low, high = f"{shift.low:.0%}", f"{shift.high:.0%}"
    spread = "" if low == high else f" ({low} to {high})"
    return f"{shift.before:.0%} -> {shift.after:.0%}{spread}"


def _printed(value: float) -> float:
    return float(f"{value:.2g}") if math.isnan(value) or abs(value) < 100 else round(value)


def _round(value: float) -> str:
    return number(_printed(value))


def _requests(value: float) -> str:
    return "<0.1" if 0 < value < 0.1 else _round(value)


NEED_GPUS: Final = frozenset({"add_replica", "decode_replica", "route_by_length"})
"""Keys of actions that take GPUs which the engine does not have."""
FIRST_STEPS: Final[Mapping[str, str]] = {
    "abort_request": "end the request that does not fit",
    "add_replica": "add replicas",
    "ask_less": "let clients ask for fewer tokens",
    "another_limit": "see which limit holds requests back",
    "api_servers": "more API server processes",
    "cap_output": "cap answers at the gateway",
    "cap_prompt": "cap prompts at the gateway",
    "cap_tokens": "cap prompts and answers at the gateway",
    "cpu": "more CPU for the server",
    "decode_replica": "add decode replicas or KV cache there",
    "fewer_sessions": "send fewer sessions here",
    "host_memory": "raise the container's memory limit",
    "kv_cache_dtype": "fp8 KV cache (--kv-cache-dtype)",
    "kv_offloading": "an offload tier",
    "less_work": "less work per request",
    "lower_max_num_batched_tokens": "lower --max-num-batched-tokens",
    "lower_max_num_seqs": "lower --max-num-seqs",
    "lower_memory_headroom": "lower --gpu-memory-utilization",
    "max_num_batched_tokens": "set --max-num-batched-tokens",
    "max_num_seqs": "set --max-num-seqs",
    "measure": "measure evictions",
    "memory_headroom": "set --gpu-memory-utilization",
    "other_pool": "enlarge the pool that is full",
    "prefix_caching": "enable prefix caching",
    "queue_limit": "raise the limit of the queue",
    "release_blocks": "end requests that hold the cache",
    "raise_max_num_batched_tokens": "raise --max-num-batched-tokens",
    "raise_max_num_seqs": "raise --max-num-seqs",
    "raise_memory_headroom": "raise --gpu-memory-utilization",
    "restart": "restart it",
    "route": "send requests to replicas with room",
    "save_evidence": "save the log, then restart",
    "see_decode_side": "look at the decode engines",
    "see_what_is_waited_for": "see what requests wait for",
    "see_whether_it_runs": "see whether its server runs",
    "short_first": "schedule short prompts first",
    "tokenizer_workers": "more tokenizer processes",
    "watermark": "set --watermark",
}
"""What an alert, which has room for forty characters, says of an action that stands first; by its `word`."""

_NUMBER: Final = re.compile(r"[0-9]+(\.[0-9]+)?")


@record
class Action:
    """One thing to do. `commands` are shell lines (comments begin with #); `placeholders` in them are to be replaced.

    `current` and `new` are texts for people, "" where nothing changes from a value to another; `flags` are the same
    change as flags of its runtime. `checks` say what must be observed, and within how long, one line each. `order`
    counts from 1. `expected` is what it is predicted to do, None where nothing can be predicted of it; `unpredicted`
    then says for lack of what, "" for what changes nothing by itself.

    `when` is NOW or AFTER, "" for what changes nothing. `value` is what it sets where that can be simulated. Of the
    first step `since` is since when it is advised (unix seconds), None before it was settled on, and `revised` why
    another one was advised before, "" where none was.
    """

    key: str
    title: str
    why: str
    current: str = ""
    new: str = ""
    cost: str = ""
    checks: tuple[str, ...] = ()
    commands: tuple[str, ...] = ()
    flags: Mapping[str, str] = field(default_factory=dict)
    placeholders: tuple[str, ...] = ()
    order: int = 0
    expected: Expected | None = None
    unpredicted: str = ""
    when: str = ""
    value: float | None = None
    since: float | None = None
    revised: str = ""

    @property
    def word(self) -> str:
        """The key, with the direction of the change before it where that is known and `FIRST_STEPS` has it."""
        current, new = _NUMBER.match(self.current), _NUMBER.match(self.new)
        if current is None or new is None:
            return self.key
        directed = f"{'raise' if float(new[0]) > float(current[0]) else 'lower'}_{self.key}"
        return directed if directed in FIRST_STEPS else self.key

    @property
    def needs_gpu(self) -> bool:
        """Whether it takes GPUs that the engine does not have."""
        return self.key in NEED_GPUS

    @property
    def expectation(self) -> str:
        """What it is expected to do, or why that is not known; "" for what changes nothing by itself."""
        if self.expected is not None:
            return self.expected.text or f"not predicted: {UNLIKE}"
        if not self.unpredicted or self.unpredicted.startswith(UNPREDICTABLE):
            return self.unpredicted
        return f"not predicted: {self.unpredicted}"

    @property
    def verify(self) -> str:
        """The checks as one text, a line each."""
        return "\n".join(self.checks)


def step_without_gpu(actions: Sequence[Action]) -> Action | None:
    """Return the best step that needs no more GPUs, beside a first one that does; None where none helps.

    It is the one that gains most of those that are predicted, or the first of those that are not.
    """
    if not actions or not actions[0].needs_gpu:
        return None
    steps = [action for action in actions if action.when and not action.needs_gpu]
    return max(steps, key=lambda action: 0.0 if action.expected is None else action.expected.gain_ratio, default=None)


def why_none_without_gpu(actions: Sequence[Action]) -> str:
    """Return why no step without more GPUs stands beside a first one that needs some, as a sentence."""
    first = actions[0]
    if first.unpredicted:
        return f"not predicted: {first.unpredicted}."
    declined = next((action.why for action in actions if action.key == "would_not_help"), "")
    why = declined.removeprefix(SIMULATED_ALONE).split("; ")[0].rstrip(".")
    return f"nothing that was tried helps{'; ' if why else ''}{why}."
