"""What users get stays as it is unless that is meant: then `make golden`, and the diff says what changed."""

import os
from pathlib import Path

import pytest

from tests.support import golden_text, oracle
from tests.support.tools import GOLDEN

RECORDINGS = GOLDEN / "recordings"
BUNDLE = GOLDEN / "bundle"


def check(path: Path, text: str) -> None:
    if os.environ.get("UPDATE_GOLDEN") == "1":
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    assert text == path.read_text(), f"{path.name} is not as reviewed: where that is meant, `make golden`"


@pytest.mark.parametrize("path", oracle.RECORDINGS, ids=golden_text.name)
def test_what_a_recording_leads_to_is_as_reviewed(path: Path):
    check(RECORDINGS / f"{golden_text.name(path)}.txt", golden_text.of_recording(path))


def test_the_metrics_and_the_json_of_recordings_are_as_reviewed():
    check(GOLDEN / "recordings_metrics.txt", golden_text.of_metrics())


def test_the_generated_bundle_is_as_reviewed():
    texts = golden_text.of_bundle()
    for group, text in texts.items():
        check(BUNDLE / f"{group}.txt", text)
    assert {path.stem for path in BUNDLE.glob("*.txt")} == texts.keys()


def test_every_recording_has_a_golden_text_and_nothing_else_has_one():
    names = {golden_text.name(path) for path in oracle.RECORDINGS}
    assert {path.stem for path in RECORDINGS.glob("*.txt")} == names
    assert set(golden_text.WITH_METRICS) <= names
