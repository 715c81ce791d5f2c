"""`kvpressure triage --prometheus URL`: the same diagnosis from the series that a Prometheus scraped of the engines."""

from __future__ import annotations

import re
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from kvpressure.cli.console import phases
from kvpressure.cli.findings import EngineFacts, Finding, worst_first
from kvpressure.cli.options import refuse
from kvpressure.cli.say import fail, say
from kvpressure.cli.triage.live import Shows
from kvpressure.config.strict_yaml import ConfigError
from kvpressure.config.thresholds import Thresholds, load_thresholds
from kvpressure.engine_state import Pipeline
from kvpressure.engine_state.pace import paced
from kvpressure.model.environment import Environment
from kvpressure.model.errors import SourceError
from kvpressure.model.target_status import OTHER, STATUSES
from kvpressure.model.view import EngineView, Unreachable
from kvpressure.printable import brief
from kvpressure.prometheus.answers import PrometheusError
from kvpressure.prometheus.client import Prometheus
from kvpressure.prometheus.declared import Declared, declared_there, pod_of, roles_there
from kvpressure.prometheus.gateways import Pool, Queue, behind, pools_there
from kvpressure.prometheus.http_config import server_of
from kvpressure.prometheus.names import Discovered, Selection, Target, names_there, quoted, targets_there
from kvpressure.prometheus.paging import Span
from kvpressure.prometheus.raw import PageMaker, interval_of, read_pages
from kvpressure.runtimes.registry import ASSUMED

READ_SECONDS: Final = 1200.0
"""Enough for a verdict from scrapes that are a minute apart."""

KNOWN_SECONDS: Final = 10_800.0
"""An engine whose series ended so long ago is still named while the Prometheus cannot scrape it."""

LONGEST_INTERVAL_SECONDS: Final = 75.0
SHORTEST_INTERVAL_SECONDS: Final = 1.0
NAMED: Final = 8
MAX_REPLICAS: Final = 256
MAX_ADVISED: Final = 8
"""Replicas, the worst, for which steps are computed: predictions take a part of a second each."""

UNSCRAPED: Final = "the Prometheus cannot scrape it (up is 0)"
NO_ENGINE: Final = "the Prometheus scrapes it, and its page no longer shows an engine"


def run(url: str, options: Mapping[str, Any], shows: Shows) -> int:
    """Look at the engines that the Prometheus at `url` scrapes, print, and return the exit code."""
    model = options["model"]
    try:
        with Prometheus(server_of(url, options["http_config"])) as client, phases() as progress:
            look = Look(client, EngineFacts.of(dict(options)), load_thresholds(), time.time())
            targets = look.discover(model, options["namespace"])
            unadvised = []
            for number, target in enumerate(targets):
                progress("reading", number, len(targets))
                unadvised += look.findings(target, model)
    except ConfigError as error:
        refuse(error)
    except SourceError as error:
        fail(f"triage: {error.sentence}")
    if not unadvised:
        fail(f"triage: {url} scrapes none of the engines any more that it has series of")
    findings = look.with_advice(unadvised)
    if client.warnings and not options["as_json"]:
        say(*client.warnings, err=True)
    return shows.print(findings, look.now, as_json=options["as_json"], t=look.now, prometheus=url)


