"""The table of rules: every rule has its place, what can hold together is listed, and each wins somewhere real."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import NamedTuple

import pytest

from kvpressure.cli.replay import Replay, ReplayTarget
from kvpressure.diagnosis import diagnose
from kvpressure.diagnosis.facts import Facts
from kvpressure.diagnosis.precedence import BY_ID, PRECEDENCE, TABLE, Judged, judge
from kvpressure.diagnosis.symptoms import NAMES
from kvpressure.model.verdict import DETAILS, Cause
from kvpressure.signals.waiting import Deferral
from tests.support.overlaps import OVERLAPS
from tests.support.tools import FIXTURES
from tests.support.verdicts import THRESHOLDS, facts, inputs, made, rule

pytestmark = pytest.mark.recorded

RECORDINGS = sorted(path for path in FIXTURES.rglob("*.jsonl.xz") if path.name != "trtllm-old-page.jsonl.xz")

_FLAGS = "a recording does not tell how its engine was started"
_CONNECTOR = "the lab's engine has no real connector, whose series say which it is"
_LAB = "wins on the lab's recording of {}, which is made by `make lab` and not kept here"
_POLLS = "none of the lab's regimes of 0.33 comes to it; polls made for it do"
_GATEWAY = "a recording has nothing of a gateway; tests/unit/diagnosis/test_rules_gateway.py and the lab do"
_REASONS = (
    "takes a page without the reasons for waiting (vLLM before 0.21) that no recording here has; polls made for it do"
)
WINS_NOWHERE = {
    "paused.asleep": "sleeping takes a GPU, which the lab has none of",
    "paused.weight_update": _LAB.format("kv-scheduling-paused"),
    "unknown.no_queue": "the lab's pages always have their gauges",
    "unknown.no_activity": "the lab's pages always have their gauges",
    "gateway.blind": _GATEWAY,
    "gateway.idle_engine": _GATEWAY,
    "gateway.kv_usage": _GATEWAY,
    "gateway.own_limit": _GATEWAY,
    "gateway.unexplained": _GATEWAY,
    "kv.watermark": _FLAGS,
    "concurrency.max_num_seqs": _FLAGS,
    "concurrency.another_cap": _FLAGS,
    "concurrency.small_steps": _LAB.format("cap-budget (SGLang)"),
    "concurrency.prefill_budget": _FLAGS,
    "concurrency.head_of_line": _FLAGS,
    "host.cpu": "a recording has nothing of its host",
    "deferred.offload": _CONNECTOR,
    "deferred.brought_remote_kv": _CONNECTOR,
    "deferred.brought_external_kv": _CONNECTOR,
    "deferred.must_be_remote_kv": _CONNECTOR,
    "deferred.must_be_offload": _CONNECTOR,
    "deferred.must_be_external_kv": _REASONS,
    "deferred.must_be_several_kinds": _REASONS,
    "deferred.must_be_deferred": _REASONS,
    "unknown.no_usage": _POLLS,
    "idle.last_step": _POLLS,
    "stuck.looping": _POLLS,
    "stuck.deferred": _POLLS,
    "stuck.silent": _POLLS,
    "stuck.only_errors": "takes a server that fails; tests/unit/signals/test_traffic_failures.py has one",
    "kv.nothing_runs": _POLLS,
    "kv.stays": _POLLS,
    "healthy.drains": _POLLS,
    "kv.longest": _LAB.format("kv-prefixes"),
    "compute.decode_bandwidth": _POLLS,
    "compute.decode": _LAB.format("compute-decode"),
    "compute.mixed": _LAB.format("compute-decode"),
    "host.front_end": _LAB.format("host-answers"),
    "unknown.bounds_disagree": _LAB.format("kv-bimodal-priority"),
    "concurrency.another_limit": _POLLS,
    "concurrency.queue_limit": _LAB.format("cap-queue-limit"),
}
"""Rules that win on none of the recordings in this repository, and why."""


NO_REASONS = {"reasons_known": False, "blocked_ratio": 0.0, "blocked_by_long_ratio": 0.0, "waited_steps": 640.0}
NO_REASONS |= {"blocked_by_longest_ratio": 0.0, "prefilling": 0.0}
ON_POLLS = {
    "unknown.no_capacity": {},
    "concurrency.another_limit": {
        "blocked_ratio": 0.0,
        "blocked_by_long_ratio": 0.0,
        "blocked_by_longest_ratio": 0.0,
        "kv_usage_ratio": 0.3,
    },
    "unknown.layers_differ": {"blocked_ratio": 0.2, "blocked_by_longest_ratio": 0.9, "fit_unknown": True},
    "idle.last_step": {"last_step_seconds": 40.0, "kv_usage_ratio": 0.3},
    "unknown.reservations": {"blocked_ratio": None, "room_is_unseen": True},
    "stuck.looping": {"looping_seconds": 40.0, "kv_usage_ratio": 0.3},
    "stuck.nothing_runs": {"still_seconds": 20.0, "kv_usage_ratio": 0.3},
    "kv.nothing_runs": {"still_seconds": 20.0, "blocked_ratio": 1.0, "reasons_known": False},
    "kv.stays": {"blocked_ratio": 0.3, "blocked_by_long_ratio": 0.3, "blocked_by_longest_ratio": 0.3},
    "deferred.must_be_lora_slots": {
        **NO_REASONS,
        "deferral": Deferral(slots=1.0, adapters_oversubscribed=True, slots_taken=True, connector=False),
    },
    "deferred.must_be_external_kv": {**NO_REASONS, "deferral": Deferral(connector=True, brought_ratio=0.7)},
    "deferred.must_be_several_kinds": {**NO_REASONS, "deferral": Deferral(connector=False, images=True)},
    "deferred.must_be_deferred": {**NO_REASONS, "deferral": Deferral(connector=False, images=False)},
}
"""Facts of polls on which the rules win that none of the lab's recordings shows."""


