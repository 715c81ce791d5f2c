"""Views of engines made by hand."""

from kvpressure.model.values import Derived
from kvpressure.model.verdict import Diagnosis
from kvpressure.model.view import EngineKey, EngineView


def engine_view(
    target: str = "t",
    model_name: str = "m",
    rank: str = "0",
    t: float = 0.0,
    derived: Derived | None = None,
    diagnosis: Diagnosis | None = None,
    namespace: str = "",
    pod: str = "",
) -> EngineView:
    """One engine whose names are short enough to be shown whole."""
    key = EngineKey(target, model_name, rank)
    return EngineView(key, key, t, derived or {}, diagnosis, namespace, pod)
