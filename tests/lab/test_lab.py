"""The scheduler lab without vLLM: its regimes, its books of what is true, the score of verdicts on its recordings."""

import hashlib
import zipfile
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bench.detection.judge import Outcome
from bench.detection.lab import LAB_CAUSES, Judged, Moment, scored, steps_tables
from bench.detection.score import quantile
from tests.lab import fetch
from tests.lab.clock import Clock
from tests.lab.connector import FakeConnector
from tests.lab.fetch import NEWEST, VERSIONS, FetchError, Wheel
from tests.lab.link import Link
from tests.lab.regime import Regime, RegimeError, Transfer, parse, read, regimes
from tests.lab.truth import Book, Now, Second, Truth, truths
from tests.lab.web import Web

ROWS_OF_A_SCHEDULER = {*range(1, 24)}
"""All rows of the table of situations: every one has a regime."""


# -- regimes


def test_every_regime_can_be_read_and_is_about_a_cause() -> None:
    found = regimes()
    assert len(found) >= 75
    assert {regime.expect for regime in found.values()} <= set(LAB_CAUSES)
    for regime in found.values():
        assert 180 <= regime.seconds <= 480, regime.name
        assert len(regime.about) > 10, regime.name


def test_every_row_of_the_table_of_situations_has_a_regime() -> None:
    assert {row for regime in regimes().values() for row in regime.rows} == ROWS_OF_A_SCHEDULER


def test_every_version_has_its_regimes_and_the_newest_has_all() -> None:
    found = regimes().values()
    counts = {version: sum(regime.runs_on(version) for regime in found) for version in VERSIONS}
    assert counts[NEWEST] == len(found)
    assert min(counts.values()) >= 20


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("about = 1 2", "Expected"),
        ('about = "x"\nexpect = "idle"\nflaggs = 1\n[[load]]\nclients = 1', "flaggs"),
        ('about = "x"\nexpect = "idle"\n[[load]]\nclient = 1', "client"),
        ('about = "x"\nexpect = "idle"', "needs load"),
    ],
)
def test_a_regime_that_says_something_unknown_is_refused(tmp_path: Path, text: str, why: str) -> None:
    path = tmp_path / "kv-wrong.toml"
    path.write_text(text)
    with pytest.raises(RegimeError, match=why) as raised:
        read(path)
    assert "kv-wrong.toml" in str(raised.value)


def test_a_regime_without_an_old_flag_does_not_run_on_an_old_version() -> None:
    regime: Regime = parse("a-b", {"about": "x", "expect": "idle", "since": "0.32.0", "everywhere": True, "load": [{}]})
    assert [regime.runs_on(version) for version in ("0.33.0", "0.32.0", "0.22.1", "0.12.0")] == [
        True,
        True,
        False,
        False,
    ]


# -- fetching


def test_a_wheel_with_another_hash_is_refused_and_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "CACHE", tmp_path)
    monkeypatch.setattr(fetch, "WHEELS", (Wheel("1.0", "made-up", hashlib.sha256(b"another").hexdigest()),))
    path = _wheel(tmp_path)
    with pytest.raises(FetchError, match="the pinned one is"):
        fetch.fetch("1.0")
    assert not path.exists()


def test_only_python_files_of_vllm_are_unpacked_and_the_wheel_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch, "CACHE", tmp_path)
    path = _wheel(tmp_path)
    monkeypatch.setattr(fetch, "WHEELS", (Wheel("1.0", "made-up", hashlib.sha256(path.read_bytes()).hexdigest()),))
    folder = fetch.fetch("1.0")
    assert [file.name for file in folder.rglob("*") if file.is_file()] == ["scheduler.py"]
    assert not path.exists()
    assert fetch.fetch("1.0") == folder


def test_a_version_that_is_not_pinned_is_refused() -> None:
    with pytest.raises(FetchError, match="not pinned"):
        fetch.fetch("9.9.9")


def _wheel(cache: Path) -> Path:
    path = cache / "wheels" / "1.0" / "made_up-1.0-py3-none-any.whl"
    path.parent.mkdir(parents=True)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("vllm/scheduler.py", "")
        archive.writestr("vllm/kernels.so", "")
        archive.writestr("other/module.py", "")
    return path


# -- what is true


def played(*spans: tuple[float, Now], moved: bool = True, **counts: int) -> list[Truth]:
    """The truth of every second, of states that hold for some seconds each."""
    book = Book(1000.0, int(sum(seconds for seconds, _ in spans)))
    t = 1000.0
    for seconds, now in spans:
        book.now = now
        for _ in range(int(seconds)):
            t += 1
            book.close(t)
            book.count(t - 0.5, moved=int(moved), **counts)
    return truths(book.seconds[:-1])


def waiting(**reasons: int) -> Now:
    return Now({name.replace("__", "/"): count for name, count in reasons.items()}, running=4, present=True)


