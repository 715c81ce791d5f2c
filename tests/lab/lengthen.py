"""A regime that goes on for longer: alerts that look at five or ten minutes have hardly begun when a recording ends.

Every time in it is multiplied: how long it lasts, when a load begins and ends, when something goes wrong. Sizes, loads
and speeds stay. `tests/lab/long/*.toml` are written for that length, and stand as they are.
"""

from dataclasses import replace
from pathlib import Path
from typing import Final

from tests.lab.regime import Regime, regimes

LONG: Final = Path(__file__).parent / "long"
MARK: Final = "+"
"""`kv-thrash+3` is `kv-thrash` three times as long."""
FACTOR: Final = 3
"""Nine minutes and more: a window of five, and the `for` of another five that stands behind it."""
CHOSEN: Final = (
    "cap-budget",
    "cap-queue-limit",
    "cap-refused",
    "cap-sequences",
    "cap-streams",
    "compute-late",
    "compute-prefill",
    "deferred-encoder",
    "deferred-grammar",
    "deferred-lora",
    "deferred-offload",
    "deferred-remote",
    "deferred-remote-stall",
    "healthy-chat",
    "healthy-decode-role",
    "healthy-full-pool",
    "healthy-json",
    "healthy-restart",
    "healthy-streams",
    "idle-quiet",
    "idle-stream",
    "kv-bursts",
    "kv-collapse",
    "kv-json",
    "kv-priority",
    "kv-refused",
    "kv-thrash",
    "paused-abort",
    "paused-keep",
    "paused-queued",
    "paused-sleep",
    "paused-wait",
    "paused-weights",
    "stuck-dropped",
    "stuck-hang",
    "stuck-hang-idle",
    "stuck-hang-pressed",
    "stuck-hang-queued",
    "stuck-hang-restarted",
    "stuck-loop",
)
"""Those that are made longer: what one of the alerts is about, or may take for it."""


def lengthened(regime: Regime, factor: int) -> Regime:
    """The same situation for `factor` times as long."""
    return replace(
        regime,
        name=f"{regime.name}{MARK}{factor}",
        expect="",
        seconds=regime.seconds * factor,
        load=tuple(replace(one, begin=one.begin * factor, end=one.end * factor) for one in regime.load),
        fault=tuple(replace(one, at=one.at * factor, until=one.until * factor) for one in regime.fault),
    )


def long_names(factor: int = FACTOR) -> list[str]:
    """What `python -m tests.lab --long` runs, by name."""
    return [f"{name}{MARK}{factor}" for name in CHOSEN] + list(regimes(LONG))
