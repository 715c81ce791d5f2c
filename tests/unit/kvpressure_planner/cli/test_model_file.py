from __future__ import annotations

import pytest

from kvpressure.capacity.geometry import read_geometry
from kvpressure.capacity.known_models import KNOWN_MODELS, file_of
from kvpressure_planner.cli.model_file import known_model
from tests.support.models import MODELS


@pytest.mark.parametrize(
    "served",
    [
        "Qwen/Qwen3-30B-A3B",
        "qwen/qwen3-30b-a3b",
        "hf://Qwen/Qwen3-30B-A3B",
        "/root/.cache/huggingface/hub/models--Qwen--Qwen3-30B-A3B/snapshots/1a2b3c",
        "hf://Qwen/Qwen3-30B-A3B:main",
        "/models/Qwen3-30B-A3B/",
        "s3://bucket/models/Qwen3-30B-A3B",
    ],
)
def test_a_model_is_found_by_whatever_it_is_served_as(served: str) -> None:
    found = known_model(served)
    assert found is not None
    assert found["num_hidden_layers"] == 48


@pytest.mark.parametrize(
    "served", ["", "/models", "someone/Qwen3-30B-A3B-AWQ", "someone/Qwen3-30B-A3B", "Qwen3-30B-A3B"]
)
def test_a_copy_by_somebody_else_is_not_taken_for_it(served: str) -> None:
    assert known_model(served) is None


def test_every_name_has_its_file_and_every_file_can_be_planned_with() -> None:
    files = {path.stem for path in MODELS.glob("*.json")}
    assert set(KNOWN_MODELS) <= files
    assert files - set(KNOWN_MODELS) == {"gpt2-xl"}  # its configuration names no type of weights
    for names in KNOWN_MODELS.values():
        for name in names:
            assert file_of(name) is not None
            assert read_geometry(known_model(name) or {}, name).weights is not None


@pytest.mark.parametrize("bucket", ["s3://b/Qwen3-8B", "gs://team/models/Qwen3-8B/", "pvc://x/Qwen3-8B"])
def test_a_uri_that_is_not_of_the_hub_is_a_path(bucket: str) -> None:
    assert file_of(bucket) == "qwen3-8b"
