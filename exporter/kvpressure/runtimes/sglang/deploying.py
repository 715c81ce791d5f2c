"""SGLang as KServe deploys it: with a ServingRuntime of somebody's own, told by its name or its model format."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from kvpressure.runtimes.deploying import KServe


def _serves(model: Mapping[str, Any]) -> bool:
    described = model.get("modelFormat")
    name = described.get("name") if isinstance(described, Mapping) else ""
    return any("sglang" in text.lower() for text in (name, model.get("runtime")) if isinstance(text, str))


KSERVE: Final = KServe(_serves)
