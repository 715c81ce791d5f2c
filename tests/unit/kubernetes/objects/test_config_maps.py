"""Which text of a ConfigMap a container started with."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest

from kvpressure.kubernetes.objects.config_maps import (
    LAG_SECONDS,
    MAX_TEXT,
    MAX_VERSIONS,
    MapVersion,
    StartedAt,
    changed_at,
    in_force,
    is_answered,
    read_version,
    why_not,
    with_version,
)
from tests.support.mounted_config import config_map

CHANGED = datetime.fromisoformat("2025-11-03T07:00:00Z").timestamp()
OLD, NEW = {"data": {"config.yaml": "old"}}, {"data": {"config.yaml": "new"}}


def version(text: str, changed: float | None = CHANGED, at: float = CHANGED + 5000) -> MapVersion:
    return MapVersion({"data": {"config.yaml": text}}, changed, at)


def test_the_newest_change_of_the_data_counts_and_labels_do_not():
    assert changed_at(config_map("a: 1")) == CHANGED


@pytest.mark.parametrize(
    ("meta", "known"),
    [
        ({"managedFields": []}, False),
        ({"managedFields": [{"fieldsV1": {"f:data": {}}}]}, False),
        ({"creationTimestamp": "yesterday"}, False),
        ({"creationTimestamp": "2025-11-03T07:30:00Z"}, True),
    ],
)
def test_a_change_without_a_time_is_not_known_and_one_made_anew_is_as_new_as_that(meta: dict[str, Any], known: bool):
    found = config_map("a: 1")
    found["metadata"] |= meta
    assert changed_at(found) == (CHANGED + 1800 if known else None)


def test_one_that_cannot_change_is_as_old_as_it_is():
    found = {**config_map("a: 1"), "immutable": True}
    found["metadata"]["managedFields"] = []
    assert changed_at(found) == CHANGED - 3600


@pytest.mark.parametrize(
    ("start", "text"),
    [
        (StartedAt(CHANGED), "new"),
        (StartedAt(CHANGED + 1), "new"),
        (StartedAt(CHANGED - 1), None),
        (StartedAt(CHANGED + 5001), None),  # asked before it started
        (StartedAt(CHANGED + LAG_SECONDS - 1, anew=True), None),
        (StartedAt(CHANGED + LAG_SECONDS, anew=True), "new"),
    ],
)
def test_a_text_counts_when_it_changed_before_the_start_and_was_read_after_it(start: StartedAt, text: str | None):
    found = in_force([version("new")], start)
    assert found == (None if text is None else NEW)


def test_a_text_that_was_read_before_it_changed_goes_on_counting_for_the_start_it_was_read_after():
    versions = with_version([version("old", CHANGED - 900, CHANGED - 300)], version("new"))
    assert in_force(versions, StartedAt(CHANGED - 600)) == OLD
    assert in_force(versions, StartedAt(CHANGED - 200)) is None  # between the two readings it may have been a third
    assert in_force(versions, StartedAt(CHANGED + 600)) == NEW


def test_what_did_not_change_is_read_again_and_old_versions_go():
    (one,) = with_version([version("new", at=CHANGED)], version("new", at=CHANGED + 10))
    assert one.last_read == CHANGED + 10
    versions: tuple[MapVersion, ...] = ()
    for number in range(2 * MAX_VERSIONS):
        versions = with_version(versions, version(str(number), CHANGED + number, CHANGED + number))
    assert len(versions) == MAX_VERSIONS
    assert versions[-1].changed == CHANGED + 2 * MAX_VERSIONS - 1


@pytest.mark.parametrize(
    ("version", "start", "why"),
    [
        (version("new"), StartedAt(CHANGED - 1), "it changed at 2025-11-03T07:00:00Z, after the container started"),
        (version("new"), StartedAt(CHANGED + 9, anew=True), "shortly before the restart"),
        (version("new", None), StartedAt(CHANGED), "does not say when it changed"),
        (MapVersion({}, None, CHANGED + 1), StartedAt(CHANGED), "it is not there any more"),
    ],
)
def test_one_that_does_not_count_says_why_and_is_not_asked_for_again(version: MapVersion, start: StartedAt, why: str):
    assert in_force([version], start) is None
    assert is_answered([version], start)
    assert why in why_not([version], start)


def test_texts_that_are_too_large_for_a_configuration_file_are_not_kept():
    found = config_map("a: 1")
    found["data"] |= {"weights": "x" * (MAX_TEXT + 1), "odd": 7}
    assert read_version(found, 0.0).config_map == {"data": {"config.yaml": "a: 1"}}
