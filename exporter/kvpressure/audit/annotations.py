"""Annotations that are there and cannot be read: nothing rests on them, and whoever wrote them should know."""

from __future__ import annotations

from collections.abc import Iterator
from difflib import get_close_matches

from kvpressure.audit.checks.context import TRAFFIC, TRAFFIC_WORDS, traffic
from kvpressure.audit.engine import Engine
from kvpressure.audit.hardware import GPU_ANNOTATION
from kvpressure.audit.model import Problem
from kvpressure.audit.sizing import OUTPUT, PROMPT
from kvpressure.commandline.numbers import human
from kvpressure.limits.declared import ANNOTATIONS
from kvpressure.plan.gpus import GPUS, gpu_named


def unreadable(engine: Engine) -> Iterator[Problem]:
    """What is wrong with an engine's annotations."""
    for name, why in _wrong(engine):
        written = f"annotation {name} of {engine.title}: {engine.annotations[name]!r}"
        yield Problem(f"{written} {why}; it counts as not given", engine.annotation_place(name))


def _wrong(engine: Engine) -> Iterator[tuple[str, str]]:
    given = engine.annotations
    for name in (PROMPT, OUTPUT, *ANNOTATIONS.values()):
        if name in given and human(given[name]) is None:
            yield name, "is no number of tokens, such as 4096 or 4k"
    for name, other in ((PROMPT, OUTPUT), (OUTPUT, PROMPT)):
        if name in given and other not in given and human(given[name]) is not None:
            yield name, f"says nothing without {other}"
    if (gpu := given.get(GPU_ANNOTATION, "").strip()) and gpu_named(gpu) is None:
        yield GPU_ANNOTATION, f"is no GPU that is known{nearest(gpu)}"
    if unknown := traffic(engine) - TRAFFIC_WORDS:
        yield TRAFFIC, f"has {', '.join(sorted(unknown))}, and the words are {', '.join(sorted(TRAFFIC_WORDS))}"


def nearest(gpu: str) -> str:
    """Names like this one, or all there are, to end a sentence with."""
    close = get_close_matches(gpu.upper(), GPUS, 3)
    return f"; did you mean {' or '.join(close)}?" if close else f" (known: {', '.join(GPUS)})"
