"""The model configurations under kvpressure/capacity/models, whole and changed."""

import json
from typing import Any

from kvpressure.capacity.geometry import Geometry, read_geometry
from tests.support.tools import ROOT

MODELS = ROOT / "exporter" / "kvpressure" / "capacity" / "models"


def config(name: str, **changed: Any) -> dict[str, Any]:
    """The configuration with fields changed, or left out where the new value is `...`."""
    fields = json.loads((MODELS / f"{name}.json").read_text()) | changed
    return {key: value for key, value in fields.items() if value is not ...}


def geometry(name: str, **changed: Any) -> Geometry:
    return read_geometry(config(name, **changed), f"{name}.json")
