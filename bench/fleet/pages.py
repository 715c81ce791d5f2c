"""Pages as the exporters of a fleet serve them: real ones of a recording, under other names for each engine."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Final

from kvpressure.config.target import Target
from kvpressure.exposition import Snapshot, text
from kvpressure.exposition.profile import Profile
from kvpressure.exposition.text import OwnProcess
from kvpressure.model.view import EngineView
from tests.support.snapshots import collapsed, healthy

ENGINES_PER_NODE: Final = 8
"""One for each GPU of the usual node."""
SICK_ONE_IN: Final = 50
MODELS: Final = 20
"""Deployments that a fleet's engines belong to."""


def pages(engines: int, profile: Profile) -> Iterator[bytes]:
    """One page per node, as text; one engine in `SICK_ONE_IN` is under KV cache pressure, the others are well."""
    sick = collapsed()
    for begin in range(0, engines, ENGINES_PER_NODE):
        numbers = range(begin, min(begin + ENGINES_PER_NODE, engines))
        yield text.render(_node(sick, numbers, profile), openmetrics=False, own=[OwnProcess()])


def _node(sick: Snapshot, numbers: range, profile: Profile) -> Snapshot:
    well = healthy(sick.engines[0])
    one = dataclasses.replace(sick.engines[0], step="add_replica")
    views = tuple(_named(one if number % SICK_ONE_IN == 0 else well, number) for number in numbers)
    sources = tuple(dataclasses.replace(sick.sources[0], target=view.key.target, up=True, errors={}) for view in views)
    targets = tuple(Target(view.key.target, namespace=view.namespace, pod=view.pod, created=1.0) for view in views)
    exporter = {**sick.exporter, "targets": float(len(targets))}
    return dataclasses.replace(
        sick, engines=views, sources=sources, targets=targets, exporter=exporter, profile=profile
    )


def _named(view: EngineView, number: int) -> EngineView:
    names = {"target": f"chat/vllm-{number}:8000", "model_name": f"model-{number % MODELS}"}
    key, shown = view.key._replace(**names), view.shown._replace(**names)
    return dataclasses.replace(view, key=key, shown=shown, namespace="chat", pod=f"vllm-{number}")
