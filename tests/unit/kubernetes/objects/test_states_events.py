"""Events: read into small records, and counted once each however often they are told."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvpressure.kubernetes.objects.states import OTHER, REASONS, EventRecord, read_event
from kvpressure.kubernetes.watch.stores import MAX_SUBJECTS, EventBook
from kvpressure.model.environment import ContainerId

ENGINE = ContainerId("llm", "a-0", "vllm")
START = 1_762_160_000.0


def event(reason: str = "BackOff", **fields: Any) -> dict[str, Any]:
    return {
        "metadata": {"uid": "e-1", "creationTimestamp": "2025-11-03T09:00:00Z"},
        "involvedObject": {"kind": "Pod", "name": "a-0", "uid": "p-1", "fieldPath": "spec.containers{vllm}"},
        "reason": reason,
        "type": "Warning",
        "count": 3,
        "firstTimestamp": "2025-11-03T08:59:00Z",
        "lastTimestamp": "2025-11-03T09:00:00Z",
    } | fields


def record(uid: str = "e-1", count: int = 1, first: float = START, **fields: Any) -> EventRecord:
    known = {"subject": "p-1", "container": "", "reason": "BackOff", "last": first} | fields
    return EventRecord(uid=uid, count=count, first=first, **known)


def test_an_event_is_read_with_its_count_and_times() -> None:
    assert read_event(event()) == EventRecord("e-1", "p-1", "vllm", "BackOff", 3, 1762160340.0, 1762160400.0)


def test_a_series_of_the_newer_api_counts_by_its_own_fields() -> None:
    series = {"count": 7, "lastObservedTime": "2025-11-03T09:10:00.123456Z"}
    found = read_event(event(count=None, firstTimestamp=None, lastTimestamp=None, series=series))
    assert (found.count, found.first, found.last) == (7, 1762160400.0, pytest.approx(1762161000.123456))


def test_an_event_on_the_node_has_no_subject() -> None:
    about = {"kind": "Node", "name": "gpu-1", "uid": "gpu-1"}
    found = read_event(event("SystemOOM", involvedObject=about))
    assert (found.subject, found.container, found.reason) == ("", "", "SystemOOM")


@pytest.mark.parametrize(
    ("reason", "kind", "expected"),
    [
        ("Evicted", "Warning", "Evicted"),
        ("Killing", "Normal", "Killing"),
        ("Preempted", "Normal", "Preempted"),
        ("FailedScheduling", "Warning", "FailedScheduling"),
        ("SomethingNew", "Warning", OTHER),
        ("other", "Warning", OTHER),
        ("Pulled", "Normal", None),
        ("Started", None, None),
        ("", "Warning", None),
        (17, "Warning", None),
    ],
)
def test_reasons_are_those_of_a_table(reason: Any, kind: Any, expected: str | None) -> None:
    found = read_event(event(reason, type=kind))
    assert (found and found.reason) == expected


@pytest.mark.parametrize(
    "broken",
    [
        {"metadata": {}},
        {"metadata": None},
        {"involvedObject": None},
        {"involvedObject": {"kind": "Pod"}},
        {"involvedObject": {"kind": "ReplicaSet", "uid": "r-1"}},
    ],
)
def test_an_event_without_identity_or_about_something_else_is_left_out(broken: dict[str, Any]) -> None:
    assert read_event(event(**broken)) is None


@given(st.dictionaries(st.sampled_from(list(event())), st.none() | st.integers() | st.text() | st.just([[]])))
def test_no_event_breaks_the_reader(broken: dict[str, Any]) -> None:
    found = read_event(event(**broken))
    assert found is None or (found.reason in REASONS and found.count >= 1)


def counts(book: EventBook, container: ContainerId = ENGINE, subject: str = "p-1") -> dict[str, int]:
    return {reason: n for reason, n in book.report(container, subject).counts.items() if n}


def test_what_the_first_list_holds_is_not_counted_but_recent_events_say_when() -> None:
    book = EventBook()
    old = record("e-2", 9, START - 3600, reason="Unhealthy")
    book.take([record("e-1", 4, START - 60), old], START, None)
    report = book.report(ENGINE, "p-1")
    assert set(report.counts) == set(REASONS)
    assert not any(report.counts.values())
    assert report.latest == {"BackOff": START - 60}


def test_growth_is_counted_once_however_often_the_event_is_told() -> None:
    book = EventBook()
    book.take([record("e-1", 4)], START, None)
    for _ in range(3):
        book.take([record("e-1", 6, last=START + 30)], START + 30, START)
    assert counts(book) == {"BackOff": 2}
    book.take([record("e-1", 6), record("e-2", 3, START + 40)], START + 40, START)
    assert counts(book) == {"BackOff": 5}
    assert book.report(ENGINE, "p-1").latest == {"BackOff": START + 40}


def test_an_event_that_began_before_we_listened_counts_only_its_newest_occurrence() -> None:
    book = EventBook()
    book.take([record("e-9", 500, START - 900, last=START + 5)], START + 5, START)
    assert counts(book) == {"BackOff": 1}


def test_a_count_that_falls_takes_nothing_back() -> None:
    book = EventBook()
    book.take([record("e-1", 5, START + 1)], START + 1, START)
    book.take([record("e-1", 2, START + 1)], START + 2, START)
    book.take([record("e-1", 5, START + 1)], START + 3, START)
    assert counts(book) == {"BackOff": 5}


def test_an_event_on_another_container_of_the_pod_is_not_the_engines() -> None:
    book = EventBook()
    told = [record("e-1", container="vllm"), record("e-2", container="proxy"), record("e-3", reason="Evicted")]
    book.take(told, START, START)
    assert counts(book) == {"BackOff": 1, "Evicted": 1}
    assert counts(book, ContainerId("llm", "a-0", "proxy")) == {"BackOff": 1, "Evicted": 1}


def test_subjects_are_bounded_and_those_that_are_shown_stay() -> None:
    book = EventBook()
    book.keep({"p-1"})
    book.take([record()], START, START)
    book.take([record(f"x-{i}", subject=f"x-{i}") for i in range(3 * MAX_SUBJECTS)], START, START)
    assert counts(book) == {"BackOff": 1}
    assert len(book._subjects) <= MAX_SUBJECTS


@given(st.lists(st.tuples(st.sampled_from(["e-1", "e-2", "e-3"]), st.integers(1, 50)), max_size=30))
def test_the_count_is_the_sum_of_the_highest_counts_whatever_the_order(told: list[tuple[str, int]]) -> None:
    book = EventBook()
    for uid, count in told:
        book.take([record(uid, count)], START, START)
    highest = {uid: max(n for other, n in told if other == uid) for uid, _ in told}
    assert counts(book).get("BackOff", 0) == sum(highest.values())
