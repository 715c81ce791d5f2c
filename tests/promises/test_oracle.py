"""What users get stays as it is unless that is meant: then `make golden`, and the diff names what changed."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.support import oracle
from tests.support.tools import FIXTURES, GOLDEN

FROZEN = GOLDEN / "oracle"
HELP = "to see it: `python -m tests.support.oracle --out DIR` here and on the tree before, then `diff -r`"


def check(name: str, found: dict[str, str]) -> None:
    path = FROZEN / f"{name}.json"
    if os.environ.get("UPDATE_GOLDEN") == "1":
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")
    frozen = json.loads(path.read_text())
    changed = sorted(key for key in frozen.keys() | found.keys() if frozen.get(key) != found.get(key))
    assert not changed, f"{name}: {', '.join(changed)} differ from what was frozen; {HELP}"


@pytest.mark.parametrize("path", oracle.RECORDINGS, ids=lambda path: f"{path.parent.name}-{oracle.stem(path)}")
def test_what_a_recording_leads_to_is_as_reviewed(path: Path):
    found = {kind: oracle.digest(content) for kind, content in oracle.of_recording(path).items()}
    check(f"{path.parent.name}-{oracle.stem(path)}", found)


def test_the_generated_bundle_is_as_reviewed():
    check("bundle", {name: oracle.digest(content) for name, content in oracle.of_bundle()})


def test_every_recording_has_frozen_results():
    names = {f"{path.parent.name}-{oracle.stem(path)}.json" for path in FIXTURES.glob("**/*.jsonl.xz")}
    assert {path.name for path in FROZEN.glob("*.json")} == names | {"bundle.json"}
