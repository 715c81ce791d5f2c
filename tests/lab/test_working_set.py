"""Regimes about the working set, and what was recorded of some of them."""

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from kvpressure.engines.reader import PageReader
from kvpressure.engines.recordings import TraceError, open_trace, read_trace, stem
from tests.lab.fixtures import FOLDER, WORKING_SET, WORKING_SET_BYTES
from tests.lab.ledger import BLOCKS, KINDS, TOKENS
from tests.lab.regime import Load
from tests.lab.trace import EXCERPT, ROOT
from tests.lab.working_set import FAMILY, SHARES, agents, family, find, held, people, trace, with_pool, without_limit

RECORDINGS = {stem(path).rpartition("-")[0]: path for path in sorted((FOLDER / FAMILY).glob("*.jsonl.xz"))}


# -- regimes


def test_pools_hold_from_a_fifth_to_three_times_what_the_sessions_hold() -> None:
    found = family()
    for kind in ("calm", "busy"):
        for share in SHARES:
            regime = found[f"workingset-{kind}-{share * 100:03.0f}"]
            pool = regime.flags.num_gpu_blocks * regime.flags.block_size
            assert pool / sum(map(held, regime.load)) == pytest.approx(share, rel=0.01)
    assert all(regime.family == FAMILY and regime.everywhere for regime in found.values())


def test_a_seed_changes_who_comes_and_keeps_the_share_that_the_pool_holds() -> None:
    written, other = family(), family(3)
    assert set(other) == {f"{name}~3" for name in written}
    assert other == family(3)
    for name, regime in written.items():
        changed = other[f"{name}~3"]
        assert changed.load != regime.load
        assert changed.fault == regime.fault
        if any(load.turns[1] for load in regime.load) and "020" not in name:
            before, after = (
                one.flags.num_gpu_blocks * one.flags.block_size / sum(map(held, one.load)) for one in (regime, changed)
            )
            assert after == pytest.approx(before, rel=0.02), name


def test_a_regime_is_found_by_its_name_and_seed() -> None:
    assert find("workingset-joins") == family()["workingset-joins"]
    assert find("workingset-joins~2") == family(2)["workingset-joins~2"]
    assert find("workingset-nothing") is None
    assert find("kv-collapse") is None


def test_what_sessions_hold_is_the_mean_of_their_prompts_and_the_system_prompts_once() -> None:
    assert held(replace(agents(1, (1, 1)), prefix=0)) == pytest.approx((8_000 + 29_000) / 2, rel=0.03)
    assert held(replace(agents(10, (1, 1)), prefix=0)) == 10 * held(replace(agents(1, (1, 1)), prefix=0))
    assert held(people(0)) == 3 * 2_000


def test_a_pool_without_limit_has_room_for_all_that_can_be_computed() -> None:
    for regime in family().values():
        if any(load.trace for load in regime.load):
            continue
        pool = without_limit(regime).flags.num_gpu_blocks * regime.flags.block_size
        assert pool >= regime.seconds / regime.cost.prefill_token_seconds
    regime = trace(0.5, 1)
    recorded = replace(regime, load=(Load(trace=str(EXCERPT.relative_to(ROOT))),))
    lengths = [json.loads(line)["input_length"] for line in EXCERPT.read_text().splitlines()]
    assert without_limit(recorded).flags.num_gpu_blocks * 16 >= sum(lengths[:10])


def test_no_pool_is_too_small_for_the_longest_prompt() -> None:
    flags = with_pool(trace(0.5, 400_000).flags, 1)
    assert flags.num_gpu_blocks * flags.block_size > flags.max_model_len


# -- recordings


@cache
def records(name: str) -> tuple[dict[str, Any], ...]:
    with open_trace(RECORDINGS[name], "rt") as file:
        return tuple(json.loads(line) for line in file)


def caches(name: str) -> Iterator[dict[str, Any]]:
    return (record["truth"]["cache"] for record in records(name))


def total(name: str, begin: int = 0, end: int | None = None) -> Counter[str]:
    found: Counter[str] = Counter()
    for line in list(caches(name))[begin:end]:
        found.update({key: line[key] for key in (*TOKENS, *BLOCKS)})
    return found


def test_there_is_a_small_recording_of_each() -> None:
    assert set(RECORDINGS) == set(WORKING_SET)
    assert all(path.stat().st_size <= WORKING_SET_BYTES for path in RECORDINGS.values())


@pytest.mark.parametrize("name", RECORDINGS)
def test_what_is_asked_for_is_found_or_computed(name: str) -> None:
    under_way = 0
    for line in caches(name):
        booked = line["found"] + line["computed"] + line["dropped"] + line["under_way"]
        assert line["asked"] + under_way == booked
        assert sum(line[kind] for kind in KINDS if kind in line) <= line["computed"]
        under_way = line["under_way"]