@pytest.mark.parametrize("name", ON_POLLS)
def test_a_rule_that_no_recording_shows_wins_on_polls_made_for_it(name):
    before = Cause.KV_CACHE_PRESSURE if name == "kv.stays" else Cause.HEALTHY
    assert rule(inputs(**ON_POLLS[name]), before).id == name


def test_a_queue_before_anybody_has_ended_is_a_cold_start_where_the_use_of_the_cache_is_known():
    assert rule(inputs({"kv_capacity_tokens": 10_000.0})).id == "unknown.cold_start"
    assert rule(inputs({"kv_capacity_tokens": 10_000.0}, kv_usage_ratio=None)).id == "unknown.no_usage"


def test_a_queue_drains_where_fewer_wait_than_over_the_whole_window():
    polls = inputs(waiting_ratio=0.6, blocked_ratio=0.0)
    now = polls.window.queue.waiting
    assert now
    for by, fills, name in ((3.0, {}, "drains"), (1.5, {}, "passing_queue"), (3.0, FILLS, "passing_queue")):
        derived = {**polls.derived, "requests_waiting": by * now, **fills}
        assert rule(replace(polls, derived=derived)).id == f"healthy.{name}"


FILLS = {"kv_exhaustion_seconds": 60.0}


class Winners(NamedTuple):
    wins: dict[str, str]
    """Where each rule won first, by its id."""
    together: dict[tuple[str, str], str]
    """Where two rules were true at once, in the order of the table."""


@pytest.fixture(scope="module")
def winners() -> Winners:
    found, name = Winners({}, {}), ""

    def watched(now: Facts) -> Judged:
        judged = judge(now)
        hold = [rule.id for rule in TABLE if rule.when.state(now) is True]
        assert judged.rule.id == hold[0], "the first row that holds is the verdict"
        unjudged = [rule.id for rule in TABLE[: PRECEDENCE.index(hold[0])] if rule.when.state(now) is None]
        assert [rule.id for rule in judged.unjudged] == unjudged
        found.wins.setdefault(judged.rule.id, name)
        for pair in combinations(hold, 2):
            found.together.setdefault(pair, name)
        return judged

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(diagnose, "judge", watched)
        for path in RECORDINGS:
            name = path.name
            _replay(path)
    return found


def _replay(path: Path) -> None:
    for _ in Replay(ReplayTarget("t"), THRESHOLDS).views(path):
        pass


def test_every_rule_has_one_place_and_the_last_always_holds():
    assert sorted(PRECEDENCE) == sorted(BY_ID)
    assert len(set(PRECEDENCE)) == len(PRECEDENCE)
    nothing = facts(made({"polls": 0}))
    assert TABLE[-1].when.state(nothing) is True


@pytest.mark.parametrize("rule", TABLE, ids=lambda rule: rule.id)
def test_a_rule_speaks_the_vocabulary(rule):
    assert rule.detail in {"", *DETAILS[rule.cause]}
    assert set(rule.expects) <= {
        *NAMES,
        "load_shed",
        "held_at_gateway",
        "kv_shows",
        "nobody_served",
        "eviction_shows",
    }


def test_every_detail_has_a_rule():
    named = {(rule.cause, rule.detail) for rule in TABLE}
    assert {(cause, detail) for cause, details in DETAILS.items() for detail in details} <= named


@pytest.mark.parametrize("row", OVERLAPS, ids=lambda row: row.why[:40])
def test_a_row_of_overlaps_is_of_rules_in_the_order_of_the_table(row):
    pairs = [pair for pair in combinations(PRECEDENCE, 2) if row.covers(*pair)]
    assert pairs, "no rule goes before another one of this row"
    assert row.why.endswith(".")


def test_rules_that_are_true_together_are_listed_with_the_reason_of_which_wins(winners):
    unlisted = {pair: name for pair, name in winners.together.items() if not any(row.covers(*pair) for row in OVERLAPS)}
    assert unlisted == {}, "add a row to tests/support/overlaps.py, or mend a predicate"


def test_every_rule_wins_on_a_recording_or_says_why_it_does_not(winners):
    unproven = {name for name in PRECEDENCE if name not in winners.wins}
    assert unproven - set(WINS_NOWHERE) == set(), "no recording shows these rules, and no reason is given"
    assert set(WINS_NOWHERE) - unproven == set(), "a recording shows these rules now: take them off the list"
    assert all(WINS_NOWHERE.values())
