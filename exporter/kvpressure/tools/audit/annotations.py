"""Annotations that are there and cannot be read: nothing rests on them, and whoever wrote them should know."""

from __future__ import annotations

from collections.abc import Iterator

from kvpressure.capacity.gpus import GPUS, gpu_named, nearest_gpus
from kvpressure.commandline.numbers import human
from kvpressure.launch.declared import ANNOTATIONS
from kvpressure.tools.audit.checks.context import TRAFFIC, TRAFFIC_WORDS, traffic
from kvpressure.tools.audit.engine import Engine
from kvpressure.tools.audit.hardware import GPU_ANNOTATION
from kvpressure.tools.audit.model import Problem
from kvpressure.tools.audit.sizing import OUTPUT, PROMPT


def unreadable(engine: Engine) -> Iterator[Problem]:
    """Return what is wrong with an engine's annotations."""
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
        near = " or ".join(nearest_gpus(gpu))
        yield GPU_ANNOTATION, f"is no GPU that is known ({f'did you mean {near}?' if near else ', '.join(GPUS)})"
    if unknown := traffic(engine) - TRAFFIC_WORDS:
        yield TRAFFIC, f"has {', '.join(sorted(unknown))}, and the words are {', '.join(sorted(TRAFFIC_WORDS))}"