@pytest.mark.parametrize("name", RECORDINGS)
def test_every_capacity_miss_had_an_eviction_before(name: str) -> None:
    evicted = missed = 0
    for line in caches(name):
        evicted, missed = evicted + line["evicted"], missed + line["missed"]
        assert missed <= evicted or missed == 0
        assert sum(line.get("kept_by", {}).values()) <= line["missed"]
    assert total(name)["again"] == 0 or evicted


@pytest.mark.parametrize("name", RECORDINGS)
def test_the_page_says_as_many_hits_as_the_books(name: str) -> None:
    reader, found = PageReader(), 0
    for line, record in zip(read_trace(RECORDINGS[name]), records(name), strict=True):
        assert not isinstance(line, TraceError)
        (engine,) = reader.read(line.page, line.t).engines
        found += record["truth"]["cache"]["found"]
        hits = page_counter(record["page"], "vllm:prefix_cache_hits_total")
        # What was preempted and comes again is counted apart by vLLM.
        assert hits <= found
        if not page_counter(record["page"], "vllm:num_preemptions_total"):
            assert hits == found
        assert "kv_usage" in engine.gauges


def page_counter(page: str, name: str) -> float:
    return sum(float(line.rsplit(" ", 1)[1]) for line in page.splitlines() if line.startswith(f"{name}{{"))


@pytest.mark.parametrize("name", RECORDINGS)
def test_it_says_what_was_run_and_what_clients_would_get_without_a_limit(name: str) -> None:
    about = records(name)[0]["regime"]
    assert (about["name"], about["family"]) == (f"workingset-{name}", FAMILY)
    assert about["without_limit"]["evicted"] == 0
    assert about["without_limit"]["again_ratio"] in (0.0, None)
    assert about["given"]["hits"] <= about["without_limit"]["hits"]
    for record in records(name):
        assert set(record["truth"]["without_limit"]) == {"asked", "found", "computed", "generated"}


def test_agents_who_join_others_drive_each_other_out_and_nobody_waits() -> None:
    before, after = total("joins", 90, 180), total("joins", 330)
    assert before["again"] == 0
    assert after["again"] > 0.7 * after["computed"]
    assert before["found"] / before["asked"] > 0.8
    assert after["found"] / after["asked"] < 0.3
    waiting = [record["truth"]["waiting"] for record in records("joins")[330:]]
    assert sum(waiting) / len(waiting) < 0.3
    given, free = (records("joins")[0]["regime"][key] for key in ("given", "without_limit"))
    assert given["first_token_mean"] > 2 * free["first_token_mean"]


def test_busy_agents_on_two_fifths_of_what_they_hold_wait_and_compute_again() -> None:
    given, free = (records("busy-040")[0]["regime"][key] for key in ("given", "without_limit"))
    assert given["waiting"] > 2
    assert given["again_ratio"] > 0.7
    assert given["tokens_per_second"] < 0.7 * free["tokens_per_second"]


@pytest.mark.parametrize(
    ("name", "kind"),
    [("calm-130", "cold"), ("cold", "cold"), ("uncached", "cold"), ("reset", "reset"), ("scattered", "sibling")],
)
def test_other_misses_are_no_evictions(name: str, kind: str) -> None:
    found = total(name, 60)
    assert found["again"] <= 0.1 * found["computed"]
    rest = {key: found[key] for key in ("reset", "sibling") if key != kind}
    shown = found["computed"] - sum(rest.values()) - found["again"] if kind == "cold" else found[kind]
    assert shown > 0.4 * found["computed"]


def test_cold_traffic_evicts_all_the_time_and_a_comfortable_pool_finds_most() -> None:
    assert total("cold")["evicted"] > 80_000
    assert total("cold")["missed"] == 0
    assert total("uncached")["found"] == 0
    comfortable = total("calm-130", 120)
    assert comfortable["found"] > 0.85 * comfortable["asked"]
    assert records("trace-light")[0]["regime"]["given"]["again_work"] < 0.05


@pytest.mark.parametrize("name", ["joins", "busy-040", "cold"])
def test_a_block_lives_about_as_long_as_the_bounds_say(name: str) -> None:
    lines = list(caches(name))[-120:]
    seconds = len(lines)
    free = sum(line["free"] for line in lines) / seconds
    written = sum(line["computed"] + line["generated"] for line in lines) / seconds
    touched = written + sum(line["found"] for line in lines) / seconds
    evicted = sum(line["evicted"] for line in lines)
    age = sum(line["age"][0] * line["evicted"] for line in lines if "age" in line) / evicted
    # A fifth: these are means over a while in which neither the pool nor the load stands still.
    assert 0.8 * free / touched <= age <= 1.2 * free / written
