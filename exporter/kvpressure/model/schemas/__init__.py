"""PURE: JSON Schemas (draft 2020-12) of what programs read: `/api/v1/diagnosis` and `incidents --json`.

Made from the records' own vocabularies, so that they cannot lag behind. Published under docs/schemas, a file for each
version. Within a major version keys are only ever added, so objects are open; a key whose meaning or type changes is
another major version.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from kvpressure.model.schemas import diagnosis, incidents

SCHEMAS: Final[Mapping[str, Mapping[str, Any]]] = {"diagnosis": diagnosis.SCHEMA, "incidents": incidents.SCHEMA}
"""By the name of the document."""
