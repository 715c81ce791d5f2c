"""Whether the engine makes progress."""

from __future__ import annotations

from kvpressure.diagnosis.facts import Facts
from kvpressure.diagnosis.predicates import Fact, Predicate, fact
from kvpressure.diagnosis.predicates.queue import may_be_sessions, must_be_deferred
from kvpressure.diagnosis.predicates.symptoms import REASONS


@fact("awake")
def asleep(facts: Facts) -> bool | None:
    """Return whether it says that it sleeps; one whose page does not say is known to be awake while it works."""
    progress = facts.window.progress
    if progress.paused_by == "asleep":
        return True
    return None if "awake" not in facts.inputs.signals and not progress.moved else False


def paused_by(word: str) -> Predicate:
    """Return a predicate: whether the engine was stopped on purpose in this way."""
    return Fact(lambda facts: facts.window.progress.paused_by == word)


frozen_long = Fact(
    lambda facts: facts.window.progress.frozen_seconds >= facts.thresholds.progress.stuck_frozen_min_seconds, "log"
)
"""Whether requests run, and nothing that work moves has moved for so long that it is no pause."""

looping_long = Fact(
    lambda facts: facts.window.progress.looping_seconds >= facts.thresholds.progress.stuck_frozen_min_seconds, "log"
)
"""Whether requests run, the use of the cache falls and rises, and nothing has come out for so long."""


@fact("generation_tokens", "prompt_tokens")
def computes_long_prompt(facts: Facts) -> bool | None:
    """Return whether the cache only filled for so long, lately too, with one prompt and hardly anything else."""
    if not facts.inputs.signals.issuperset(("generation_tokens", "prompt_tokens")):
        return None  # whether answers, a prompt or several fill it does not show
    progress, thresholds = facts.window.progress, facts.thresholds
    long = progress.filling_seconds >= thresholds.progress.long_prompt_min_seconds
    return long and progress.filled_ratio >= thresholds.progress.long_prompt_min_ratio


of_last_step = Fact(
    lambda facts: facts.window.progress.last_step_seconds >= facts.thresholds.progress.stuck_min_seconds
)
"""Whether the page has been that of the last step for so long that there is none under way.

That it hangs instead would not be seen.
"""


@fact()
def loops_longest(facts: Facts) -> bool:
    """Return whether nothing has come out for longer than everything has stood still."""
    window = facts.window
    return window.progress.looping_seconds > 0 and window.progress.looping_seconds >= window.progress.frozen_seconds


nothing_runs = Fact(lambda facts: facts.window.progress.still_seconds >= facts.thresholds.progress.stuck_min_seconds)
"""Whether requests wait, and none has run for longer than a step's pause."""


@fact("log", REASONS)
def still_long(facts: Facts) -> bool | None:
    """Return whether requests wait for a place, none runs, and nothing has come out for so long that it is no pause.

    Without the reasons for waiting, they may be deferred: that ends by itself more often, so it has to last longer.
    """
    window, thresholds = facts.window, facts.thresholds
    if window.queue.reasons_known:
        return window.progress.still_seconds >= thresholds.progress.stuck_min_seconds
    lasts = window.progress.still_seconds >= thresholds.progress.stuck_frozen_min_seconds
    if not lasts or must_be_deferred.state(facts):
        return False
    return None if may_be_sessions.state(facts) else True
