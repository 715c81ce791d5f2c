"""The weights that are computed of each bundled model are as large as its files on the hub, where that is known."""

import re
from typing import Final

import pytest

from kvpressure.capacity.geometry import read_geometry
from kvpressure.capacity.known_models import KNOWN_MODELS
from kvpressure.capacity.weights import Weights
from kvpressure_planner.capacity.drafts import with_drafts
from kvpressure_planner.cli.model_file import known_model
from tests.support.tools import ROOT

PAGE: Final = (ROOT / "exporter/kvpressure/capacity/models/README.md").read_text().partition("## Size on disk")[2]
BYTES, PARAMETERS = (
    re.findall(r"^\| ([\w.-]+) \| ([\d,]+) \| ([\d,]+) \| ([-+]?[\d.]+)% \| (.+) \|$", part, re.MULTILINE)
    for part in PAGE.split("## Parameters on disk")
)
LARGEST_DIFFERENCE: Final = 0.005
BEYOND: Final = {"deepseek-v3": 0.024}
"""Its file holds a layer of multi-token prediction, which is not loaded."""


def computed(name: str, what_differs: str) -> Weights:
    config = known_model(KNOWN_MODELS[name][0])
    assert config is not None
    geometry = read_geometry(config)
    if "with its MTP layer" in what_differs:
        geometry = with_drafts(geometry, '{"method": "mtp"}', lambda _: None)
    assert geometry.weights is not None
    return geometry.weights


@pytest.mark.parametrize("row", [*BYTES, *PARAMETERS], ids=[row[0] for row in [*BYTES, *PARAMETERS]])
def test_weights_are_as_large_as_the_published_files(row: tuple[str, ...]) -> None:
    name, published, written, difference, what_differs = row
    weights = computed(name, what_differs)
    size, on_disk = weights.bytes if row in BYTES else weights.parameters, int(published.replace(",", ""))
    assert size == pytest.approx(on_disk, rel=BEYOND.get(name, LARGEST_DIFFERENCE))
    assert round(size) == int(written.replace(",", ""))
    assert float(difference) == pytest.approx(100 * (size / on_disk - 1), abs=0.0051)


def test_every_bundled_model_has_a_row_or_is_named_as_not_found() -> None:
    missing = " ".join(PAGE.partition("Not found")[2].partition(": ")[2].split()).rstrip(".").split(", ")
    rows = {row[0] for row in [*BYTES, *PARAMETERS]}
    assert rows | set(missing) == KNOWN_MODELS.keys()
    assert not rows & set(missing)
