"""The schemas: valid, closed over what is said, and never changed under a version that is out."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

import jsonschema
import pytest

from kvpressure.exposition import Snapshot
from kvpressure.exposition.status import diagnosis_json
from kvpressure.model.samples import ENGINE_SOURCE, SourceHealth
from kvpressure.model.schemas import SCHEMAS
from kvpressure.model.verdict import Cause
from tests.support.schemas import check, version
from tests.support.snapshots import collapsed
from tests.support.tools import ROOT

pytestmark = pytest.mark.recorded

FOLDER = ROOT / "docs" / "schemas"


@pytest.mark.parametrize("name", SCHEMAS)
def test_a_schema_is_one_and_what_is_published_is_what_is_shipped(name: str) -> None:
    schema = SCHEMAS[name]
    jsonschema.Draft202012Validator.check_schema(schema)
    path = FOLDER / f"{name}-{version(schema)}.schema.json"
    assert path.exists(), f"write {path.name}: json.dumps(SCHEMAS[{name!r}], indent=1)"
    said = "a key has another type or meaning: raise VERSION, and keep the old file; a new key: the minor version"
    assert json.loads(path.read_text()) == json.loads(json.dumps(schema)), said


@pytest.mark.parametrize("name", SCHEMAS)
def test_within_a_major_version_keys_are_only_added(name: str) -> None:
    newest = SCHEMAS[name]
    for path in FOLDER.glob(f"{name}-{version(newest).split('.')[0]}.*.schema.json"):
        older = json.loads(path.read_text())
        assert list(missing(older, newest)) == []


def test_a_key_that_goes_is_found() -> None:
    older = json.loads((FOLDER / f"diagnosis-{version(SCHEMAS['diagnosis'])}.schema.json").read_text())
    newer = json.loads(json.dumps(older))
    del newer["properties"]["gpus"]
    assert list(missing(older, newer)) == ["/properties/gpus"]


def missing(older: Any, newer: Any, where: str = "") -> Iterator[str]:
    """What the older schema says and the newer does not; descriptions may be put better, and enums may grow."""
    if isinstance(older, Mapping) and isinstance(newer, Mapping):
        for key, value in older.items():
            if key in {"description", "$id", "title"} and isinstance(value, str):
                continue
            if key not in newer:
                yield f"{where}/{key}"
            elif key in {"required", "enum"}:
                yield from (f"{where}/{key}/{one}" for one in value if one not in newer[key])
            else:
                yield from missing(value, newer[key], f"{where}/{key}")
    elif older != newer:
        yield where


def test_a_collapsed_engine_with_everything_known_is_described() -> None:
    check("diagnosis", diagnosis_json(collapsed()))


def test_a_target_that_never_answered_is_described() -> None:
    health = SourceHealth(ENGINE_SOURCE, "llm-1", up=False, t=1.0, error="refused", errors={"unreachable": 1})
    document = diagnosis_json(Snapshot(1.0, sources=(health,)))
    assert document["engines"]
    check("diagnosis", document)


def test_a_word_that_is_no_cause_is_not_let_through() -> None:
    document = json.loads(json.dumps(diagnosis_json(collapsed())))
    document["engines"][0]["cause"] = "kv_pressure"
    with pytest.raises(AssertionError, match="kv_pressure"):
        check("diagnosis", document)
    document["engines"][0]["cause"] = Cause.STUCK.value
    document["engines"][0]["surprise"] = 1
    with pytest.raises(AssertionError, match="surprise"):
        check("diagnosis", document)
