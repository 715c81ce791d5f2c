"""Facts made from polls: what a test asks for is put on an engine's pages, and what `signals` makes of them is judged.

A test names facts as the groups of `VerdictWindow` do (`waiting_ratio=0.8, at_cap=True`). Polls are made that show
them, and a fact that comes out otherwise is an error: no page gives it together with the others.
"""

import math
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any, Final

import pytest

from kvpressure.model.samples import CacheConfig, EngineSample, GpuSample, HistogramSample
from kvpressure.model.values import Derived
from kvpressure.signals import Context, VerdictWindow, compute
from kvpressure.signals.context import GpuWindow
from kvpressure.signals.latency import TimeOutsideEngine
from kvpressure.signals.waiting import Deferral
from kvpressure.signals.windows import EngineWindow
from tests.support.engines import THRESHOLDS

CAPACITY: Final = 10_000
WINDOW: Final = 60
VERDICT: Final = 21
"""Polls of the verdict: one a second for 20 s."""

STEP: Final = 0.0005
"""Of the pool: polls differ by so much in use, and the lengths of prompts lie between."""

CHURN: Final = 0.4
"""Share of the batch in the polls of a batch whose free places last."""

HEALTHY_STEP_SECONDS: Final = 0.02


PAUSED: Final[Mapping[str, Mapping[str, float]]] = {
    "": {},
    "asleep": {"awake": 0.0},
    "weight_update": {"updating": 1.0},
    "pause_call": {"pauses": 1.0},
}


