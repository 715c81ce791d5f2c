"""The document at `/api/v1/diagnosis`: what the page says, for programs. `docs/api.md` describes it."""

from __future__ import annotations

from kvpressure.exposition.incident import incident_json
from kvpressure.exposition.snapshot import Snapshot
from kvpressure.exposition.status import Advise, no_advice
from kvpressure.model.codec import engine_json, gpu_json, unread_json
from kvpressure.model.samples import ENGINE_SOURCE, SourceHealth
from kvpressure.model.schemas.diagnosis import VERSION
from kvpressure.model.view import EngineView, worst_first


def diagnosis_json(snapshot: Snapshot, advise: Advise = no_advice) -> dict[str, object]:
    """Return every engine, worst first, with its diagnosis, derived values and actions; and every GPU.

    Histograms are only on /metrics. Of an engine that does not answer it is what was known when it last did. Targets
    that never answered come last.
    """
    errors = {one.target: one.error for one in snapshot.sources if one.source == ENGINE_SOURCE}
    return {
        "schema_version": VERSION,
        "t": snapshot.t,
        "engines": [
            *(_engine(view, advise, errors.get(view.key.target, "")) for view in worst_first(snapshot.known)),
            *(_unread(health) for health in snapshot.unread),
        ],
        "gpus": [gpu_json(view) for view in snapshot.gpus],
    }


def _engine(view: EngineView, advise: Advise, error: str) -> dict[str, object]:
    found = engine_json(view, advise(view), error)
    found["incident"] = incident_json(view.incident)
    return found


def _unread(health: SourceHealth) -> dict[str, object]:
    return {
        **unread_json(health.target, health.error, answering=False if health.errors else None),
        "incident": None,
    }
