"""What a server adds to guess tokens ahead: a layer, or a whole model, whose KV cache and weights count too. PURE."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

from kvpressure.capacity.geometry import Geometry
from kvpressure.capacity.layers import FULL
from kvpressure.capacity.weights import Part, Weights

_WITHOUT_CACHE: Final = frozenset({"ngram", "[ngram]", "ngram_gpu", "suffix", "medusa", "mlp_speculator"})
_ONE_LAYER: Final = ("mtp", "eagle", "eagle3")
"""Ends of the methods that add one layer of the model's own kind, however many tokens they guess."""
_IN_NAMES: Final = {"eagle-": "eagle", "eagle3": "eagle3", "dflash": "dflash", "dspark": "dspark"}
"""What a draft's name tells the server of its method, where none is given."""
_MOST_TOKENS: Final = 1000
_UNKNOWN_SIZE: Final = "the KV cache and weights of {} are not known here (--speculative-config)"


def with_drafts(geometry: Geometry, written: str, read: Callable[[str], Geometry | None]) -> Geometry:
    """Return the geometry with what a `--speculative-config` (its JSON) adds; `read` knows drafts by their names.

    Raises ValueError where it is not JSON, where the draft's size is not known, and for a draft that would be refused.
    """
    try:
        given = json.loads(written)
    except (ValueError, RecursionError) as error:
        raise ValueError("the value of --speculative-config is not JSON") from error
    given = given if isinstance(given, dict) else {}
    method, name = _method(given)
    if geometry.state is not None:
        # A step that checks n guesses writes a state after each of them.
        tokens = given.get("num_speculative_tokens")
        blocks = geometry.state.blocks + (tokens if isinstance(tokens, int) and 0 < tokens < _MOST_TOKENS else 0)
        geometry = replace(geometry, state=replace(geometry.state, blocks=blocks))
    if method in _WITHOUT_CACHE or name in _WITHOUT_CACHE:
        return geometry
    if method.endswith(_ONE_LAYER):
        return _with_layer(geometry, sparse=method.endswith("mtp"))
    draft = read(name) if name and method in {"", "draft_model"} else None
    if draft is None or draft.state_layers:
        raise ValueError(_UNKNOWN_SIZE.format(f"a draft by {method}" if method else "the draft model"))
    if draft.vocabulary != geometry.vocabulary and not given.get("use_heterogeneous_vocab"):
        sizes = f"{draft.vocabulary:,} and {geometry.vocabulary:,} words"
        raise ValueError(f"the vocabularies of the draft model and the model differ ({sizes}): it would be refused")
    return _with_model(geometry, draft)


def _method(given: Mapping[str, Any]) -> tuple[str, str]:
    """Return the method, "" for a draft model that names none, and the draft's name."""
    method, name = (str(given.get(key) or "") for key in ("method", "model"))
    if not method:
        method = next((known for part, known in _IN_NAMES.items() if part in name.lower()), "")
    return method, name


def _with_layer(geometry: Geometry, *, sparse: bool) -> Geometry:
    own = max(geometry.groups, key=lambda group: (group.kind == FULL, group.layers))
    groups = tuple(
        replace(layer_group, layers=layer_group.layers + 1) if layer_group is own else layer_group
        for layer_group in geometry.groups
    )
    weights = geometry.weights and _larger_by_a_layer(geometry.weights, geometry.layers, sparse=sparse)
    return replace(
        geometry, groups=groups, kinds=(*geometry.kinds, own.kind), layers=geometry.layers + 1, weights=weights
    )


def _with_model(geometry: Geometry, draft: Geometry) -> Geometry:
    """Return the geometry with all layers of another, behind its own; its ranks are the same.

    Its weights, with the embeddings, stand beside the others: the server shares nothing between the two.
    """
    groups = tuple(replace(group, kind=f"{group.kind} of the draft") for group in draft.groups)
    kinds = tuple(f"{kind} of the draft" for kind in draft.kinds)
    weights = geometry.weights
    if weights and draft.weights:
        whole = draft.weights
        weights = replace(weights, draft=Part(whole.parameters, whole.bytes * 8 / whole.parameters))
    return replace(
        geometry,
        groups=(*geometry.groups, *groups),
        kinds=(*geometry.kinds, *kinds),
        weights=weights,
    )


def _larger_by_a_layer(weights: Weights, layers: int, *, sparse: bool) -> Weights:
    """Return the weights with one more layer of average size; its experts where it is one of the model's own."""
    experts = _larger(weights.experts, layers) if sparse else weights.experts
    return replace(weights, layers=_larger(weights.layers, layers), experts=experts)


def _larger(part: Part, layers: int) -> Part:
    return replace(part, parameters=part.parameters + part.parameters // layers)