class Polls:
    """One engine, polled every second for two minutes; its facts are those of `asked`, by their names."""

    def __init__(self, asked: Mapping[str, Any]) -> None:
        self._asked = asked
        self._outside: TimeOutsideEngine | None = asked.get("outside")
        self._deferral: Deferral = asked.get("deferral", Deferral())
        self._waiting_polls = round((self._get("waiting_ratio", 1.0 if self._get("waiting", 0.0) else 0.0)) * VERDICT)
        waiting = self._get("waiting", 0.0)
        self._waiting = waiting * VERDICT / self._waiting_polls if self._waiting_polls else 0.0
        self._nothing_runs = bool(asked.get("all_deferred_ratio")) or asked.get("busy") is False
        self._running = 0.0 if self._nothing_runs else max(0.0, self._get("demand", waiting + 8.0) - waiting)
        self._blocked = [
            round((self._get(name, 0.0)) * VERDICT)
            for name in ("blocked_ratio", "blocked_by_long_ratio", "blocked_by_longest_ratio")
        ]
        if asked.get("starved"):
            self._blocked[0] = 0
        self._blocked = [max(self._blocked[: end + 1]) for end in range(3)]
        needs_lengths = ("blocked_ratio", "request_ratio", "waited_steps", "step_tokens", "prefill_ratio")
        unknown = "blocked_ratio" in asked and asked["blocked_ratio"] is None
        self.lengths_known = not unknown and any(asked.get(name) is not None for name in needs_lengths)
        stands = max(self._get(f"{kind}_seconds", 0.0) for kind in ("frozen", "looping", "still", "last_step"))
        self.frozen_at = WINDOW - stands if stands else math.inf
        self.usage = self._usage()
        self.prompts = self._prompt_tokens()

    def _get(self, name: str, default: float) -> float:
        value = self._asked.get(name)
        return default if value is None else float(value)

    def _usage(self) -> list[float]:
        """Use of the pool at each poll, the mean as asked for."""
        above = [
            sum(poll < blocked for blocked in self._blocked) * STEP + (0.06 if self._fits_never(poll) else 0.0)
            for poll in range(VERDICT)
        ]
        return [self._get("kv_usage_ratio", 0.4) + one - sum(above) / VERDICT for one in above]

    def _fits_never(self, poll: int) -> bool:
        """Whether what is blocked would not fit without a watermark either."""
        share = self._asked.get("by_watermark_ratio")
        return share is not None and share * self._blocked[0] <= poll < self._blocked[0]

    @property
    def watermark_ratio(self) -> float | None:
        """What is kept free, where a test asks what it costs."""
        return None if self._asked.get("by_watermark_ratio") is None else 0.05

    def _prompt_tokens(self) -> tuple[float, float, float]:
        """A typical prompt, a long one and the longest."""
        found: list[float] = []
        kept = (self.watermark_ratio or 0.0) * CAPACITY
        for blocked in self._blocked:
            inside = [CAPACITY * (1 - self.usage[poll]) - kept for poll in range(blocked)]
            outside = [CAPACITY * (1 - self.usage[poll]) - kept for poll in range(blocked, VERDICT)]
            small = min(200.0, min(outside, default=math.inf) / 2)
            found.append(max(inside) + STEP * CAPACITY / 2 if inside else max(small, *found, 0.0))
        return found[0], found[1], found[2]

    def gauges(self, t: int) -> dict[str, float]:
        """What the page reads at `t`, which ends at 60."""
        asked, poll = self._asked, (t - WINDOW - 1) % VERDICT
        if asked.get("busy", True) is None:
            return {}
        stands, looping = t >= self.frozen_at, bool(asked.get("looping_seconds"))
        still = stands and bool(asked.get("still_seconds"))
        waiting = self._waiting if still or poll < self._waiting_polls else 0.0
        usage = self.usage[0 if stands and not looping else poll] + (0.01 * (t % 2) if stands and looping else 0.0)
        gauges = {"running": 0.0 if still else self._batch(t, poll), "waiting": waiting, "kv_usage": usage}
        if asked.get("reasons_known", True) and asked.get("deferred_ratio", 0.0) is not None:
            gauges["waiting_deferred"] = waiting * self._get("deferred_ratio", 0.0)
        if asked.get("fetching_ratio") is not None:
            gauges["fetching"] = waiting * asked["fetching_ratio"]
        for name, gauge in (("kv_usage_ratio", "kv_usage"), ("demand", "running"), ("waiting_ratio", "waiting")):
            if name in asked and asked[name] is None:
                del gauges[gauge]
        if asked.get("last_step_seconds"):
            gauges["keeps_last_step"] = 1.0
        return gauges | PAUSED[asked.get("paused_by", "")] | self._adapters()

    def _batch(self, t: int, poll: int) -> float:
        """How many run: at a cap always as many, else fewer than in one poll of before, or mostly as many."""
        if self._asked.get("at_cap"):
            return self._running
        if self._get("steadiness", 0.0) >= THRESHOLDS.batch.at_cap_min_ratio:
            mean = (13 + 8 * CHURN) / VERDICT
            return self._running / mean * (CHURN if poll % 5 in (1, 3) else 1.0)
        return self._running / self._get("steadiness", 0.5) if t == 10 else self._running

    def _adapters(self) -> dict[str, float]:
        slots, over = self._deferral.slots, self._deferral.adapters_oversubscribed
        if slots is None:
            return {}
        found = {"adapter_slots": slots, "adapters_running": slots if self._deferral.slots_taken else 0.0}
        return found if over is None else found | {"adapters_seen": slots + float(over)}

    def counters(self, t: int) -> dict[str, float]:
        """What the page has counted at `t`."""
        asked, at = self._asked, min(float(t + 1000), 1000.0 + self.frozen_at)
        if asked.get("busy", True) is not True or asked.get("generated_tokens") == 0.0:
            at = 1000.0
        found = self._tokens(at)
        if asked.get("busy", True) is not None:
            found["preemptions"] = self._preempted(t)
        if (prefilling := asked.get("prefilling")) is not None:
            found["prefill_seconds"] = prefilling * at
        if (refused := asked.get("refused_ratio")) is not None:
            found["rejected"] = (1.0 if refused == 1.0 else refused / (1 - refused)) * (t + 1000.0)
        if (outside := self._outside) is not None:
            whole = outside.seconds / outside.ratio
            found |= {"ended": at, "e2e_seconds": whole * at, "queue_seconds": 0.0}
            found["inference_seconds"] = (whole - outside.seconds) * at
        return found | self._elsewhere(at)

    def _tokens(self, at: float) -> dict[str, float]:
        """One request a second, its tokens and the steps that they take."""
        asked, prompt = self._asked, self.prompts[0]
        output = max(prompt, 100.0)
        if (generated := asked.get("generated_tokens")) is not None:
            output = generated / 20
        if (ratio := asked.get("prefill_ratio")) is not None:
            output = prompt * (1 - ratio) / ratio
        steps = max(20.0, (prompt + output) / 500)
        if asked.get("waited_steps"):
            steps = asked["waited_steps"] / asked["waiting"]
        if (tokens := asked.get("step_tokens")) is not None:
            steps = (prompt + output) / tokens
        started = min(at, 1000.0 + WINDOW - VERDICT) if asked.get("starved") else at
        found = {"steps": steps * at, "generation_tokens": output * at, "finished": at, "started": started}
        if self.lengths_known:
            found |= {"finished_prompts": at, "finished_prompt_tokens": prompt * at, "prompt_tokens": prompt * started}
        elif asked.get("request_ratio") is None:
            del found["started"]
            if "request_ratio" in asked:
                del found["finished"]
            found["prompt_tokens"] = 10.0 * at
        if "prefill_ratio" in asked and ratio is None:
            del found["prompt_tokens"]
        return found

    def _elsewhere(self, at: float) -> dict[str, float]:
        deferral, found = self._deferral, dict[str, float]()
        if deferral.connector is not None:
            found["external_queries"] = 100.0 * at if deferral.connector else 0.0
        if deferral.brought_ratio is not None:
            found["external_hits"] = 100.0 * at * deferral.brought_ratio
        if deferral.images is not None:
            found["encoder_queries"] = at if deferral.images else 0.0
        return found | {
            name: at
            for name, there in (("remote_transfers", deferral.remote), ("offload_loads", deferral.offload))
            if there
        }

    def _preempted(self, t: int) -> float:
        """In as many spans of five seconds as asked for, the newest ones; or once, before the verdict's polls."""
        asked = self._asked
        if spans := int(self._get("burst_count", 0.0)):
            served = 20.0 + self._running
            each = served * self._get("request_ratio", 0.1) / spans
            return each * sum(t >= WINDOW - 5 * span for span in range(spans))
        if asked.get("in_window"):
            return float(t >= 20)
        return float(t >= -30) if asked.get("in_long_window") else 0.0

    def histograms(self, t: int) -> dict[str, HistogramSample]:
        """Lengths of what ended, and seconds between two tokens."""
        at, found = float(t + 1000), dict[str, HistogramSample]()
        if self.lengths_known:
            _, long, longest = self.prompts
            found["request_prompt_tokens"] = _around(sorted({long: at * 1e6, longest: at}.items()))
        if self._asked.get("starved"):
            found["request_output_tokens"] = _around([(0.9 * CAPACITY, at)])
        if (slowdown := self._asked.get("slowdown_factor")) is not None:
            found["inter_token"] = _around([(slowdown * HEALTHY_STEP_SECONDS, at)])
        if (held_up := self._asked.get("held_up_ratio")) is not None:
            # One token in twenty-five comes so late that the others take what is left of the time.
            late = 24 * HEALTHY_STEP_SECONDS * held_up / (1 - held_up)
            found["inter_token"] = _around([(HEALTHY_STEP_SECONDS, 0.96 * at), (late, 0.04 * at)])
        return found

    def window(self, cache: CacheConfig | None) -> EngineWindow:
        """Poll it as often as asked for."""
        window = EngineWindow(WINDOW, 600)
        every = 1
        if "seconds" in self._asked:
            every = math.ceil(self._asked["seconds"] / max(1, self._asked["polls"] - 1))
        times = list(range(WINDOW, -WINDOW - 1 if self._asked.get("in_long_window") else -1, -every))[
            : self._asked.get("polls", 10_000)
        ]
        for t in reversed(times):
            window.add(
                float(t + 1000), EngineSample("m", "0", self.gauges(t), self.counters(t), self.histograms(t), cache)
            )
        return window


