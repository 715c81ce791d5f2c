"""What the exporter's own pipeline advises at the end of a recording, and what it expects of it.

Advice is told as changes of a regime of the lab, as is every set of the same changes. It is also told whether the
recovery checks that were printed hold, before and after.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from time import process_time
from typing import Any, Final

from kvpressure.advice.advise import Place, advise
from kvpressure.advice.case import Case
from kvpressure.advice.forecast import Forecast, forecast_of, more_batch, more_gpus, with_sessions, without_limit
from kvpressure.advice.limits import SEQUENCE_CAPS
from kvpressure.advice.recommendation import LOOK
from kvpressure.capacity.cards import table
from kvpressure.cli.replay import Replay, ReplayTarget
from kvpressure.config.target import Target
from kvpressure.config.thresholds import load_thresholds
from kvpressure.engines.recordings import TraceError
from kvpressure.model.action import Action, Expected
from kvpressure.model.catalogue import CATALOGUE
from kvpressure.model.environment import DeclaredLimit
from kvpressure.model.verdict import Cause
from kvpressure.model.view import EngineView
from kvpressure.simulation.config_changes import ConfigChange
from kvpressure.simulation.consequences import Model
from kvpressure.simulation.greedy_search import HOLD, Choice
from tests.lab.changed import REGIMES
from tests.lab.regime import Regime, regimes
from tests.lab.vary import MARK
from tests.lab.worker import found as regime_of
from tests.support.checks import exported
from tests.support.checks import holds as check_holds

Key = tuple[tuple[str, float], ...]
NOTHING: Final[Key] = ()
PRICED: Final = ("kv_cache_dtype", "add_replica")
"""Cures that cost accuracy or hardware: a set is compared with sets that have no more of these."""
UNTRIED: Final = ("kv_offloading", "route_by_length", "sessions")
"""What this lab has nothing for: an offload tier, servers by prompt length; for fewer sessions `eviction` has runs."""


@dataclass(frozen=True, slots=True)
class Change:
    """What is replaced in a regime, and by how many servers its clients are shared."""

    flags: dict[str, Any]
    edge: dict[str, Any]
    shared: int = 1
    long_last: float = 0.0


def key(changes: Iterable[ConfigChange]) -> Key:
    """Cures by kind and value, in one order."""
    return tuple(sorted((change.key, float(change.value)) for change in changes))


def change(regime: Regime, changes: Key) -> Change:
    """Those changes done to a regime."""
    flags: dict[str, Any] = {}
    edge: dict[str, Any] = {}
    shared, long_last = 1, 0.0
    for kind, value in changes:
        match kind:
            case "cap_prompt":
                edge["max_prompt"] = int(value)
            case "cap_output":
                edge["max_output"] = int(value)
            case "max_num_seqs" | "max_num_batched_tokens" | "max_loras":
                flags[kind] = int(value)
            case "watermark":
                flags["watermark"] = value
            case "kv_cache_dtype":
                # One block is the null block, whatever a block holds.
                flags["num_gpu_blocks"] = 2 * (regime.flags.num_gpu_blocks - 1) + 1
            case "prefix_caching":
                flags["enable_prefix_caching"] = True
            case "short_first":
                long_last = value
            case "add_replica":
                shared = int(value)
            case _:
                raise ValueError(f"the lab has nothing for {kind}")
    return Change(flags, edge, shared, long_last)


def sets(changes: Iterable[ConfigChange]) -> Iterator[Key]:
    """Every set of the changes that were advised or tried, one value of each kind; replicas as they were advised."""
    kinds: dict[str, list[float]] = {}
    for change in changes:
        values = kinds.setdefault(change.key, [])
        if change.value not in values:
            values.append(change.value)
    options: list[Sequence[tuple[str, float] | None]] = [
        [None, *((kind, value) for value in values)] for kind, values in sorted(kinds.items())
    ]
    for chosen in itertools.product(*options):
        yield tuple(one for one in chosen if one is not None)


def costs_no_more(changes: Key, than: Key) -> bool:
    """Whether a set has none of what costs accuracy or hardware that the other does not have."""
    return {kind for kind, _ in changes if kind in PRICED} <= {kind for kind, _ in than}


DECLARED: Final = {"cap-budget": ("max_num_batched_tokens",)}
LIFTED: Final = 1024
"""A cap on sequences that is none."""
SLOTS: Final = "--max-loras"
CARD: Final = "card"
"""Family of the regimes whose steps take what was measured on a card; what each is about does not stand in its name."""
PRESSED: Final = (Cause.KV_CACHE_PRESSURE, Cause.HEALTHY)


@dataclass(frozen=True, slots=True)
class Advised:
    """What is advised, or why nothing could be predicted."""

    actions: tuple[Action, ...]
    choice: Choice | None
    model: Model | None
    reason: str
    cpu_seconds: float = 0.0
    """Of all that is advised."""

    @property
    def printed(self) -> Key:
        """The changes that are advised."""
        return key(self.done(step.change) for step in self.choice.steps) if self.choice else ()

    def done(self, change: ConfigChange) -> ConfigChange:
        """What is done for it: where nothing is to hold requests back, the flag that is printed, or no cap at all."""
        if change.key != HOLD:
            return change
        slots = next((float(action.flags[SLOTS]) for action in self.actions if SLOTS in action.flags), None)
        if slots is None:
            return replace(change, key="max_num_seqs", value=LIFTED)
        return replace(change, key="max_loras", value=slots)

    def alone(self, change: ConfigChange) -> Expected | None:
        """What is expected of one of them by itself."""
        return self.model.expected([], [change]) if self.model else None

    def together(self) -> Expected | None:
        """What is expected of all of them."""
        return (
            self.model.expected([], [step.change for step in self.choice.steps]) if self.model and self.choice else None
        )


def every_regime() -> dict[str, Regime]:
    """Return the lab's regimes and those of this benchmark alone, by name."""
    return regimes() | regimes(REGIMES)