@pytest.mark.parametrize(
    ("now", "label", "detail"),
    [
        (waiting(kv=3), "kv_cache_pressure", ""),
        (waiting(kv__watermark=3), "kv_cache_pressure", "watermark"),
        (waiting(cap__max_num_seqs=3), "concurrency_bound", "max_num_seqs"),
        (waiting(deferred__grammar=5, kv=1), "deferred", "grammar"),
        (waiting(held__remote_kv=5), "deferred", "remote_kv"),
        (waiting(budget=5), "concurrency_bound", "prefill"),
        (Now({"budget": 5}, running=4, work_ratio=0.9, present=True), "compute_bound", "prefill"),
        (Now(running=4, work_ratio=0.9, present=True), "compute_bound", ""),
        (Now(running=4, present=True), "healthy", ""),
        (Now(), "idle", ""),
        (Now({"paused": 3}, running=4, present=True, paused=True), "paused", ""),
        (Now(present=True, lost=True), "stuck", ""),
    ],
)
def test_what_holds_is_true(now: Now, label: str, detail: str) -> None:
    found = played((60, now))
    assert {truth.label for truth in found} == {label}
    assert {truth.detail for truth in found} == {detail}


def test_requests_that_wait_for_different_things_count_by_their_number() -> None:
    (truth, *_) = played((60, waiting(deferred__offload=9, kv=1)))
    assert (truth.label, truth.accepted) == ("deferred", {"deferred"})
    (truth, *_) = played((60, waiting(deferred__offload=8, kv=2)))
    assert truth.accepted == {"deferred", "kv_cache_pressure"}


def test_an_engine_in_which_nothing_moves_for_ten_seconds_is_stuck_from_the_beginning() -> None:
    still = Now(running=4, present=True)
    assert {truth.label for truth in played((9, still), moved=False)} == {"healthy"}
    assert {truth.label for truth in played((10, still), moved=False)} == {"stuck"}


def test_blocks_that_nobody_fetches_are_no_hang() -> None:
    stranded = Now({"kv/stranded": 5}, running=0, present=True)
    assert {truth.accepted for truth in played((40, stranded), moved=False)} == {frozenset({"kv_cache_pressure"})}


def test_transfers_that_stand_still_may_be_called_stuck_and_a_slow_compiler_may_not() -> None:
    remote = Now({"deferred/remote_kv": 5}, running=0, present=True)
    assert {truth.accepted for truth in played((40, remote), moved=False)} == {frozenset({"deferred", "stuck"})}
    grammar = Now({"deferred/grammar": 5}, running=0, present=True)
    assert {truth.accepted for truth in played((40, grammar), moved=False)} == {frozenset({"deferred"})}


def test_between_two_causes_both_may_be_named() -> None:
    found = played((60, Now(running=4, present=True)), (60, waiting(kv=3)))
    turns = [truth for truth in found if len(truth.accepted) > 1]
    assert 0 < len(turns) <= 20
    assert found[0].accepted == {"healthy"}
    assert found[-1].accepted == {"kv_cache_pressure"}


def test_a_few_preemptions_may_be_called_pressure_and_need_not() -> None:
    found = played((60, Now(running=4, present=True)), preempted=1, started=20)
    assert {truth.accepted for truth in found} == {frozenset({"healthy", "kv_cache_pressure"})}


def test_time_is_booked_once_and_across_seconds() -> None:
    book = Book(0.0, 3)
    book.now = Now({"kv": 1, "cap": 3}, running=2, present=True)
    book.close(2.5)
    book.close(2.5)
    assert [second.state["all"] for second in book.seconds] == [1.0, 1.0, 0.5, 0.0]
    assert book.seconds[2].why == Counter({"kv": 0.125, "cap": 0.375})


def test_a_record_says_whether_the_truth_is_clear() -> None:
    truth = Truth("healthy", frozenset({"healthy", "idle"}), "", {"running": 1.23456})
    assert truth.record() == {"accepted": ["healthy", "idle"], "clear": False, "detail": "", "running": 1.235}
    assert isinstance(Second().why, Counter)


# -- the connector


def request(name: str, tokens: int = 100, output: int = 1) -> Any:
    return SimpleNamespace(request_id=name, num_prompt_tokens=tokens, num_output_tokens=output)


def test_a_decode_pod_loads_what_is_remote_once() -> None:
    connector = FakeConnector(Transfer(), Clock())
    connector.remote.add("a")
    assert connector.get_num_new_matched_tokens(request("a"), 16) == (84, True)
    assert connector.get_num_new_matched_tokens(request("b"), 0) == (0, False)
    connector.update_state_after_alloc(request("a"), None, 84)
    assert connector.get_num_new_matched_tokens(request("a"), 0) == (0, False)


def test_an_offload_tier_says_nothing_before_it_has_looked() -> None:
    clock = Clock()
    connector = FakeConnector(Transfer(role="offload", lookup_seconds=2), clock)
    connector.remote.add("a")
    assert connector.get_num_new_matched_tokens(request("a"), 0) == (None, False)
    assert connector.looking_up("a")
    clock.now += 2
    assert connector.get_num_new_matched_tokens(request("a"), 0) == (96, True)


