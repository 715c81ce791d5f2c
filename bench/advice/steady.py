"""`python -m bench.advice.steady`: how often the first step changes in one incident, and what contradicts its card.

The demo's incident at ten seeds, and recordings of the lab's regimes in the folder that is given. Somebody looks every
five seconds. A step contradicts its card when a figure of now is another than the one shown, when what it is for gets
worse, when a cap is below what running requests hold, or when it ends requests on a verdict that is unsure.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from bench.advice.predict import target
from bench.simulator import demo
from kvpressure.advice.advise import Case, Place, advise, advise_on
from kvpressure.cli.replay import Replay
from kvpressure.config.thresholds import Thresholds, load_thresholds
from kvpressure.daemon.recommended import Advised
from kvpressure.engines.recordings import TraceError
from kvpressure.model.action import Action, Shift
from kvpressure.model.values import at
from kvpressure.model.view import CALM, EngineView

LOOKS_SECONDS: Final = 5.0
FIRST_SECONDS: Final = 60.0
"""Of an incident, in which the first step may still change."""
CALM_SECONDS: Final = 60.0
"""Without trouble, after which the next one is another incident."""
SEEDS: Final = range(10)
SHOWN_ERROR: Final = 0.01


@dataclass(slots=True)
class Count:
    """Of one recording: first steps in the order in which they came, and their contradictions."""

    steps: list[tuple[float, str]] = field(default_factory=list)
    late_changes: list[int] = field(default_factory=list)
    contradictions: Counter[str] = field(default_factory=Counter)


def views(path: Path) -> Iterator[EngineView]:
    """Yield the views of the recording's one engine, `LOOKS_SECONDS` apart."""
    last = -math.inf
    for item in Replay(target(path.name.partition(".")[0]), load_thresholds()).views(path):
        if not isinstance(item, TraceError) and item[1] and item[0].t - last >= LOOKS_SECONDS:
            last = item[0].t
            yield item[1][0]


def count(path: Path, *, steady: bool) -> Count:
    """Return the count over a recording; without `steady` each look is advised on by itself."""
    found, advised, thresholds = Count(), Advised(), load_thresholds()
    began, quiet, first = math.nan, -math.inf, ""
    for view in views(path):
        if view.diagnosis is None or view.diagnosis.cause in CALM or not view.diagnosis.confidence:
            continue
        if view.t - quiet > CALM_SECONDS:
            began, first = view.t, ""
            found.late_changes.append(0)
        quiet = view.t

        def make(view: EngineView, standing: tuple[str, float | None]) -> tuple[Action, ...]:
            assert view.diagnosis is not None
            about = view.diagnosis, view.derived, view.limits, thresholds, Place(runtime="vllm")
            return advise_on(Case(*about, view.observed, (), standing))

        if steady:
            actions = advised.advice(view, thresholds, 1, make)
        else:
            about = view.diagnosis, view.derived, view.limits, Place(runtime="vllm"), thresholds
            actions = advise(*about, observed=view.observed)
        found.contradictions.update(kind for action in actions for kind in contradictions(view, action, thresholds))
        if not actions:
            continue
        step = f"{actions[0].key} {actions[0].new}".strip()
        if step != first:
            found.steps.append((view.t - began, step))
            found.late_changes[-1] += bool(first) and view.t - began > FIRST_SECONDS
            first = step
    return found


def contradictions(view: EngineView, action: Action, thresholds: Thresholds) -> Iterator[str]:
    """Yield what of an action contradicts the card that it stands on."""
    expected, held = action.expected, at(view.derived, "kv_tokens_per_request")
    if action.key == "cap_tokens" and held is not None:
        caps = [int(word.replace(",", "")) for word in action.new.split() if word.replace(",", "").isdigit()]
        if caps and sum(caps) < held:
            yield "a cap below what running requests hold"
    least = thresholds.advice.destructive_min_confidence_ratio
    if action.key == "restart" and view.diagnosis is not None and view.diagnosis.confidence < least:
        yield "ends requests on an unsure verdict"
    if expected is None:
        return
    shown = {
        "waiting": (expected.waiting, at(view.derived, "requests_waiting")),
        "tokens/s": (expected.tokens_per_second, at(view.derived, "tokens_per_second", "generation")),
        "p95": (expected.latency_p95, at(view.derived, "latency_seconds", "e2e", "0.95")),
    }
    for name, (shift, now) in shown.items():
        if now is not None and _differs(shift, now):
            yield f"{name} of now is not the one shown"
    if action.new and expected.worse:
        yield "worse in what it is for"


def _differs(shift: Shift, now: float) -> bool:
    return not math.isnan(shift.before) and abs(shift.before - now) > max(0.05, SHOWN_ERROR * now)


def main() -> int:
    """Count, print; 1 when a bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lab", type=Path, help="folder of recordings of the lab's regimes, .jsonl.xz")
    parser.add_argument("--unsteady", action="store_true", help="each look by itself, without what stood before")
    options = parser.parse_args()
    missed = False
    with TemporaryDirectory() as folder:
        paths = [Path(folder) / f"demo-{seed}.jsonl" for seed in SEEDS]
        for seed, path in zip(SEEDS, paths, strict=True):
            path.write_text("".join(demo.lines(seed)))
        paths += sorted(options.lab.glob("*.jsonl.xz")) if options.lab else []
        total = Counter[str]()
        for path in paths:
            found = count(path, steady=not options.unsteady)
            most = max(found.late_changes, default=0)
            missed |= most > 1 or bool(found.contradictions)
            total.update(found.contradictions)
            steps = "; ".join(f"{seconds:.0f} s {step}" for seconds, step in found.steps)
            print(f"{path.name.partition('.')[0]:20} late changes {most}  {steps}", flush=True)
        print(f"contradictions: {sum(total.values())} {dict(total)}")
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
