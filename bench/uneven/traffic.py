"""What comes when, and which replica is slower: drawn from a seed, the same for every router."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from bench.scaling.shapes import Kind, Rate, Shape, flat, steps

MINUTES: Final = 40
SKEWED: Final = (600, 1800)
"""What makes traffic skewed lasts from one to the other; a slower card is slower all the time."""
LONG_PROMPT: Final = 14_000
LONG_EVERY_SECONDS: Final = 75
CACHING: Final = {"enable_prefix_caching": True}


def _chat(rate: float) -> Kind:
    """Of 200 sessions that have little in common."""
    return Kind(flat(rate), (500, 1300), (20, 48), sessions=(100, 299), shared=300)


def _hot(rate: float) -> Kind:
    """Of one session that sends many requests."""
    return Kind(_skewed(rate), (900, 1300), (20, 48), sessions=(3, 3), shared=800)


def _long(session: int) -> Kind:
    """Of one session that has a long context."""
    rate = _skewed(1 / LONG_EVERY_SECONDS)
    return Kind(rate, (LONG_PROMPT, LONG_PROMPT), (150, 150), (session, session), LONG_PROMPT - 500)


def _skewed(rate: float) -> Rate:
    return steps((0, 0.0), (SKEWED[0], rate), (SKEWED[1], 0.0))


def _shape(name: str, *kinds: Kind, slower: Mapping[int, float] | None = None, replicas: int = 4) -> Shape:
    return Shape(name, "", kinds, CACHING, seconds=60 * MINUTES, replicas=replicas, slower=slower or {})


TRAFFIC: Final = (
    _shape("equal", _chat(2.0)),
    _shape("equal, nearly full", _chat(3.2)),
    _shape("equal, too much", _chat(4.8)),
    _shape("two long contexts", _chat(1.6), _long(4), _long(8)),
    _shape("two long contexts, busy", _chat(2.4), _long(4), _long(8)),
    _shape("one hot session", _chat(1.2), _hot(1.2)),
    _shape("one hot session, busy", _chat(1.6), _hot(1.8)),
    _shape("a slower card", _chat(1.6), slower={3: 2.5}),
    _shape("a slower card, busy", _chat(2.4), slower={3: 2.5}),
)
_DOCUMENTS: Final = Kind(
    steps((0, 0.05), (500, 0.45), (900, 0.1), (1300, 0.6), (1900, 0.05)), (2500, 5500), (40, 70), (10, 21), 2000
)
HELD_OUT: Final = (
    *(replace(shape, seed=49) for shape in TRAFFIC),
    _shape("documents in waves, six replicas", _chat(2.6), _DOCUMENTS, replicas=6),
)
"""Run once, when the rules were done: a seed, a kind of traffic and a number of replicas that they had not seen."""