def advised(path: Path) -> Advised:
    """Advice on the last view of the recording in which the engine was under KV pressure."""
    view = _named(_last(path), path.name.partition(".jsonl")[0])
    if view is None or view.diagnosis is None:
        return Advised((), None, None, "never told to be under KV pressure")
    place, thresholds = Place(runtime="vllm"), load_thresholds()
    began = process_time()
    actions = advise(view.diagnosis, view.derived, view.limits, place, thresholds, observed=view.observed)
    took = process_time() - began
    found = forecast(Case(view.diagnosis, view.derived, view.limits, thresholds, place, view.observed))
    return Advised(actions, None if found.choice is None else tried(found.choice), found.model, found.reason, took)


def _named(view: EngineView | None, name: str) -> EngineView | None:
    """The view with the model's name that its page would have: all of the lab's are served under one name."""
    known = every_regime()
    card = regime_of(known, name).card if name.partition(MARK)[0] in known else None
    if view is None or view.observed is None or card is None:
        return view
    return replace(view, observed=replace(view.observed, model_name=table(card.table).model))


def forecast(case: Case) -> Forecast:
    """Return the forecast for the case, whatever its cause is."""
    row, detail = CATALOGUE[case.diagnosis.cause], case.diagnosis.detail
    if row.predictable and not row.losing:
        return more_gpus(case)
    if detail in (*SEQUENCE_CAPS, "prefill_budget"):
        return more_batch(case)
    if row.predictable and not row.of_cache:
        return without_limit(case)
    found = with_sessions(case)
    # As advice does: where sessions are simulated and something helps them, that is what is printed.
    return found if found is not None and found.choice is not None and found.choice.steps else forecast_of(case)


def tried(choice: Choice) -> Choice:
    """Return the choice without what the lab has nothing for."""
    steps, declined = (
        tuple(step for step in some if step.change.key not in UNTRIED) for some in (choice.steps, choice.declined)
    )
    return replace(choice, steps=steps, declined=declined)


def target(name: str) -> Target:
    """A regime of the lab as a target; with its limits where advice is about one that no page tells."""
    declared = {flag: getattr(regime_of(every_regime(), name).flags, flag) for flag in DECLARED.get(name, ())}
    limits = [DeclaredLimit(flag, value, "the regime") for flag, value in declared.items()]
    return ReplayTarget("lab", limits=tuple(limits) or None)


def last_pressed(views: Iterable[EngineView], name: str) -> EngineView | None:
    """The last view from which something can be predicted; of a regime of KV pressure, under that."""
    found, pressed = None, _is_about_kv(name)
    for view in views:
        wanted = not pressed or view.diagnosis is None or view.diagnosis.cause in PRESSED
        found = view if view.observed is not None and wanted else found
    return found


def _is_about_kv(name: str) -> bool:
    """Whether KV pressure is what the regime was written for."""
    # A varied regime is about what it was written for, though it may show another cause.
    on_card = every_regime().get(name.partition(MARK)[0]) if name.startswith(f"{CARD}-") else None
    return name.startswith("kv-") or (on_card is not None and on_card.expect == Cause.KV_CACHE_PRESSURE)


def _last(path: Path) -> EngineView | None:
    name = path.name.partition(".")[0]
    items = Replay(target(name), load_thresholds()).views(path)
    return last_pressed((view for item in items if not isinstance(item, TraceError) for view in item[1]), name)


SECONDS: Final = 60
"""At the end of a run, in most of which they have to hold, or not."""


def holds(before: Path, after: Path) -> tuple[bool, bool] | None:
    """Whether all recovery checks of the advice on `before` hold in most of its end, and of that of `after`.

    None where the confidence is too low for more than another look: that has no check.
    """
    views = _views(before)
    pressed = last_pressed(views, before.name.partition(".")[0])
    assert pressed is not None
    assert pressed.diagnosis is not None
    place, thresholds = Place(model_name=pressed.shown.model_name, runtime="vllm"), load_thresholds()
    actions = advise(pressed.diagnosis, pressed.derived, pressed.limits, place, thresholds, observed=pressed.observed)
    checks = next((found for action in reversed(actions) if (found := [*filter(_is_check, action.checks)])), None)
    if checks is None:
        assert LOOK in {action.key for action in actions}, f"{before.name}: advice without a recovery check"
        return None
    return _most([pressed], checks), _most(_views(after)[-SECONDS:], checks)


def _is_check(line: str) -> bool:
    return line.startswith("kvpressure_")


def _views(path: Path) -> list[EngineView]:
    found: deque[EngineView] = deque(maxlen=20 * SECONDS)
    for item in Replay(target(path.name.partition(".")[0]), load_thresholds()).views(path):
        if not isinstance(item, TraceError):
            found += item[1]
    return list(found)


def _most(views: list[EngineView], checks: list[str]) -> bool:
    held = [all(check_holds(line, exported(view)) for line in checks) for view in views]
    return 2 * sum(held) > len(held)