@dataclass(slots=True)
class Look:
    """One look at a Prometheus' engines, up to `now`."""

    client: Prometheus
    facts: EngineFacts
    thresholds: Thresholds
    now: float
    up: Sequence[tuple[Mapping[str, str], float]] = ()
    """Labels of the present targets, and 0 for those that cannot be scraped."""
    declared: Declared = field(default_factory=dict)
    roles: Mapping[Target, str] = field(default_factory=dict)
    pools: Mapping[Target, Pool] = field(default_factory=dict)

    def discover(self, model: str, namespace: str) -> list[Discovered]:
        """Return the targets with engines of that model and namespace, all where these are "". Raises PrometheusError.

        Those that were scaled down or replaced are left out.
        """
        known, recent = Span(self.now - KNOWN_SECONDS, self.now), Span(self.now - READ_SECONDS, self.now)
        spelled = names_there(self.client, Selection(), known)
        if not spelled:
            jobs = self.client.label_values("job", ["up"], recent.start, recent.end)
            what = f"its jobs are {_some(jobs)}" if jobs else "it scrapes nothing"
            raise PrometheusError(
                f"this Prometheus has no series of an engine ({ASSUMED.table.prefix}...): {what}; scrape the engines' "
                "/metrics, or give the Prometheus that does"
            )
        by_place: dict[tuple[str, str], Discovered] = {}
        models = set[str]()
        for names in spelled:
            matchers = {names.table.model_label: model, "namespace": namespace}
            texts = (f"{label}={quoted(value)}" for label, value in matchers.items() if label and value)
            for each in targets_there(self.client, names, Selection(", ".join(texts)), known):
                by_place.setdefault(
                    (each.target.name, each.target.get("instance")), each
                )  # two jobs may scrape one pod
            series = [names.named("running") or ""]
            models |= {*self.client.label_values(names.table.model_label, series, known.start, known.end)}
        if not by_place:
            asked = " and ".join(filter(None, [model and f"model {model}", namespace and f"namespace {namespace}"]))
            raise PrometheusError(f"this Prometheus has no engine of {asked}; its models are {_some(models)}")
        if len(by_place) > MAX_REPLICAS:
            raise PrometheusError(
                f"this Prometheus scrapes {len(by_place)} engines' pages, more than the {MAX_REPLICAS} that are looked "
                f"at together; narrow with --model ({_some(models)}) or --namespace"
            )
        targets = [each.target for each in by_place.values()]
        every_job = "|".join(sorted({re.escape(target.get("job")) for target in targets}))
        self.up = [
            (row["metric"], row["value"][1]) for row in self.client.instant(f"up{{job=~{quoted(every_job)}}}", self.now)
        ]
        self.declared, self.roles = declared_there(self.client, recent), roles_there(self.client, targets, recent)
        self.pools = behind(pools_there(self.client, recent), targets)
        return list(by_place.values())

    def findings(self, discovered: Discovered, model: str) -> list[Finding]:
        """Return the findings on a target's engines of that model, without advice. Raises PrometheusError."""
        target = discovered.target
        known = Finding(target.name, status=STATUSES[OTHER], cluster=target.get("cluster"))
        views, interval = self._views(discovered)
        up = next((value for labels, value in self.up if _same(labels, target)), None)
        if interval > LONGEST_INTERVAL_SECONDS:
            return [replace(known, problem=f"scraped every {interval:.0f} s; verdicts need a scrape a minute")]
        chosen = [view for view in views if model in ("", view.key.model_name)]
        if up != 0 and any(view.silence is None for view in chosen):
            return [replace(known, view=view) for view in chosen if view.silence is None]
        if up is None:
            return []
        silent = (replace(view, silence=view.silence or Unreachable(self.now - view.t)) for view in chosen)
        last = replace(known, problem=NO_ENGINE if up else UNSCRAPED)
        return [replace(last, view=view) for view in silent] or [last]

    def _views(self, discovered: Discovered) -> tuple[Sequence[EngineView], float]:
        """Return the engines of a target as they are now, or were when last scraped, and the scrape interval."""
        target, pool = discovered.target, self.pools.get(discovered.target)
        maker = PageMaker(discovered.table, target, SHORTEST_INTERVAL_SECONDS)
        span = Span(self.now - READ_SECONDS, self.now)
        pages = list(read_pages(self.client, target, maker, discovered.table, span, discovered.lacks))
        interval = interval_of([page.t for page in pages]) or discovered.interval
        pipeline = Pipeline(*paced(interval, self.thresholds))
        polled = discovered.polled(self.declared.get(pod_of(target)), self.roles.get(target, ""))
        queue = Queue(self.client, pool, target.name) if pool else None
        for page in pages:
            pipeline.set_environment(page.t, Environment(reports=queue.at(page.t) if queue else ()))
            pipeline.on_page(polled, page)
        return (*pipeline.engine_views(self.now), *pipeline.silent_views(self.now)), interval

    def with_advice(self, findings: Sequence[Finding]) -> list[Finding]:
        """Return the findings, the worst of them with what to do."""
        views = [finding.view for finding in findings if finding.view is not None]
        ordered = worst_first(findings)
        for place, finding in enumerate(ordered[:MAX_ADVISED]):
            if finding.view is not None:
                pod = {"pod": finding.view.pod, "namespace": finding.view.namespace}
                facts = EngineFacts(
                    self.facts.limits, {key: value for key, value in pod.items() if value} | self.facts.place
                )
                actions = facts.finding(finding.view, self.thresholds, beside=views).actions
                ordered[place] = replace(finding, actions=actions)
        return ordered


def _same(labels: Mapping[str, str], target: Target) -> bool:
    """Whether a series `up` is of the target; it has no label of an engine."""
    own = dict(target.labels)
    return all(own.get(name) == value for name, value in labels.items() if name in ("job", "instance", "cluster"))


def _some(names: Collection[str]) -> str:
    """Return some of the names."""
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return f"{', '.join(brief(name, 60) for name in sorted(names)[:NAMED])}{more}"