def _around(values: list[tuple[float, float]]) -> HistogramSample:
    """A histogram of so many observations in a narrow bucket around each value."""
    bounds, counts, total = list[float](), list[float](), 0.0
    for value, count in values:
        bounds += [value * 0.9999, value * 1.0001]
        counts += [total, total + count]
        total += count
    return HistogramSample((*bounds, math.inf), (*counts, total), sum(value * count for value, count in values))


def polled(asked: Mapping[str, Any], derived: Derived) -> tuple[Derived, VerdictWindow, frozenset[str]]:
    """Derived values, verdict window and signals of polls that show what is `asked`; `derived` says what more is known.

    Fails where a fact comes out otherwise.
    """
    polls = Polls(asked)
    capacity = polls.lengths_known or "kv_capacity_tokens" in derived
    cache = CacheConfig(
        capacity_tokens=CAPACITY if capacity else None,
        watermark_ratio=polls.watermark_ratio,
        layers_differ=bool(asked.get("fit_unknown")),
        admission="unseen" if asked.get("room_is_unseen") else "prompt",
    )
    window = polls.window(cache)
    gpus = () if asked.get("gpu_utilization_ratio") is None else (_gpu(asked["gpu_utilization_ratio"]),)
    window.cache = cache
    reading = compute(
        window,
        Context(THRESHOLDS, gpus, baseline=dict.fromkeys(("inter_token", "inter_token_mean"), HEALTHY_STEP_SECONDS)),
    )
    for name, value in asked.items():
        if asked.get("still_seconds") and name in ("demand", "generated_tokens"):
            continue  # of a moment before it stood still
        shown = fact(reading.newest, name)
        assert alike(shown, value), f"no page gives {name}={value} together with the others: {shown}"
    return reading.derived, reading.newest, window.signals()


def fact(window: VerdictWindow, name: str) -> Any:
    """A fact of the window, or of the group that has it."""
    groups = [getattr(window, one.name) for one in fields(window)]
    return next(getattr(one, name) for one in (window, *filter(is_dataclass, groups)) if hasattr(one, name))


def alike(shown: Any, value: Any) -> bool:
    """Whether a fact is what was asked for, numbers as near as 21 polls can have them."""
    if isinstance(value, TimeOutsideEngine):
        return alike(shown.seconds, value.seconds) and alike(shown.ratio, value.ratio)
    return bool(shown == (pytest.approx(value, rel=0.1, abs=0.06) if isinstance(value, float) else value))


def _gpu(utilization: float) -> GpuWindow:
    gpu = GpuWindow(WINDOW)
    for t in range(1000, 1000 + WINDOW + 1):
        gpu.add(
            GpuSample(
                float(t),
                "GPU-1",
                "0",
                "nvidia",
                memory_used_bytes=93.0,
                memory_total_bytes=100.0,
                utilization=(utilization,),
            )
        )
    return gpu
