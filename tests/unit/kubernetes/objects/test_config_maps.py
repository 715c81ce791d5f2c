"""Which text of a ConfigMap a container started with."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest

from kvpressure.kubernetes.objects.config_maps import LAG_SECONDS, MAX_TEXT, StartedAt, changed_at, in_force, texts_of
from tests.support.mounted_config import config_map

CHANGED = datetime.fromisoformat("2025-11-03T07:00:00Z").timestamp()


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
    ("start", "why"),
    [
        (StartedAt(CHANGED), ""),
        (StartedAt(CHANGED + 1), ""),
        (StartedAt(CHANGED - 1), "it changed at 2025-11-03T07:00:00Z, after the container started"),
        (StartedAt(CHANGED + LAG_SECONDS - 1, anew=True), "shortly before the restart"),
        (StartedAt(CHANGED + LAG_SECONDS, anew=True), ""),
    ],
)
def test_a_text_counts_when_it_changed_before_the_start_and_else_it_is_said_why_not(start: StartedAt, why: str):
    found = in_force(config_map("new"), start)
    assert why in found if why else found == {"data": {"config.yaml": "new"}}


def test_one_that_is_gone_or_whose_change_has_no_time_says_so():
    assert "not there any more" in in_force(None, StartedAt(CHANGED))
    found = config_map("a: 1")
    found["metadata"]["managedFields"] = []
    assert "does not say when it changed" in in_force(found, StartedAt(CHANGED))


def test_texts_that_are_too_large_for_a_configuration_file_are_not_kept():
    found = config_map("a: 1")
    found["data"] |= {"weights": "x" * (MAX_TEXT + 1), "odd": 7}
    assert texts_of(found) == {"data": {"config.yaml": "a: 1"}}
