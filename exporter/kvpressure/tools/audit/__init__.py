"""PURE: manifests to checks to findings, what `kvpressure audit` prints: the checklist over every engine in them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Final

from kvpressure.capacity.gpus import GPUS, gpu_named, nearest_gpus
from kvpressure.commandline.options import human
from kvpressure.config.thresholds import Thresholds
from kvpressure.launch import ANNOTATIONS
from kvpressure.tools.audit import compose, ray_serve, values, workloads
from kvpressure.tools.audit.checks import CHECKS
from kvpressure.tools.audit.checks.context import TRAFFIC, TRAFFIC_WORDS, Context, traffic
from kvpressure.tools.audit.engine import Engine
from kvpressure.tools.audit.manifests import Item, Manifests, from_objects, get, read, sequence, text
from kvpressure.tools.audit.model import Finding, Problem, Report, Reviewed
from kvpressure.tools.audit.pods import GPU_ANNOTATION
from kvpressure.tools.audit.sizing import NOTHING_KNOWN, OUTPUT, PROMPT, Knowledge, size

__all__ = ["Finding", "Knowledge", "Manifests", "Problem", "Report", "audit", "from_objects", "read"]

Progress = Callable[[int, int], None]


KINDS: Final[Mapping[str, Sequence[Callable[[Item, Manifests], Iterator[Engine | Problem]]]]] = {
    **dict.fromkeys(workloads.SHAPES, (workloads.engines,)),
    "InferenceService": (workloads.inference_service,),
    "LLMInferenceService": (workloads.llm_inference_service,),
    "RayService": (ray_serve.ray_service,),
    "": (values.engines, ray_serve.serve_config, compose.engines),
}
"""Kinds that can hold engines; "" for a chart's values, a Ray Serve configuration, or a compose file."""


def find_engines(given: Manifests) -> tuple[list[Engine], list[Problem]]:
    """Engines in reading order, and what cannot be read of any.

    An object made by another that was given is left to that one.
    """
    owners = {(item.kind, item.name, item.namespace) for item in given.items if item.kind in KINDS}
    found: list[Engine | Problem] = []
    for item in given.items:
        rules = KINDS.get(item.kind, ())
        if rules and not _owned(item, owners):
            found += (one for rule in rules for one in rule(item, given))
    return (
        [one for one in found if isinstance(one, Engine)],
        list(dict.fromkeys(one for one in found if isinstance(one, Problem))),
    )


def _owned(item: Item, owners: set[tuple[str, str, str]]) -> bool:
    references = sequence(get(item.data, "metadata", "ownerReferences"))
    return any((text(get(one, "kind")), text(get(one, "name")), item.namespace) in owners for one in references)


def audit(
    given: Manifests,
    thresholds: Thresholds,
    skip: Collection[str] = (),
    knowledge: Knowledge = NOTHING_KNOWN,
    progress: Progress = lambda done, total: None,  # noqa: ARG005 - nobody waits
) -> Report:
    """Judge every engine by every check but those in `skip` (names in `CHECKS`); values come from `knowledge`.

    `progress` is told after each engine how many are done, of how many.
    """
    engines, problems = find_engines(given)
    said = (problem for engine in engines for problem in _unreadable(engine))
    sized = {id(engine): size(engine, knowledge, thresholds) for engine in engines}
    context = Context(given, tuple(engines), thresholds, sized)
    reviewed = []
    for engine in engines:
        reviewed.append(_reviewed(engine, context, skip))
        progress(len(reviewed), len(engines))
    return Report(tuple(reviewed), tuple(dict.fromkeys((*given.problems, *problems, *said))))


def _reviewed(engine: Engine, context: Context, skip: Collection[str]) -> Reviewed:
    kind, _, name = engine.title.partition("/")
    findings = []
    for check in CHECKS:
        if check.name not in skip:
            verdict = check.judge(engine, context)
            place = verdict.place or engine.place()
            findings.append(Finding(check.name, check.level, verdict.status, verdict.reason, place, verdict.fix))
    return Reviewed(
        title=engine.title,
        kind=engine.item.kind or kind,
        namespace=engine.namespace,
        name=name,
        container=engine.container,
        place=engine.place(),
        limits=engine.reading.limits,
        findings=findings,
    )


def _unreadable(engine: Engine) -> Iterator[Problem]:
    """Return what is wrong with an engine's annotations: nothing rests on it, and whoever wrote it should know."""
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
