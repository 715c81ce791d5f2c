"""The table of rules: every rule has its place, what can hold together is listed, and each wins somewhere real."""

from dataclasses import replace
from fnmatch import fnmatchcase
from itertools import combinations
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from kvpressure.cli.replay import Replay, ReplayTarget
from kvpressure.diagnosis import diagnose
from kvpressure.diagnosis.facts import Facts
from kvpressure.diagnosis.precedence import BY_ID, PRECEDENCE, TABLE, Judged, judge
from kvpressure.diagnosis.symptoms import NAMES
from kvpressure.model.verdict import DETAILS, Cause
from kvpressure.signals.waiting import Deferral
from tests.support.tools import FIXTURES
from tests.support.verdicts import THRESHOLDS, facts, inputs, made, rule

pytestmark = pytest.mark.recorded

RECORDINGS = sorted(path for path in FIXTURES.rglob("*.jsonl.xz") if path.name != "trtllm-old-page.jsonl.xz")

_FLAGS = "a recording does not tell how its engine was started"
_CONNECTOR = "the lab's engine has no real connector, whose series say which it is"
_LAB = "wins on the lab's recording of {}, which is made by `make lab` and not kept here"
_POLLS = "none of the lab's regimes of 0.33 comes to it; polls made for it do"
_GATEWAY = "a recording has nothing of a gateway; tests/unit/diagnosis/test_rules_gateway.py and the lab do"
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
    "unknown.no_usage": _POLLS,
    "stuck.deferred": _POLLS,
    "stuck.silent": _POLLS,
    "stuck.only_errors": "takes a server that fails; tests/unit/signals/test_traffic.py has one",
    "healthy.drains": _POLLS,
    "kv.longest": _LAB.format("kv-prefixes"),
    "compute.decode_bandwidth": _POLLS,
    "compute.decode": _LAB.format("compute-decode"),
    "compute.mixed": _LAB.format("compute-decode"),
    "host.front_end": _LAB.format("host-answers"),
    "unknown.bounds_disagree": _LAB.format("kv-bimodal-priority"),
    "concurrency.queue_limit": _LAB.format("cap-queue-limit"),
}
"""Rules that win on none of the recordings in this repository, and why; those of `ON_POLLS` need no row."""


class Overlap(NamedTuple):
    """Where one of `winners` and one of `losers` hold together, the winner is the verdict, because of `why`.

    A pair of rules of which only one can hold needs no row. Names may have `*`: a row is of every rule whose id fits.
    """

    winners: tuple[str, ...]
    losers: tuple[str, ...]
    why: str

    def covers(self, winner: str, loser: str) -> bool:
        """Whether the row is of this pair."""
        return _fits(winner, self.winners) and _fits(loser, self.losers)