def test_a_prefill_pod_keeps_blocks_until_they_are_fetched() -> None:
    clock = Clock()
    connector = FakeConnector(Transfer(role="producer", fetch_seconds=1), clock)
    assert connector.request_finished(request("a"), [1, 2, 3]) == (True, None)
    assert connector.held_blocks == 3
    connector.stalled = True
    clock.now += 5
    assert connector.poll() is None
    assert connector.held_blocks == 3


# -- the page of the API server


def test_pause_is_told_by_its_endpoint_alone() -> None:
    web = Web(counted=True)
    web.answered("/pause", 200, 0.05)
    assert 'http_requests_total{handler="/pause",method="POST",status="2xx"} 1.0' in web.page()


def test_older_versions_count_no_operations() -> None:
    for counted in (True, False):
        web = Web(counted=counted)
        web.under_way("sleep", 1)
        assert ("vllm:sleep_mode_operations_in_flight{" in web.page()) is counted


# -- the score


def track(*spans: tuple[int, str, str]) -> list[Moment]:
    """Seconds with a true label and a verdict."""
    rows = [(label, verdict) for seconds, label, verdict in spans for _ in range(seconds)]
    return [Moment(float(t), verdict, label, "", frozenset({label})) for t, (label, verdict) in enumerate(rows)]


def test_seconds_after_a_change_do_not_count() -> None:
    score = scored(track((60, "healthy", "healthy"), (100, "deferred", "healthy")))
    assert score.confusion == Counter({("healthy", "healthy"): 60, ("deferred", "healthy"): 54})
    assert score.excluded == 46
    assert score.accuracy("deferred") == 0.0


def test_a_critical_verdict_that_may_not_be_said_is_counted_apart() -> None:
    score = scored(track((60, "idle", "stuck")))
    assert score.critical == Counter({("idle", "stuck"): 60})
    assert not scored(track((60, "idle", "healthy"))).critical


def test_a_cause_is_named_when_its_word_comes_before_it_is_over() -> None:
    score = scored(
        track((40, "healthy", "healthy"), (12, "stuck", "healthy"), (40, "stuck", "stuck"), (40, "idle", "x"))
    )
    assert score.delays == [0.0, 12.0, None]
    assert quantile(score.delays, 0.5) == 6.0


def test_unknown_is_excused_at_the_start_only() -> None:
    score = scored(track((20, "healthy", "unknown"), (40, "healthy", "healthy")))
    assert score.excluded == 15
    assert score.unknown_seconds() == 5


def test_regimes_on_cards_have_their_own_row_where_there_are_others() -> None:
    outcome = Outcome("any", "lab", "any", {}, {}, {})
    on_card, other = (
        Judged(
            name,
            NEWEST,
            (),
            scored([Moment(float(t), "healthy", "healthy", "", frozenset({"healthy"})) for t in range(90)]),
            outcome,
        )
        for name in ("card-chat-h100", "healthy-chat")
    )
    (table,) = steps_tables([on_card, other])
    assert [row[0] for row in table.rows] == ["a formula", "a card"]
    assert steps_tables([on_card]) == []


# The network between two engines: what is under way shares it, and nothing comes sooner than it takes.


def link(rate: float = 100.0, latency: float = 0.0) -> tuple[Clock, Link, list[tuple[float, int]]]:
    clock, seen = Clock(), list[tuple[float, int]]()
    made = Link(clock, rate, latency)
    made.observe = lambda seconds, tokens: seen.append((round(seconds, 6), tokens))
    return clock, made, seen


def test_transfers_share_the_bandwidth_and_the_rest_goes_on_faster_once_one_is_through():
    clock, made, seen = link()
    made.begin("a", 100)
    made.begin("b", 300)
    clock.now += 2
    assert made.take() == {"a"}, "100 of 200 tokens each"
    clock.now += 1.9
    assert made.take() == set()
    clock.now += 0.1
    assert made.take() == {"b"}
    assert seen == [(2.0, 100), (4.0, 300)]
    assert not made.busy


def test_one_that_comes_later_takes_its_share_from_then_on():
    clock, made, _ = link()
    made.begin("a", 200)
    clock.now += 1
    made.begin("b", 100)
    clock.now += 1.99
    assert made.take() == set()
    clock.now += 0.01
    assert made.take() == {"a", "b"}


@pytest.mark.parametrize("tokens", [0, 5])
def test_nothing_comes_before_its_latency(tokens: int):
    clock, made, _ = link(1e12, latency=0.5)
    arrived: list[str] = []
    made.arrived = arrived.append
    made.begin("a", tokens)
    clock.now += 0.4
    assert made.take() == set()
    clock.now += 0.1
    assert made.take() == {"a"}
    assert arrived == ["a"]
