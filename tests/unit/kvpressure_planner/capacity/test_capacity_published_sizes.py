"""The weights that are computed of each bundled model are as large as its files on the hub, where that is known."""

from __future__ import annotations

import re
from typing import Final

import pytest

from kvpressure.capacity.geometry import read_geometry
from kvpressure.capacity.known_models import KNOWN_MODELS
from kvpressure_planner.cli.model_file import known_model
from tests.support.tools import ROOT

PAGE: Final = (ROOT / "exporter/kvpressure/capacity/models/README.md").read_text().partition("## Size on disk")[2]
ROWS: Final = re.findall(r"^\| ([\w.-]+) \| ([\d,]+) \| ([\d,]+) \| ([-+]?[\d.]+)% \| (.+) \|$", PAGE, re.MULTILINE)
LARGEST_DIFFERENCE: Final = 0.005
BEYOND: Final = {"deepseek-v3": 0.024}
"""Its file holds a layer of multi-token prediction, which is not loaded."""


@pytest.mark.parametrize("row", ROWS, ids=[row[0] for row in ROWS])
def test_weights_are_as_large_as_the_published_files(row: tuple[str, ...]) -> None:
    name, published, computed, difference, _ = row
    config = known_model(KNOWN_MODELS[name][0])
    assert config is not None
    weights = read_geometry(config).weights
    assert weights is not None
    on_disk = int(published.replace(",", ""))
    assert weights.bytes == pytest.approx(on_disk, rel=BEYOND.get(name, LARGEST_DIFFERENCE))
    assert round(weights.bytes) == int(computed.replace(",", ""))
    assert float(difference) == pytest.approx(100 * (weights.bytes / on_disk - 1), abs=0.0051)


def test_every_bundled_model_has_a_row_or_is_named_as_not_found() -> None:
    missing = " ".join(PAGE.partition("Not found")[2].partition(": ")[2].split()).rstrip(".").split(", ")
    assert {row[0] for row in ROWS} | set(missing) == KNOWN_MODELS.keys()
    assert not {row[0] for row in ROWS} & set(missing)
