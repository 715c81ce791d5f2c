"""Every engine in what was given: one row per kind of object."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final

from kvpressure.tools.audit import compose, kserve, ray_serve, values, workloads
from kvpressure.tools.audit.engine import Engine
from kvpressure.tools.audit.manifests import Item, Manifests, get, sequence, text
from kvpressure.tools.audit.model import Problem


def _without_kind(item: Item, given: Manifests) -> Iterator[Engine | Problem]:
    """Return a chart's values, a Ray Serve configuration, or a compose file."""
    for rule in (values.engines, ray_serve.serve_config, compose.engines):
        yield from rule(item, given)


KINDS: Final[Mapping[str, Callable[[Item, Manifests], Iterator[Engine | Problem]]]] = {
    **dict.fromkeys(workloads.SHAPES, workloads.engines),
    "InferenceService": kserve.inference_service,
    "LLMInferenceService": kserve.llm_inference_service,
    "RayService": ray_serve.ray_service,
    "": _without_kind,
}
"""Kinds that can hold engines."""


def find_engines(given: Manifests) -> tuple[list[Engine], list[Problem]]:
    """Engines in reading order, and what cannot be read of any.

    An object made by another that was given is left to that one.
    """
    owners = {(item.kind, item.name, item.namespace) for item in given.items if item.kind in KINDS}
    found: list[Engine | Problem] = []
    for item in given.items:
        rule = KINDS.get(item.kind)
        if rule is not None and not _owned(item, owners):
            found += rule(item, given)
    return (
        [one for one in found if isinstance(one, Engine)],
        list(dict.fromkeys(one for one in found if isinstance(one, Problem))),
    )


def _owned(item: Item, owners: set[tuple[str, str, str]]) -> bool:
    references = sequence(get(item.data, "metadata", "ownerReferences"))
    return any((text(get(one, "kind")), text(get(one, "name")), item.namespace) in owners for one in references)
