"""What a bundle is generated for: its flavour, thresholds, the series that rules select, and the targets of links.

A flavour is for people who run the exporter, or for people who have only vLLM's own series. It is a folder of rule
templates, a folder of dashboards, and the label matchers that select its series.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import urlsplit

from kvpressure.config.strict_yaml import ConfigError, Problem
from kvpressure.config.thresholds import Thresholds
from kvpressure.exposition.profile import Profile


@dataclass(frozen=True, slots=True)
class Flavour:
    """One flavour. `folder` is below `rules/` and `dashboards/templates/`, "" for the folder itself.

    `selector` are the default label matchers, "" for none; `needs_selector` refuses an empty one.
    `suffix` is in the names of Kubernetes objects, so that bundles of two flavours do not collide.
    """

    name: str
    folder: str
    selector: str
    needs_selector: bool
    suffix: str


EXPORTER: Final = Flavour("exporter", "", 'job="kvpressure"', needs_selector=True, suffix="")
"""Rules and dashboards on the exporter's series."""

VLLM_ONLY: Final = Flavour("vllm-only", "vllm-only", "", needs_selector=False, suffix="-vllm-only")
"""Rules and a dashboard on `vllm:*` as any Prometheus has them. Their names find them: no matcher is needed."""

FLAVOURS: Final = {flavour.name: flavour for flavour in (EXPORTER, VLLM_ONLY)}

SELECTOR: Final = EXPORTER.selector
RUNBOOKS_URL: Final = ""
"""The public address of the runbooks, set by whoever publishes them, with `[project.urls]` in pyproject.toml."""

SCRAPE_SECONDS: Final = 15
"""The chart's PodMonitor scrapes so often."""

LONGEST_SCRAPE_SECONDS: Final = 60
"""Prometheus looks five minutes back for a sample; with fewer than five scrapes in them, gaps cannot be noticed."""

PAGE_URL: Final = "http://127.0.0.1:5001/page"
TICKET_URL: Final = "http://127.0.0.1:5001/ticket"

_MATCHER: Final = r'\s*[a-zA-Z_][a-zA-Z0-9_]*\s*(?:=~|!~|!=|=)\s*"(?:[^"\\\n`{}]|\\[^\n`])*"\s*'
_MATCHERS: Final = re.compile(f"{_MATCHER}(?:,{_MATCHER})*")
_LABEL: Final = re.compile(r"([a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")


@dataclass(frozen=True, slots=True)
class Options:
    """Choices of one bundle; `labels` go onto the `PrometheusRule` objects, for an operator that selects by label.

    `selector` is label matchers, without braces, that select the flavour's series and no others. `runbook_url` is the
    base URL of the runbooks; with "" alerts name the file in the bundle. `dashboard_url` is Grafana's; with "" alerts
    have no such link. `scrape_seconds` is the scrape interval. `all_alerts` adds the alerts that are
    off by default. `flavour` says whose series the rules read, `profile` which of them the exporters export.
    """

    thresholds: Thresholds
    selector: str = SELECTOR
    runbook_url: str = RUNBOOKS_URL
    dashboard_url: str = ""
    page_url: str = PAGE_URL
    ticket_url: str = TICKET_URL
    labels: Mapping[str, str] = field(default_factory=dict)
    scrape_seconds: int = SCRAPE_SECONDS
    all_alerts: bool = False
    flavour: Flavour = EXPORTER
    profile: Profile = Profile.FULL

    def check(self) -> None:
        """Raise ConfigError with everything that is wrong with these options."""
        if problems := [Problem("generate", None, name, message) for name, message in self._problems()]:
            raise ConfigError(problems)

    def _problems(self) -> Iterator[tuple[str, str]]:
        yield from self._of_the_flavour()
        for name in ("runbook_url", "dashboard_url", "page_url", "ticket_url"):
            value = getattr(self, name)
            if value or name in {"page_url", "ticket_url"}:
                yield from _url_problems(f"--{name.replace('_', '-')}", value)
        if not 1 <= self.scrape_seconds <= LONGEST_SCRAPE_SECONDS:
            yield "--scrape-interval", f"{self.scrape_seconds} s is not from 1 s to {LONGEST_SCRAPE_SECONDS} s"
        for key, value in self.labels.items():
            if not _LABEL.fullmatch(key) or (value and not _LABEL.fullmatch(value)):
                yield "--label", f"{key}={value} is not a Kubernetes label"

    def _of_the_flavour(self) -> Iterator[tuple[str, str]]:
        selector = self.selector.strip()
        if not selector and self.flavour.needs_selector:
            yield "--selector", f"is missing: without one no rule can tell that an exporter is gone; such as {SELECTOR}"
        elif selector and (selector != self.selector or not _MATCHERS.fullmatch(selector)):
            yield "--selector", f"{self.selector[:80]!r} is not label matchers without braces, such as {SELECTOR}"
        if self.flavour is not EXPORTER and self.profile is not Profile.FULL:
            yield "--profile", f"is of exporters, and the flavour {self.flavour.name} reads none"


def selector_of(flavour: str, given: str | None) -> tuple[Flavour, str]:
    """Return the flavour of that name, and the matchers `given` or, with None, its own. Raises KeyError."""
    chosen = FLAVOURS[flavour]
    return chosen, chosen.selector if given is None else given


def _url_problems(name: str, url: str) -> Iterator[tuple[str, str]]:
    try:
        parts = urlsplit(url)
        good = parts.scheme in {"http", "https"} and bool(parts.hostname)
    except ValueError:
        good = False
    if not good or re.search(r"[\s\"'`{}<>\\]", url) or parts.query or parts.fragment:
        yield name, f"{url[:80]!r} is not an http(s) address without query"
