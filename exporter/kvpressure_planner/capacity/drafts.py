"""The layers that a server adds to guess tokens ahead: their KV cache and weights count as the model's own. PURE."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Final

from kvpressure.capacity.geometry import Geometry
from kvpressure.capacity.layers import FULL
from kvpressure.capacity.weights import Part, Weights

_WITHOUT_CACHE: Final = frozenset({"ngram", "ngram_gpu", "suffix", "medusa", "mlp_speculator"})
_ONE_LAYER: Final = ("mtp", "eagle", "eagle3")
"""Ends of the methods that add one layer of the model's own kind, however many tokens they guess."""


def with_drafts(geometry: Geometry, written: str) -> Geometry:
    """Return the geometry with the layer that a `--speculative-config` (its JSON) adds.

    Raises ValueError where it is not JSON, and for a draft model of its own, whose size is not known here.
    """
    try:
        given = json.loads(written)
    except (ValueError, RecursionError) as error:
        raise ValueError("the value of --speculative-config is not JSON") from error
    method = str(given.get("method") or "") if isinstance(given, dict) else ""
    if method in _WITHOUT_CACHE:
        return geometry
    if not method.endswith(_ONE_LAYER):
        raise ValueError("the KV cache and weights of a draft model are not known here (--speculative-config)")
    own = max(geometry.groups, key=lambda group: (group.kind == FULL, group.layers))
    groups = tuple(replace(one, layers=one.layers + 1) if one is own else one for one in geometry.groups)
    weights = geometry.weights and _with_layer(geometry.weights, geometry.layers, sparse=method.endswith("mtp"))
    return replace(
        geometry, groups=groups, kinds=(*geometry.kinds, own.kind), layers=geometry.layers + 1, weights=weights
    )


def _with_layer(weights: Weights, layers: int, *, sparse: bool) -> Weights:
    """Return the weights with one more layer of average size; its experts where it is one of the model's own."""
    experts = _larger(weights.experts, layers) if sparse else weights.experts
    return replace(weights, layers=_larger(weights.layers, layers), experts=experts)


def _larger(part: Part, layers: int) -> Part:
    return replace(part, parameters=part.parameters + part.parameters // layers)
