"""PromQL by name: which series a panel asks for, and with which variables filled in."""

from __future__ import annotations

from typing import Final

from dashboards.looks import CODES

SELECTOR: Final = "[[ selector ]]"
"""The label matchers of the exporters that a bundle is generated for."""

MODELS: Final = 'cluster=~"$cluster",namespace=~"$namespace",model_name=~"$model_name"'
"""Matchers of recorded series, which know no single engine. A missing label matches All, which is `.*`."""

CHOSEN: Final = f'{SELECTOR},{MODELS},target=~"$target",engine=~"$engine"'
"""All engines that the variables choose: for one number, never for a line each."""

SHOWN: Final = f'{SELECTOR},{MODELS},target=~"$shown",engine=~"$engine"'
"""The worst of them, as many as a person can look at; what keeps a board as cheap with 10 000 engines as with one."""

CONTAINERS: Final = f'{SELECTOR},cluster=~"$cluster",namespace=~"$namespace",pod=~"$pod"'
PODS: Final = f'{SELECTOR},cluster=~"$cluster",namespace=~"$namespace"'
GPUS: Final = f'{SELECTOR},cluster=~"$cluster"'
"""Series of GPUs, hosts and sources name no engine."""

EXPORTERS: Final = f'{SELECTOR},cluster=~"$cluster",instance=~"$instance"'
WORST_EXPORTERS: Final = f'{SELECTOR},cluster=~"$cluster",instance=~"$shown"'

ENGINE: Final = "{{target}}/{{engine}}"
IDENTITY: Final = "cluster, namespace, model_name, target, engine"


def of(series: str, matchers: str, *more: str) -> str:
    """Return a selector: `of("kvpressure_score_ratio", SHOWN, 'kind="e2e"')`."""
    name = series if ":" in series or series.startswith(("process_", "up", "scrape_")) else f"kvpressure_{series}"
    return f"{name}{{{','.join((matchers, *more))}}}"


def engine(series: str, *more: str) -> str:
    """Return a family of engines, of those shown."""
    return of(series, SHOWN, *more)


def rate(series: str, *more: str) -> str:
    """Return what a counter of engines grows by per second, of those shown."""
    return f"rate({engine(series, *more)}[$__rate_interval])"


def quantile(series: str, which: str, *more: str) -> str:
    """Return a family with quantiles, of the engines shown; without the label, so that it joins with others."""
    matcher = f'quantile="{which}"'
    return f"max without (quantile) ({engine(series, matcher, *more)})"


def recorded(series: str, *more: str) -> str:
    """Return a recorded series by namespace and model."""
    return of(f"namespace_model:kvpressure_{series}", MODELS, *more)


def cause_code(matchers: str = SHOWN) -> str:
    """Return the cause of each engine as its number of `looks.CODES`."""
    parts = [f"{code} * " + of("bottleneck", matchers, f'cause="{cause}"') for cause, code in CODES.items()]
    return "max without (cause) (\n  " + "\n  or ".join(parts) + "\n)"


def worst_targets(count: int) -> str:
    """Targets with the highest score in the hour before the end of the time range; those without any score come last.

    A step of five minutes sees every series, because that is how long Prometheus looks back from each.
    """
    score = of("score_ratio", CHOSEN)
    silent = f"0 * {of('bottleneck_confidence_ratio', CHOSEN)}"
    return f"topk({count}, max by (target) (max_over_time({score}[1h:5m]) or {score} or {silent}))"


def worst_exporters(count: int) -> str:
    """Return Exporters with the most sources that fail, those that do not answer first."""
    failing = f"sum by (instance) (1 - {of('source_up', EXPORTERS)})"
    return f"topk({count}, max by (instance) (1000 * (1 - {of('up', EXPORTERS)}) or {failing}))"


def lost_tokens(by: str = "") -> str:
    """Return generated tokens per second that KV pressure costs, as engines estimate it; 0 for those without it."""
    pressure = engine("bottleneck", 'cause="kv_cache_pressure"')
    lost = f"{rate('lost_tokens_total')} * ignoring (cause) {pressure} or ignoring (cause) ({pressure} == 0)"
    return f"sum{f' by ({by})' if by else ''} ({lost})"


def by_identity(expression: str) -> str:
    """For tables: only the labels that a row is told by."""
    return f"max by ({IDENTITY}) ({expression})"


def not_serving() -> str:
    """Return seconds for which replicas cannot be read or are gone, with the status, and are stuck, of an hour."""
    lost = of("replica_state", PODS, 'state=~"unreadable|gone"')
    unread = f"{lost} * on (cluster, instance, target) group_left (status) {of('target_status', PODS)}"
    since = of("source_last_success_timestamp_seconds", GPUS, 'source="engine"')
    started = of("process_start_time_seconds", GPUS)
    stuck = of("replica_state", PODS, 'state="stuck"')
    return (
        "max by (cluster, target, state, status) (\n"
        f"  ({unread}) * on (cluster, instance, target) group_left () (time() - {since})\n"
        f"  or ({unread}) * on (cluster, instance) group_left () (time() - {started})\n"
        f"  or 60 * count_over_time({stuck}[1h:1m])\n"
        ")"
    )


def images() -> str:
    """Return how many engines of each model run each container image, of those whose pod is known."""
    image = f"max by (cluster, namespace, pod, image) ({of('container_info', PODS)})"
    pods = "cluster, namespace, pod"
    return (
        f"count by (namespace, model_name, image) (\n  {of('engine_up', CHOSEN)}\n"
        f"  * on ({pods}) group_left (image) topk by ({pods}) (1, {image})\n)"
    )


def differing(which: str, series: str, by: str) -> str:
    """Return the `which` (min or max) of a series over the replicas of each model, where they differ."""
    least, most = (f"{how} by (namespace, model_name, {by}) ({series})" for how in ("min", "max"))
    return f"{which} by (namespace, model_name, {by}) ({series}) and ({most} != {least})"
