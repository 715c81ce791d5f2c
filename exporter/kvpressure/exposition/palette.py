"""Colour, name and meaning of every cause: one place for the page and the dashboards.

The ten colours stay apart (CIE76 distance of 20 or more) for people with protanopia, deuteranopia and tritanopia,
and each carries its ink with a contrast of 4.5 or more. Colour is never the only carrier: the name stands beside it.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvpressure.model.verdict import DETAILS, Cause, Diagnosis, Stage


@dataclass(frozen=True, slots=True)
class Look:
    """How a cause is shown: `fill` and `ink` are #rrggbb, `label` is its name, `meaning` a sentence for people."""

    fill: str
    ink: str
    label: str
    meaning: str


_WHITE, _BLACK = "#ffffff", "#111111"

CAUSES: dict[Cause, Look] = {
    Cause.IDLE: Look("#6e7781", _WHITE, "idle", "No requests."),
    Cause.HEALTHY: Look("#2e9e6b", _BLACK, "healthy", "All demand is served."),
    Cause.KV_CACHE_PRESSURE: Look(
        "#c8500a", _WHITE, "KV cache pressure", "Requests wait because they do not fit into the KV cache."
    ),
    Cause.COMPUTE_BOUND: Look("#0b5394", _WHITE, "compute bound", "The GPU is the limit, and it is well used."),
    Cause.CONCURRENCY_BOUND: Look(
        "#b07cd8",
        _BLACK,
        "concurrency bound",
        "A limit on the batch keeps requests waiting; the KV cache has room for them.",
    ),
    Cause.HOST_BOUND: Look("#f0b429", _BLACK, "host bound", "The GPU waits for the CPU or the API server."),
    Cause.DEFERRED: Look(
        "#cc00ff",
        _BLACK,
        "deferred",
        "Requests wait for something else: a grammar, a LoRA slot, KV from elsewhere, an image encoder.",
    ),
    Cause.PAUSED: Look("#99ff99", _BLACK, "paused", "Paused, asleep or loading new weights, on purpose."),
    Cause.STUCK: Look("#5e1736", _WHITE, "stuck", "Requests are there, and the engine makes no progress."),
    Cause.UNKNOWN: Look("#d5dae0", _BLACK, "unknown", "Not enough evidence to name a cause."),
}

STAGES: dict[Stage, str] = {
    Stage.NONE: "",
    Stage.BUILDING: "pressure building",
    Stage.COLLAPSED: "collapsed",
    Stage.FAILING: "failing",
}


def meaning(diagnosis: Diagnosis) -> str:
    """What the verdict says, as a sentence: which kind of its cause where that is told, else the cause."""
    told = DETAILS[diagnosis.cause].get(diagnosis.detail)
    return f"{told[:1].upper()}{told[1:]}." if told else CAUSES[diagnosis.cause].meaning
