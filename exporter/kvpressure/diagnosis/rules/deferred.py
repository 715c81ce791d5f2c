"""`deferred`: requests wait for something outside the batch."""

from __future__ import annotations

from typing import Final

from kvpressure.diagnosis.facts import Facts
from kvpressure.diagnosis.predicates import Predicate, batch, queue, symptoms
from kvpressure.diagnosis.rules import Grounds, dropped, loading, rules_of, same
from kvpressure.model.values import number
from kvpressure.model.verdict import Cause
from kvpressure.signals.waiting import GIGABYTE

_fetching = queue.queued & queue.mostly_fetching & ~symptoms.preempting.known_true()
_in_transfer = queue.queued & queue.mostly_in_transfer & ~symptoms.preempting.known_true()
_deferred = queue.queued & ~batch.at_cap & queue.mostly_deferred
_must_be = queue.queued & ~queue.reasons_known & queue.must_be_deferred
"""The page does not say what they wait for, and nothing else is left."""


def _from_elsewhere(prefix: str, when: Predicate, share: Grounds) -> tuple[tuple[str, str, Predicate, Grounds], ...]:
    """Return the rows of KV from elsewhere, by the connector that the page shows."""

    def grounds(shown: Grounds) -> Grounds:
        return lambda facts: f"{share(facts)}; {shown(facts)}.{_trouble(facts)}"

    remote, offload = same("a connector to other engines is in use"), same("an offload tier is in use")
    return (
        (f"{prefix}remote_kv", "remote_kv", when & queue.remote_kv_shows, grounds(remote)),
        (f"{prefix}offload", "offload", when & queue.offload_shows, grounds(offload)),
        (f"{prefix}external_kv", "external_kv", when, grounds(_which)),
    )


def _trouble(facts: Facts) -> str:
    """Return what is known of loads that fail or are slow, as sentences; "" where nothing is."""
    deferral, said = facts.window.deferral, []
    if deferral.failed_loads:
        said.append(f" {number(deferral.failed_loads)} loads of KV failed in the last minutes.")
    if deferral.read_seconds_per_gigabyte is not None:
        said.append(f" A gigabyte from its slower tier takes {deferral.read_seconds_per_gigabyte:.1f} s.")
    if deferral.load_bytes_per_second is not None:
        said.append(f" One load brings {number(deferral.load_bytes_per_second / GIGABYTE)} GB a second.")
    elif (loaded := deferral.load_tokens_per_second) is not None:
        computed = deferral.prompt_tokens_per_second
        slower = "" if computed is None or loaded >= computed else f", computing them {number(round(computed))}"
        said.append(f" One load brings {number(round(loaded))} tokens a second{slower}.")
    return "".join([*said, loading(facts), dropped(facts)])


def _which(facts: Facts) -> str:
    both = facts.window.deferral.remote
    return "both other engines and an offload tier are in use" if both else "no connector says what it is"


def _fetched(facts: Facts) -> str:
    return f"{facts.window.queue.fetching_ratio or 0.0:.0%} of those that wait wait for KV from elsewhere"


def _brought(facts: Facts) -> str:
    return f"{facts.window.deferral.brought_ratio or 0.0:.0%} of the prompts' tokens come from elsewhere"


def _transferred(facts: Facts) -> str:
    transfer = facts.window.transfer
    rate = (
        ""
        if transfer.bytes_per_second is None
        else f", and all bring {number(round(transfer.bytes_per_second / 1e6))} MB/s"
    )
    seconds = f"each takes {transfer.seconds or 0.0:.1f} s{rate}"
    return f"{number(round(transfer.in_flight or 0.0))} transfers of KV from prefill engines are under way: {seconds}."


def _slots(facts: Facts) -> str:
    slots = number(facts.window.deferral.slots or 0.0)
    return f"All {slots} slots for adapters are taken, and more adapters are requested."


def _several(facts: Facts) -> str:
    possible = {
        "KV from elsewhere": queue.kv_from_elsewhere_possible,
        "a slot for an adapter": queue.slot_possible,
        "room for an image": queue.image_possible,
    }
    left = [kind for kind, may_be in possible.items() if may_be.state(facts)]
    return f"For a grammar or {' or '.join(left)}: the page does not say which."


def _steps(facts: Facts) -> str:
    steps = number(round(facts.window.queue.waited_steps or 0.0))
    return f"They fit, and wait for {steps} steps: for a grammar, or behind one that a limit holds back."


_grammar = same("Nothing else is left: no KV comes from elsewhere, no slot is short, no image was sent.")

RULES: Final = rules_of(
    Cause.DEFERRED,
    "deferred",
    {"admission_blocked": False, "kv_saturated": False, "preempting": False},
    ("transfer", "transfer", _in_transfer, _transferred),
    *_from_elsewhere("", _fetching, _fetched),
    ("lora_slots", "lora_slots", _deferred & queue.adapters_lack_slots, _slots),
    *_from_elsewhere("brought_", _deferred & queue.mostly_brought, _brought),
    ("several_kinds", "", _deferred & queue.several_kinds_possible, _several),
    ("grammar", "grammar", _deferred, _grammar),
    ("must_be_lora_slots", "lora_slots", _must_be & queue.adapters_lack_slots, _slots),
    *_from_elsewhere("must_be_", _must_be & queue.mostly_brought, _brought),
    ("must_be_several_kinds", "", _must_be & queue.several_kinds_possible, _several),
    ("must_be_deferred", "", _must_be, _steps),
)
