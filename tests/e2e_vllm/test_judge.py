"""The judge misses a bar that was missed: each test spoils one thing in a run that holds all of them."""

import sys
from dataclasses import replace
from subprocess import PIPE, Popen
from typing import Any

import pytest

from tests.e2e_vllm import token_ids
from tests.e2e_vllm.judge import judge
from tests.e2e_vllm.load import NOTHING
from tests.e2e_vllm.observe import AlertEpisode, Look
from tests.e2e_vllm.run import KvEventsRead, Story, Visit
from tests.e2e_vllm.scenario import Bars, Event, Phase

BEGAN, DELAY = 1000.0, 34
PHASE = Phase(
    *("stopped", NOTHING, 150.0, frozenset({"stuck"}), 1),
    details=frozenset({"frozen"}),
    says="Stand still",
    fires="KVPressureEngineStuck",
    fires_within_seconds=150.0,
    event=Event.STOP,
)


def engine(cause: str, detail: str | None = "frozen", text: str = "Stand still for 31 s: steps.") -> dict[str, Any]:
    return {"cause": cause, "detail": detail, "grounds": text, "symptoms": {"preempting": {"text": "no preemptions"}}}


def story(phase: Phase = PHASE, *, delay: int = DELAY, told: dict[str, Any] | None = None) -> Story:
    """A stop that is told after `delay` seconds, and pages after 130."""
    visit = Visit(phase, BEGAN, BEGAN + 150, triage=(1, "stuck"), page_bytes_per_second=5000.0)
    told = told or engine("stuck")
    looks = [
        Look(BEGAN + second, "stopped", None, engine("healthy", None, "") if second < delay else told)
        for second in range(150)
    ]
    found = Story(visits=[visit], looks=looks, targets={"sources": [{"source": "engine", "up": True, "errors": 0}]})
    found.alerts.append(AlertEpisode("KVPressureEngineStuck", "critical", BEGAN + 70, firing=BEGAN + 130))
    return found


def missed(found: Story) -> list[str]:
    return [row.what.removeprefix("stopped: ") for row in judge(found, Bars()) if not row.held]


SYMPTOM = {"symptoms": {"memory_high": {"text": "Stand still"}}}
STORIES = {
    "a good run": (story(), []),
    "a verdict that comes late": (story(delay=46), ["verdict stuck within 45 s"]),
    "a verdict that comes late where a phase allows it": (story(replace(PHASE, verdict_seconds=75.0), delay=60), []),
    "evidence without the words": (story(told=engine("stuck", text="Wrong.")), ['the evidence says "Stand still"']),
    "the words are those of a symptom": (story(told=engine("stuck", text="") | SYMPTOM), []),
}


@pytest.mark.parametrize(("found", "expected"), STORIES.values(), ids=STORIES)
def test_what_a_story_misses(found, expected):
    assert missed(found) == expected


def test_another_detail_even_for_a_second():
    found = story()
    found.looks[-1] = replace(found.looks[-1], engine=engine("stuck", "looping"))
    assert missed(found) == ["the detail is frozen"]


def test_an_alert_that_fires_late_or_never():
    late, never = story(), story()
    late.alerts[0].firing = BEGAN + 151
    never.alerts.clear()
    assert missed(late) == missed(never) == ["KVPressureEngineStuck fires within 150 s"]


def test_an_alert_that_fired_before_the_phase_does_not_count():
    found = story()
    found.alerts[0].firing = BEGAN - 10
    assert missed(found) == ["KVPressureEngineStuck fires within 150 s"]


def test_an_alert_that_only_may_fire():
    found = story(replace(PHASE, fires_within_seconds=None))
    found.alerts.clear()
    assert missed(found) == []


def test_another_alert():
    found = story()
    found.alerts.append(AlertEpisode("KVPressureCacheTooSmall", "warning", BEGAN + 60, firing=BEGAN + 90))
    assert missed(found) == ["no KV alert and nothing critical but KVPressureEngineStuck becomes true and fires"]


def test_triage_that_calls_it_fine():
    found = story()
    found.visits[0].triage = (0, "healthy")
    assert missed(found) == ["triage ends with 1"]


def test_triage_that_was_not_to_run():
    found = story(replace(PHASE, triage_exit=None))
    found.visits[0].triage = None
    assert missed(found) == []


def events(**other: Any) -> KvEventsRead:
    read = KvEventsRead({"stored": 90.0, "removed": 80.0, "bad": 0.0}, 0.2, {"2": 0.4}, 1000.0, 1050.0, 12, 0)
    return replace(read, **other)


@pytest.mark.parametrize(
    ("spoilt", "bar"),
    [
        ({"counts": {"stored": 90.0}}, "KV events: blocks stored and removed are read, and none is bad or unknown"),
        ({"counts": {"stored": 9.0, "removed": 8.0, "bad": 1.0}}, "KV events: blocks stored and removed are read"),
        ({"missed_tokens": 900.0}, "KV events: capacity misses are what turns had to compute again"),
        ({"missed_tokens": 0.0}, "KV events: capacity misses are what turns had to compute again"),
        ({"hit_ratio_by_pool": {}}, "KV events: the hit ratio by size of the pool"),
        ({"token_ids": 1}, "KV events: the exporter neither keeps nor writes token ids"),
    ],
)
def test_kv_events(spoilt, bar):
    good, bad = story(), story()
    good.kv_events, bad.kv_events = events(), events(**spoilt)
    assert missed(good) == []
    (found,) = missed(bad)
    assert found.startswith(bar)


def test_token_ids_are_found_in_memory_and_in_texts():
    here, gone = (["t7", "t200", "t901", "t555", "t902", "t128"], ["t8", "t201", "t903", "t557", "t904", "t129"])
    keeps = "import array; kept = array.array('I', [7, 200, 901, 555, 902, 128]); print(flush=True); input()"
    with Popen((sys.executable, "-c", keeps), stdin=PIPE, stdout=PIPE) as child:
        child.stdout.readline()
        assert token_ids.in_memory(child.pid, [here, gone]) == 1
        child.communicate(b"\n")
    assert token_ids.in_text("ids: [7, 200, 901, 555, 902, 128]", [here, gone]) == 1
    assert token_ids.in_text("said: t8 t201 t903 t557 t904 t129.", [here, gone]) == 1
    assert token_ids.in_text("[17, 200, 901, 555, 902, 128] 7 200", [here, gone]) == 0
