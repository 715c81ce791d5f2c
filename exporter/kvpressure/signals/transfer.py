"""Prefill and decode apart: which of them an engine does, KV that it keeps for others, and transfers under way.

A prefill engine keeps the blocks of a finished prompt until the decode engine has read them: they are in use, and no
request of its own has them.
"""

from __future__ import annotations

import math
from typing import Final

from kvpressure.config.thresholds import Thresholds
from kvpressure.model.environment import DECODE, PREFILL
from kvpressure.model.family import engine_family
from kvpressure.model.record import record
from kvpressure.signals.context import Context
from kvpressure.signals.lengths import long_prompt_tokens, typical_prompt_tokens
from kvpressure.signals.points import Polls, mean
from kvpressure.signals.room import answers_are_one_token
from kvpressure.signals.waiting import Deferral
from kvpressure.signals.windows import EngineWindow

FAMILIES: Final = (
    engine_family(
        "role",
        "1 for the engine's role with disaggregated prefill: prefill or decode. From its pod's label, its flags, its "
        "metrics, a gateway or its requests; absent if it does both, or if the role is unknown.",
        "role",
    ),
    engine_family(
        "held_for_transfer_tokens",
        "KV cache tokens of a prefill engine that belong to no running request: finished prompts that decode engines "
        "have not read yet, mean over the polls of the verdict.",
    ),
)


@record
class Transfer:
    """What an engine is to others, over some polls; every field is empty where it is not known that it is anything.

    `role` is `PREFILL` or `DECODE`. `held_tokens` are those of finished prompts, at least, and `held_kv_ratio` is their
    share of the tokens in use; each prompt is there for `held_seconds`, by Little's law. `in_flight` is how many
    transfers were under way on average, by Little's law; each took `seconds` on average, and all together brought
    `bytes_per_second`.
    """

    role: str = ""
    held_tokens: float | None = None
    held_kv_ratio: float | None = None
    held_seconds: float | None = None
    in_flight: float | None = None
    seconds: float | None = None
    bytes_per_second: float | None = None


def transfer_of(points: Polls, window: EngineWindow, context: Context, deferral: Deferral) -> Transfer:
    """Return what the polls `points`, the newest of `window`, show."""
    role = context.role or _role_of_page(window, deferral, context.thresholds)
    if role == PREFILL:
        return _held(points, window, context.thresholds)
    if role != DECODE:
        return Transfer()
    count, seconds = window.points.growth("remote_transfers"), window.points.growth("transfer_seconds")
    return Transfer(
        role,
        in_flight=window.points.rate("transfer_seconds"),
        seconds=seconds / count if seconds is not None and count else None,
        bytes_per_second=window.points.rate("transfer_bytes"),
    )


def _role_of_page(window: EngineWindow, deferral: Deferral, thresholds: Thresholds) -> str:
    """Return the role that its requests show: hardly any prompt is computed, or no answer has more than one token."""
    if not deferral.remote or deferral.brought_ratio is None:
        return ""
    ended = window.newest("finished_prompts") or 0.0
    if ended < thresholds.role.min_request_count or window.newest("finished_output_tokens") is None:
        return ""
    if deferral.brought_ratio >= thresholds.role.brought_min_ratio:
        return DECODE
    return PREFILL if not deferral.brought_ratio and answers_are_one_token(window, thresholds) else ""


def _held(points: Polls, window: EngineWindow, thresholds: Thresholds) -> Transfer:
    """Return what is held for transfer: the tokens in use beyond a long prompt for each running request."""
    capacity, usage = window.cache.capacity_tokens, points.values("kv_usage")
    prompt = long_prompt_tokens(window, typical_prompt_tokens(window), thresholds.room.last_bucket_middle_factor)
    if capacity is None or prompt is None or not usage:
        return Transfer(PREFILL)
    held = mean(
        [
            max(0.0, point.gauges["kv_usage"] * capacity - point.gauges.get("running", 0.0) * prompt)
            for point in points
            if "kv_usage" in point.gauges
        ]
    )
    used, ended = mean(usage) * capacity, window.points.rate("finished_prompt_tokens")
    seconds = None if ended is None else held / ended if ended else math.inf if held else 0.0
    return Transfer(PREFILL, held, held / used if used else 0.0, seconds)
