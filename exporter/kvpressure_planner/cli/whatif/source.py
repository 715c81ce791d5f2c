"""The engine that `whatif` simulates: at a second of a recording, live after sampling, or described."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click

from kvpressure import logs
from kvpressure.cli.findings import EngineFacts, SampledTarget
from kvpressure.cli.replay import Replay, ReplayTarget
from kvpressure.cli.sampling import Sampler, sample, targets_named
from kvpressure.cli.say import CliError, say
from kvpressure.config.thresholds import Thresholds
from kvpressure.engine_state import PipelineSettings
from kvpressure.engines.recordings import TraceError, stem
from kvpressure.kubernetes.objects.references import is_reference
from kvpressure.model.limits import Limits
from kvpressure.model.view import EngineView
from kvpressure.runtimes.registry import named
from kvpressure.runtimes.runtime import Runtime
from kvpressure.simulation.calibrate import Given
from kvpressure.simulation.config_changes import ConfigChange
from kvpressure.simulation.consequences import Model
from kvpressure.simulation.hits import has_sessions
from kvpressure.simulation.models import model_of, model_with_sessions, modelled
from kvpressure.simulation.server import STEP_TOKENS, Server, StepSeconds, StepTimes
from kvpressure.simulation.steps import UnknownError
from kvpressure_planner.capacity.described import MeanAndP95, Traffic, alternatives, model_under, within_caps
from kvpressure_planner.cli.cards import OnCard, on_card, onto

MAX_ERRORS = 3
"""Unreadable lines of a recording that are printed one by one."""

OBSERVED = PipelineSettings(always_observed=True)


@dataclass(frozen=True, slots=True)
class Source:
    """An engine that can be simulated; `late_since` is the origin of the time that an answer may take."""

    title: str
    runtime: Runtime
    limits: Limits
    model: Model
    late_since: str = ""
    card: OnCard | None = None
    without_sessions: str = ""
    """Why evicted contexts that are computed again are not simulated; "" where they are, or there are none."""


def source_of(options: Mapping[str, Any], thresholds: Thresholds) -> Source:
    """Return the engine that the options name. Raises SourceError, UnknownError, DescriptionError, click.UsageError."""
    traffic, facts = traffic_of(options), EngineFacts.of(dict(options))
    within = options["slo_p95_seconds"]
    if options["url"] is None and options["trace"] is None:
        if traffic is None:
            raise click.UsageError(
                "give an engine (ADDRESS or KIND/NAME), --trace FILE, or traffic: "
                "--prompt-mean, --prompt-p95, --answer-mean, --answer-p95, and --rate or --concurrency"
            )
        return _described(options, traffic, facts, thresholds)
    title = ""
    if options["trace"] is not None:
        views = recorded(options["trace"], options["at"], thresholds)
    elif is_reference(options["url"]):
        from kvpressure.cli.pods import views_of_pods  # noqa: PLC0415 - what addresses do without
        from kvpressure.kubernetes.kubectl.program import run_to_the_end  # noqa: PLC0415

        logs.configure("error", "logfmt")
        views = run_to_the_end(views_of_pods(options, thresholds, OBSERVED))
    else:
        title, views = options["url"], live(options, thresholds)
    view, beside = chosen(views, options["engine"])
    limits = view.limits.with_declared(facts.limits)
    if options["kv_cache_tokens"] is not None:
        limits = limits.with_declared({"kv_capacity_tokens": float(options["kv_cache_tokens"])})
    runtime = named(view.runtime)
    served = options["model"] or view.key.model_name
    card = None if options["gpu"] is None else on_card(options["gpu"], served, options, runtime)
    model, why = _modelled(view, limits, thresholds, within, traffic, card)
    late = _late_since(within, view, traffic, thresholds)
    where = title or view.key.target
    which = f", engine {view.key.rank}" if len(beside) > 1 else ""
    return Source(f"{view.shown.model_name} at {where}{which}", runtime, limits, model, late, card, why)


def onto_of(source: Source, options: Mapping[str, Any]) -> Callable[[str], ConfigChange] | None:
    """Return a function for the change to another card, None where the present card is not known."""
    now = source.card
    if now is None:
        return None
    return lambda gpu: onto(now, on_card(gpu, now.model, options, source.runtime))


def _modelled(
    view: EngineView,
    limits: Limits,
    thresholds: Thresholds,
    within: float | None,
    traffic: Traffic | None,
    card: OnCard | None,
) -> tuple[Model, str]:
    """Return the model, with sessions where contexts are evicted, and why it has none nevertheless."""
    why = ""
    table = None if card is None else card.table
    if traffic is None and card is None and has_sessions(view.observed, thresholds):
        try:
            return model_with_sessions(view.observed, limits, thresholds, limit_seconds=within), ""
        except UnknownError as error:
            why = f"{error}"
    try:
        given = Given(view.observed, limits, thresholds, card=table)
        if traffic is not None:
            return model_under(given, traffic, limit_seconds=within), why
        return model_of(given, limit_seconds=within), why
    except UnknownError as error:
        raise UnknownError(why or f"{error}") from error


def _late_since(given: float | None, view: EngineView | None, traffic: Traffic | None, thresholds: Thresholds) -> str:
    if given is not None:
        return "--slo-p95-seconds"
    healthy = view is not None and view.observed is not None and view.observed.healthy_seconds is not None
    what = "this engine's healthy p95" if traffic is None and healthy else "the p95 with room for all"
    return f"{thresholds.advice.late_min_factor:g} times {what}; --slo-p95-seconds sets it"


def recorded(path: Path, at: float | None, thresholds: Thresholds) -> Sequence[EngineView]:
    """Return the engines of a recording at its end, or `at` so many seconds from its beginning. Raises SourceError."""
    newest: dict[str, list[EngineView]] = {}
    errors: list[TraceError] = []
    began, last = 0.0, -1.0
    try:
        for item in Replay(ReplayTarget(stem(path)), thresholds, OBSERVED).views(path):
            if isinstance(item, TraceError):
                errors.append(item)
                continue
            began = item[0].t if last < 0 else began
            last = item[0].t - began
            if at is not None and last > at:
                break
            newest[item[0].source] = item[1]
    except TraceError as error:
        raise CliError(f"{error}") from error
    if not newest:
        raise CliError(f"{path} has no page that could be read{'' if at is None else f' up to second {at:g}'}")
    if at is not None and last < at:
        raise CliError(f"--at {at:g} is after the end of {path}: its last page is of second {last:g}")
    more = [f"{path}: {len(errors) - MAX_ERRORS} more lines cannot be read"] if len(errors) > MAX_ERRORS else []
    for unreadable in (*errors[:MAX_ERRORS], *more):
        say(unreadable, err=True)
    return list(itertools.chain.from_iterable(newest.values()))


def live(options: Mapping[str, Any], thresholds: Thresholds) -> Sequence[EngineView]:
    """Return the engines at an address, sampled for a while. Raises SourceError."""
    sampler = Sampler(targets_named((options["url"],), dict(options)), thresholds, settings=OBSERVED)
    (sampled,) = asyncio.run(_sampled(sampler, options["duration"]))
    if not sampled.engines:
        no_engine = f"{sampled.target.url}: the page shows no engine yet: has it served a request?"
        raise CliError(sampled.problem or no_engine)
    return sampled.engines


async def _sampled(sampler: Sampler, seconds: float) -> Sequence[SampledTarget]:
    async with sampler:
        await sample(sampler, seconds)
        if problems := sampler.problems:
            say(*problems, err=True)
        return sampler.sampled()


def chosen(views: Sequence[EngineView], engine: str | None) -> tuple[EngineView, Sequence[EngineView]]:
    """Return the engine with most requests (of that data-parallel rank), and all of its target. Raises SourceError."""
    of_rank = [view for view in views if engine in (None, view.key.rank)]
    if not of_rank:
        there = ", ".join(dict.fromkeys(view.key.rank for view in views))
        raise CliError(f"there is no engine {engine}; there are: {there}")
    view = max(of_rank, key=_demand)
    return view, [other for other in views if other.key.target == view.key.target]


def _demand(view: EngineView) -> float:
    last = view.observed.intervals[-1] if view.observed and view.observed.intervals else None
    return -1.0 if last is None else (last.running or 0.0) + (last.waiting or 0.0)


def traffic_of(options: Mapping[str, Any]) -> Traffic | None:
    """Return the traffic described; None without any of it. Raises click.UsageError where a part is missing."""
    lengths = {name: options[name] for name in ("prompt_mean", "prompt_p95", "answer_mean", "answer_p95")}
    load = {name: options[name] for name in ("rate", "concurrency") if options[name] is not None}
    if not load and all(value is None for value in lengths.values()):
        return None
    lacking = ["--" + name.replace("_", "-") for name, value in lengths.items() if value is None]
    if lacking := lacking + ([] if load else ["--rate or --concurrency"]):
        raise click.UsageError(f"traffic is described by lengths and load; missing: {', '.join(lacking)}")
    if len(load) > 1:
        raise click.UsageError("give --rate (requests that come anyway) or --concurrency (clients that wait), not both")
    prompts = MeanAndP95(lengths["prompt_mean"], lengths["prompt_p95"])
    answers = MeanAndP95(lengths["answer_mean"], lengths["answer_p95"])
    return Traffic(prompts, answers, clients=load.get("concurrency", 0), rate=load.get("rate", 0.0))


def _described(options: Mapping[str, Any], traffic: Traffic, facts: EngineFacts, thresholds: Thresholds) -> Source:
    """Return an engine that is described, by card and model or by pool and step times. Raises as `source_of`."""
    title = "described traffic"
    runtime = named(options["runtime"])
    pool = options["kv_cache_tokens"]
    card: OnCard | None = None
    if options["gpu"] is not None:
        if options["model"] is None:
            raise click.UsageError("--gpu needs --model where there is no engine that says what it serves")
        card = on_card(options["gpu"], options["model"], options, runtime)
        title, pool = f"{title}, {card.model} on {card.tensor_parallel} x {card.gpu}", pool or card.pool_tokens
        if pool is None:
            what = f"what {options['model']} leaves of the memory is not known"
            raise click.UsageError(f"missing --kv-cache-tokens: {what}")
    steps = card.steps if card else _steps(options)
    limits = Limits().with_declared(facts.limits | {"kv_capacity_tokens": float(pool)})
    step_tokens = limits.max_num_batched_tokens.value if limits.max_num_batched_tokens else STEP_TOKENS
    server = Server(pool_tokens=float(pool), steps=steps, step_tokens=step_tokens)
    if limits.max_num_seqs is not None:
        server = replace(server, max_num_seqs=limits.max_num_seqs.value)
    first, *others = alternatives(within_caps(server, limits), traffic)
    within = options["slo_p95_seconds"]
    model, late = modelled(first, others, thresholds, within), _late_since(within, None, traffic, thresholds)
    return Source(title, runtime, limits, model, late, card)


def _steps(options: Mapping[str, Any]) -> StepTimes:
    """Return the step times as given. Raises click.UsageError where one of them, or the pool, is missing."""
    needed = ("kv_cache_tokens", "step_seconds", "prefill_tokens_per_second")
    lacking = ["--" + name.replace("_", "-") for name in needed if options[name] is None]
    if lacking:
        raise click.UsageError(
            f"missing {', '.join(lacking)}: without an engine to measure (URL or --trace) they have to be given, or "
            "its card and model: --gpu, --model"
        )
    return StepSeconds(options["step_seconds"], 0.0, 1 / options["prefill_tokens_per_second"])