def _fits(name: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


_FETCHING: Final = ("deferred.transfer", "deferred.remote_kv", "deferred.offload", "deferred.external_kv")
_BROUGHT: Final = ("deferred.brought_remote_kv", "deferred.brought_offload", "deferred.brought_external_kv")
_PUT_OFF: Final = ("deferred.lora_slots", *_BROUGHT, "deferred.several_kinds", "deferred.grammar")
_FIT_UNKNOWN: Final = ("unknown.layers_differ", "unknown.reservations", "unknown.no_usage", "unknown.cold_start")
_CAPS: Final = (
    *("concurrency.max_num_seqs", "concurrency.another_cap", "concurrency.sequence_cap"),
    "concurrency.small_steps",
)
_STEPS: Final = (
    "compute.prefill",
    "compute.decode_bandwidth",
    "compute.decode",
    "compute.mixed",
)
_MUST_BE: Final = ("deferred.must_be_*",)
_UNTOLD: Final = ("unknown.no_capacity", "unknown.no_reasons", "unknown.no_preemptions")
_BOUNDS: Final = ("kv.longest", "kv.preempted")
_OTHER_LIMITS: Final = ("concurrency.prefill_budget", "concurrency.head_of_line", "concurrency.another_limit")
_SHORT: Final = (
    *("kv.nothing_runs", "kv.watermark", "kv.preemption", "kv.reserved", "kv.admission", "kv.full"),
    "kv.stays*",
)
_LAST: Final = ("unknown.few_came", "unknown.bounds_disagree", "concurrency.queue_limit", "healthy.*")
_LATE: Final = (*_MUST_BE, *_UNTOLD, *_BOUNDS, *_OTHER_LIMITS, *_LAST)

OVERLAPS: Final = (
    Overlap(("paused.*",), ("*",), "While somebody has stopped the engine, nothing on its page is of the load."),
    Overlap(("unknown.too_few_polls",), ("*",), "Shares and rates of so few polls say nothing yet."),
    Overlap(
        ("unknown.no_activity", "unknown.no_queue"),
        ("*",),
        "Without the numbers of requests, a rule that holds does so by what is not known.",
    ),
    Overlap(
        ("idle.last_step",),
        ("*",),
        "The page keeps its last step, so whatever else it shows is of some time ago.",
    ),
    Overlap(
        ("stuck.*",),
        ("*",),
        "Nothing moves: what looks like a queue or a full cache is what was there when it stopped.",
    ),
    Overlap(
        ("compute.long_prompt_alone",),
        ("unknown.*", "concurrency.*", "healthy.*", "host.*", *_STEPS, *_LATE),
        "One prompt has been computed for minutes: its client waits, whatever else would be said of so little.",
    ),
    Overlap(
        ("kv.other_pool",),
        ("*",),
        "A full pool of states or windows stops requests, whatever would fit the pool of tokens.",
    ),
    Overlap(
        ("kv.*", "compute.*", "concurrency.*", "host.*", "deferred.*", "unknown.*", "gateway.*"),
        ("kv.stays_full",),
        "What shows now comes before what was so a moment ago.",
    ),
    Overlap(("healthy.*", "unknown.*"), ("healthy.full_pool", "healthy.served"), "What says more comes first."),
    Overlap(
        ("kv.stays_full",),
        ("unknown.*", "concurrency.*", "healthy.*", *_LATE),
        "A cache that was too small and is still full is not well again because nobody waits for a moment.",
    ),
    Overlap(
        ("unknown.dropped",),
        ("unknown.*", "concurrency.*", *_STEPS, *_LATE),
        "Without any histogram, what is left of the evidence would fit several of these.",
    ),
    Overlap(
        ("kv.held_for_transfer",),
        ("stuck.*", "kv.*", "compute.*", *_PUT_OFF, *_FIT_UNKNOWN, *_CAPS, "host.*", *_LATE),
        "What fills the cache is not read by the decode side: the cure is there, whatever else shows here.",
    ),
    Overlap(
        ("kv.stranded",),
        ("stuck.*", "kv.*", "compute.*", *_FIT_UNKNOWN, *_LATE),
        "Nothing runs because nothing fits: no other limit is reached, and what is stranded has a cure of its own.",
    ),
    Overlap(
        ("idle.*",),
        (*_FETCHING, *_PUT_OFF, *_FIT_UNKNOWN, *_LATE, "compute.*", "host.*"),
        "Nobody wants anything now; steps that were slow or full are those of requests that have ended.",
    ),
    Overlap(
        _FETCHING,
        (*_PUT_OFF, *_FIT_UNKNOWN, "compute.*", "kv.*", *_CAPS, "host.*", *_LATE),
        "Those whose KV is on its way have their place in the cache, so they do not wait for the cache; and the "
        "stages say of them what the reasons for waiting say of nobody.",
    ),
    Overlap(_FETCHING[:1], _FETCHING[1:], "It is known that the transfer is slow, and not what computes their KV."),
    Overlap(_FETCHING[1:3], _FETCHING[3:], "The connector that shows is named."),
    Overlap(
        ("kv.nothing_runs",),
        _SHORT,
        "That nothing runs says more than which symptom shows it: waiting does not end it.",
    ),
    Overlap(
        ("kv.watermark",),
        _SHORT,
        "What keeps requests out, and can be switched off, goes before what happens to those that are in.",
    ),
    Overlap(
        ("kv.preemption",),
        _SHORT,
        "Preemption costs work that was done; the queue in front of it is its other side.",
    ),
    Overlap(("kv.reserved",), _SHORT, "The fit test says what keeps them out: a reserve that costs nothing to lower."),
    Overlap(("kv.admission",), _SHORT, "The fit test is the sharper one: a cache may be full and still have room."),
    Overlap(("kv.full",), ("kv.stays*",), "A symptom that shows now goes before a verdict that is only kept."),
    Overlap(("kv.stays_longest", "kv.stays_preempted"), ("kv.stays*",), "What kind it is now is told where it shows."),
    Overlap(
        _SHORT,
        (*_PUT_OFF, *_FIT_UNKNOWN, "compute.*", *_CAPS, "host.*", *_LATE),
        "Requests that do not fit stay out whatever the GPU, the host or a cap does; and those that wait for "
        "something else as well are counted as deferred until they are admitted (grammars).",
    ),
    Overlap(
        _PUT_OFF,
        (*_FIT_UNKNOWN, "compute.*", "host.*", *_LATE),
        "The engine itself says that it has put them off, so no limit of the batch is what they wait for.",
    ),
    Overlap(("deferred.lora_slots",), _PUT_OFF[1:], "Adapters and their slots show; the others are what is left."),
    Overlap(_BROUGHT, _PUT_OFF[-2:], "KV from elsewhere shows; the others are what is left."),
    Overlap(_BROUGHT[:2], _BROUGHT[2:], "The connector that shows is named."),
    Overlap(("deferred.several_kinds",), ("deferred.grammar",), "A grammar is named where nothing else can be it."),
    Overlap(
        _FIT_UNKNOWN,
        ("compute.*", *_CAPS, "host.*", *_LATE),
        "Whether the next request fits is not known, so a cap or full steps may not be what it waits for.",
    ),
    Overlap(("unknown.layers_differ",), _FIT_UNKNOWN[1:], "Lengths would not tell what a request costs there."),
    Overlap(("unknown.reservations",), ("unknown.cold_start",), "Lengths would not tell what is reserved."),
    Overlap(("unknown.no_usage",), ("unknown.cold_start",), "Lengths alone do not tell whether a prompt fits."),
    Overlap(
        (*_FETCHING, *_SHORT, *_PUT_OFF, *_FIT_UNKNOWN),
        ("kv.eviction",),
        "What keeps requests out goes first: it has a cure of its own, and the symptom of eviction stands beside it.",
    ),
    Overlap(
        ("kv.eviction",),
        ("compute.queued_prefill", *_CAPS, *_STEPS, "host.*", *_LATE),
        "Steps are full, slow and queued for because of prompts that were computed before.",
    ),
    Overlap(
        ("compute.queued_prefill",),
        (*_CAPS, *_STEPS, "host.*", *_LATE),
        "Steps that are full of prompts hold back whoever waits for a place, cap or no cap.",
    ),
    Overlap(
        _CAPS,
        (*_STEPS, "host.*", *_LATE),
        "A batch at its cap with a queue behind it is one whatever its steps take: more places would be taken at once.",
    ),
    Overlap(("concurrency.another_cap",), ("concurrency.sequence_cap",), "What was declared says which it is not."),
    Overlap(("concurrency.max_num_seqs",), ("concurrency.sequence_cap",), "What was declared says which it is."),
    Overlap(
        _STEPS,
        ("host.*", *_LATE),
        "Steps that are slower because they compute more explain the queue, and make the front end look slow.",
    ),
    Overlap(
        ("compute.long_prompt",),
        (*_SHORT[3:], *_PUT_OFF, *_FIT_UNKNOWN, "kv.eviction", "compute.*", *_CAPS, "host.*", *_LATE),
        "That prompt has all tokens of a step, so what else may keep those that wait out is not tried.",
    ),
    Overlap(
        ("compute.decode_bandwidth",),
        ("compute.decode", "compute.mixed"),
        "That more of them give no more tokens says more than what the compute goes into.",
    ),
    Overlap(("compute.prefill", "compute.decode"), ("compute.mixed",), "What most of the compute goes into is named."),
    Overlap(
        ("host.*",), _LATE, "Time is lost outside the engine with a queue or without, so a queue is no more proof."
    ),
    Overlap(("host.front_end",), ("host.cpu",), "A slow front end shows in requests; short CPUs are why it may be."),
    Overlap(
        _MUST_BE,
        (*_UNTOLD, *_BOUNDS, *_OTHER_LIMITS, *_LAST),
        "They all fit and there is something to wait for: that is more than not knowing.",
    ),
    Overlap(_MUST_BE, _MUST_BE, "What shows is named, by what shows it; what is left comes last."),
    Overlap(
        _UNTOLD,
        (*_UNTOLD, *_BOUNDS, *_OTHER_LIMITS, *_LAST),
        "What decides between them is not on the page; the size of the cache is the first thing to know.",
    ),
    Overlap(
        ("healthy.drains", "healthy.passing_queue"),
        (*_OTHER_LIMITS, *_BOUNDS, *_LAST),
        "A queue that comes and goes is no loss, whatever it was behind.",
    ),
    Overlap(("healthy.drains",), ("healthy.passing_queue",), "Fewer wait than before, which says more."),
    Overlap(
        _BOUNDS,
        (*_BOUNDS, *_OTHER_LIMITS, *_LAST),
        "A typical prompt fits and one of the longest does not, or one was preempted: that one leads the queue.",
    ),
    Overlap(
        _OTHER_LIMITS,
        (*_OTHER_LIMITS, *_LAST),
        "All fit, so another limit of the scheduler holds them; the one that was declared and reached is named.",
    ),
    Overlap(
        ("unknown.few_came",),
        (*_OTHER_LIMITS, *_LAST),
        "Too few have begun to tell a limit of the scheduler from the requests that are in the batch.",
    ),
    Overlap(
        ("unknown.bounds_disagree", "concurrency.queue_limit"),
        ("healthy.recovers", "healthy.served"),
        "The last row holds always: it is what is left.",
    ),
    Overlap(("healthy.recovers",), ("healthy.served",), "What has waited within the window is said of the recovery."),
)


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
    assert unlisted == {}, "add a row to OVERLAPS, or mend a predicate"


def test_every_rule_wins_on_a_recording_or_says_why_it_does_not(winners):
    unproven = {name for name in PRECEDENCE if name not in winners.wins} - set(ON_POLLS)
    assert unproven - set(WINS_NOWHERE) == set(), "no recording shows these rules, and no reason is given"
    assert set(WINS_NOWHERE) - unproven == set(), "a recording shows these rules now: take them off the list"
    assert all(WINS_NOWHERE.values())
