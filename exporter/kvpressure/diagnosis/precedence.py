"""The order of the rules: the first true one is the verdict, unless rules before it could not be judged."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from kvpressure.diagnosis.facts import Facts
from kvpressure.diagnosis.rules import Rule
from kvpressure.model.plugins import exported

PRECEDENCE: Final = (
    # Stopped on purpose: nothing on the page is then of the load.
    "paused.asleep",
    "paused.weight_update",
    "paused.pause_call",
    # Nobody is served: this is followed for longer than a window, and needs no more polls.
    "stuck.computed_again",
    "stuck.too_large",
    "stuck.held_blocks",
    "stuck.deferred",
    "stuck.stands_still",
    "stuck.silent",
    "stuck.crawling",
    "stuck.trickle",
    "stuck.only_errors",
    # Nothing can be judged.
    "unknown.too_few_polls",
    "unknown.no_activity",
    # A page that keeps its last step has requests on it that are gone.
    "idle.last_step",
    # No progress.
    "stuck.looping",
    "stuck.frozen",
    "kv.held_for_transfer",
    "kv.stranded",
    "stuck.nothing_runs",
    # There is nothing to do, unless a gateway holds back what there is.
    "gateway.blind",
    "gateway.idle_engine",
    "idle.no_demand",
    "idle.streams",
    "unknown.no_queue",
    # Requests whose KV is on its way have their place in the cache already: the cache does not stop them.
    "deferred.transfer",
    "deferred.remote_kv",
    "deferred.offload",
    "deferred.external_kv",
    # KV stops demand from running.
    "kv.other_pool",
    "kv.nothing_runs",
    # What a gateway keeps free is no watermark of the engine's.
    "gateway.kv_usage",
    "kv.watermark",
    "kv.preemption",
    # While a long prompt has all tokens of a step, whether those behind it would fit is not tried.
    "compute.long_prompt",
    "kv.reserved",
    "kv.admission",
    "kv.full",
    "kv.stays_longest",
    "kv.stays_preempted",
    "kv.stays",
    # The engine says that it defers requests.
    "deferred.lora_slots",
    "deferred.brought_remote_kv",
    "deferred.brought_offload",
    "deferred.brought_external_kv",
    "deferred.several_kinds",
    "deferred.grammar",
    # What a queue shows by itself.
    "unknown.layers_differ",
    "unknown.reservations",
    "unknown.no_usage",
    "unknown.dropped",
    "unknown.cold_start",
    # Steps full of prompts that are computed again are caused by the cache, not by the load.
    "kv.eviction",
    "compute.queued_prefill",
    "gateway.own_limit",
    "concurrency.max_num_seqs",
    "concurrency.another_cap",
    "concurrency.sequence_cap",
    "concurrency.small_steps",
    # With a queue or without.
    "compute.long_prompt_alone",
    "compute.prefill",
    "compute.decode_bandwidth",
    "compute.decode",
    "compute.mixed",
    "host.front_end",
    "host.cpu",
    # A queue that nothing above explains, on a page that does not say what it waits for.
    "deferred.must_be_lora_slots",
    "deferred.must_be_remote_kv",
    "deferred.must_be_offload",
    "deferred.must_be_external_kv",
    "deferred.must_be_several_kinds",
    "deferred.must_be_deferred",
    "unknown.no_capacity",
    "unknown.no_reasons",
    "kv.stays_full",
    # The same, for a place in the batch.
    "gateway.unexplained",
    "unknown.no_preemptions",
    "healthy.drains",
    "healthy.passing_queue",
    "kv.longest",
    "kv.preempted",
    "unknown.few_came",
    "concurrency.prefill_budget",
    "concurrency.head_of_line",
    "concurrency.another_limit",
    "unknown.bounds_disagree",
    # No queue.
    "concurrency.queue_limit",
    "healthy.recovers",
    "healthy.full_pool",
    "healthy.served",
)
"""Ids of `BY_ID`, each once."""


BY_ID: Final[Mapping[str, Rule]] = {
    rule.id: rule for rules in exported("kvpressure.diagnosis.rules", "RULES") for rule in rules
}

TABLE: Final[tuple[Rule, ...]] = tuple(BY_ID[name] for name in PRECEDENCE)


class Judged(NamedTuple):
    """The first true rule, and the rules before it that are unknown."""

    rule: Rule
    unjudged: tuple[Rule, ...]


def judge(facts: Facts) -> Judged:
    """Return the first true rule of the table, with the unknown ones before it; later ones are not evaluated."""
    unjudged, known = list[Rule](), facts.states
    for rule in TABLE:
        answer = known[rule.when] if rule.when in known else rule.when.state(facts)
        if answer:
            return Judged(rule, tuple(unjudged))
        if answer is None:
            unjudged.append(rule)
    raise AssertionError("the last rule of the table is always true")
