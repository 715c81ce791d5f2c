"""What the alerts on vLLM's own series are right about, and the table of all of them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from bench.detection import others
from bench.detection.others import MAY, MUST, NOT, NOT_SCORED, RIGHTS, Tick, judged
from bench.detection.rules import INTERVALS, RuleScore
from bench.detection.score import KV
from bench.detection.shipped import vllm_only
from bench.written import ACCURACY, between, mark
from kvpressure.bundle import Options, load_rules
from kvpressure.bundle.options import VLLM_ONLY
from kvpressure.config.thresholds import load_thresholds

LIMITS = load_thresholds()
GROWS, RECOMPUTING, REJECTING = "KVPressureVLLMQueueGrows", "KVPressureVLLMRecomputing", "KVPressureVLLMRejecting"


def accepted(alert: str, track: list[Tick]) -> list[frozenset[str]]:
    return [second.accepted for second in judged(alert, track, LIMITS)]


def test_every_alert_has_something_that_it_is_right_about() -> None:
    files = load_rules(Options(LIMITS, flavour=VLLM_ONLY, selector=""))
    assert set(RIGHTS) | NOT_SCORED | {others.BURN, others.ABSENT} == {
        alert.name for file in files for alert in file.alerts
    }
    assert all(len(vllm_only(30, alert)) == 1 for alert in RIGHTS)


@pytest.mark.parametrize(
    ("alert", "cause"), [("KVPressureVLLMNoProgress", "stuck"), ("KVPressureVLLMRequestsDeferred", "deferred")]
)
def test_a_cause_that_is_one_of_two_may_be_told_and_need_not(alert: str, cause: str) -> None:
    track = [Tick(0, frozenset({cause})), Tick(1, frozenset({cause, KV})), Tick(2, frozenset({"healthy"}))]
    assert accepted(alert, track) == [MUST, MAY, NOT]


def test_a_queue_grows_where_those_who_come_wait_a_minute_and_more_wait_than_before() -> None:
    cap = frozenset({"concurrency_bound"})
    slow = [Tick(t, cap, queued=1 + t / 2, started=t / 2) for t in range(400)]
    assert accepted(GROWS, slow)[100] == MUST, "51 wait, one is admitted in two seconds"
    fast = [Tick(t, cap, queued=1 + t / 100, started=t) for t in range(400)]
    assert accepted(GROWS, fast)[100] == NOT, "two seconds"
    stands = [Tick(t, cap, queued=50, started=t / 2) for t in range(400)]
    assert accepted(GROWS, stands)[200] == MAY, "long, and no longer than before"
    own = [Tick(t, frozenset({"deferred"}), queued=1 + t / 2, started=t / 2) for t in range(400)]
    assert accepted(GROWS, own)[100] == NOT, "not for room"
    assert accepted(GROWS, slow)[-1] == MAY, "nobody knows how it goes on"


def test_who_waits_when_a_server_restarts_is_not_said_to_have_waited_longer() -> None:
    cap = frozenset({"concurrency_bound"})
    track = [Tick(t, cap, queued=1 + t, started=t % 70) for t in range(300)]
    assert accepted(GROWS, track)[60] == MAY


def test_recomputing_is_a_share_of_the_admitted_and_needs_the_cause() -> None:
    kv = frozenset({KV})
    thrash = [Tick(t, kv, started=t // 2, preempted=t // 4) for t in range(300)]
    assert accepted(RECOMPUTING, thrash)[150] == MUST
    rare = [Tick(t, kv, started=t // 2, preempted=t // 40) for t in range(300)]
    assert accepted(RECOMPUTING, rare)[150] == NOT
    weights = [Tick(t, frozenset({"paused"}), started=t // 2, preempted=t // 4) for t in range(300)]
    assert accepted(RECOMPUTING, weights)[150] == NOT, "preempted for new weights"


def test_refusing_counts_for_as_long_as_a_window_can_see_it() -> None:
    healthy = frozenset({"healthy"})
    track = [Tick(t, healthy, finished=t, rejected=min(t, 100)) for t in range(800)]
    told = accepted(REJECTING, track)
    assert (told[50], told[300], told[-1]) == (MUST, MAY, NOT)
    assert NOT not in set(told[:390])


def test_scores_are_added() -> None:
    (rule,) = vllm_only()
    one, other = RuleScore(rule, right=1, found=1, episodes=1, delays=[3.0]), RuleScore(rule, missed=1, episodes=2)
    one.add(other)
    assert (one.recall, one.found, one.episodes, one.delay) == (0.5, 1, 3, 3.0)


def test_what_a_program_writes_stands_between_its_marks() -> None:
    begin = mark("bench.x")
    text = between(f"before\n{begin}\nold\n{begin}\nafter\n", "bench.x", "| a | 1 |\n")
    assert text == f"before\n{begin}\n| a | 1 |\n{begin}\nafter\n"
    with pytest.raises(ValueError, match="not enough values"):
        between("nothing", "bench.x", "")


@pytest.mark.parametrize("page", sorted(ACCURACY.glob("*.md")), ids=lambda page: page.stem)
def test_every_mark_of_a_page_stands_there_twice(page: Path) -> None:
    marks = re.findall(r"^<!-- .* -->$", page.read_text(), re.MULTILINE)
    assert all(marks.count(one) == 2 for one in marks)


def test_what_the_page_tells_of_every_alert_is_what_was_measured() -> None:
    rows = json.loads(others.RESULTS.read_text()) if others.RESULTS.exists() else []
    _, text, _ = (ACCURACY / "vllm-only.md").read_text().split(mark("bench.detection.others"))
    shown = re.findall(r"^\| `(\w+)` \| (\S+ %.*|-.*) \|$", text, re.MULTILINE)
    lines = [(alert, line.split(" | ")) for alert, line in shown if line.count(" | ") == len(INTERVALS) - 1]
    sets = list(dict.fromkeys(row["set"] for row in rows))
    measured = {(row["set"], row["alert"], row["scrape_seconds"]): row["shown"] for row in rows}
    expected = [(alert, [measured[one, alert, seconds] for seconds in INTERVALS]) for one in sets for alert in RIGHTS]
    assert lines == expected
