"""Looks once a second at the engine's full page (and keeps it), at the exporter's verdict and at Prometheus' alerts."""

import asyncio
import json
import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import aiohttp

from kvpressure.engines.recordings import TraceWriter

SAMPLE = re.compile(
    r"^vllm:(num_requests_running|num_requests_waiting|kv_cache_usage_perc)\{[^}]*\} (\S+)$", re.MULTILINE
)


@dataclass(frozen=True, slots=True)
class Look:
    """One second. `page` has the engine's own gauges, `engine` what /api/v1/diagnosis says; both None when absent.

    `alerts` are names and severities of those that fire and are true, not only kept firing.
    """

    t: float
    phase: str
    page: Mapping[str, float] | None
    engine: Mapping[str, Any] | None
    alerts: tuple[tuple[str, str], ...] = ()

    @property
    def cause(self) -> str | None:
        """The verdict, None without an engine."""
        return None if self.engine is None else self.engine["cause"]


@dataclass(slots=True)
class AlertEpisode:
    """One alert from its first pending to its end. Times are unix seconds as Prometheus was seen, None: not (yet)."""

    name: str
    severity: str
    active: float
    firing: float | None = None
    untrue: float | None = None
    """From when on it is only kept firing."""
    ended: float | None = None
    summary: str = ""


@dataclass
class Observer:
    """Collects until cancelled. `phase` is set from outside and labels everything."""

    engine_url: str
    exporter_url: str
    prometheus_url: str
    recording: Path
    on_look: Callable[[Look], None]
    phase: str = "start"
    looks: list[Look] = field(default_factory=list)
    alerts: list[AlertEpisode] = field(default_factory=list)
    failures: dict[str, int] = field(default_factory=dict)

    async def run(self) -> None:
        """Look every second until cancelled."""
        timeout = aiohttp.ClientTimeout(total=3)
        with TraceWriter(self.recording) as writer:
            async with aiohttp.ClientSession(timeout=timeout) as session:
                due = time.monotonic()
                while True:
                    await self._look(session, writer)
                    due = max(due + 1.0, time.monotonic())
                    await asyncio.sleep(due - time.monotonic())

    async def _look(self, session: aiohttp.ClientSession, writer: TraceWriter) -> None:
        phase = self.phase
        page, told, alerts = await asyncio.gather(
            self._get(session, f"{self.engine_url}/metrics"),
            self._get(session, f"{self.exporter_url}/api/v1/diagnosis"),
            self._get(session, f"{self.prometheus_url}/api/v1/alerts"),
        )
        t = time.time()
        if page is not None:
            writer.write(t, page, phase, None)
        gauges = None if page is None else gauges_of(page.decode())
        engines = json.loads(told)["engines"] if told else []
        active = json.loads(alerts)["data"]["alerts"] if alerts else []
        look = Look(t, phase, gauges, engines[0] if engines else None, tuple(sorted(_true(active))))
        self.looks.append(look)
        if alerts:
            self._follow(t, active)
        self.on_look(look)

    async def _get(self, session: aiohttp.ClientSession, url: str) -> bytes | None:
        try:
            async with session.get(url) as response:
                return await response.read() if response.status == 200 else None
        except (aiohttp.ClientError, TimeoutError) as error:
            what = f"{url.rpartition('/')[2]}: {type(error).__name__}"
            self.failures[what] = self.failures.get(what, 0) + 1
            return None

    def _follow(self, t: float, active: list[dict[str, Any]]) -> None:
        going = {(one.name, one.severity): one for one in self.alerts if one.ended is None}
        for alert in active:
            labels = alert["labels"]
            key = (labels["alertname"], labels["severity"])
            episode = going.pop(key, None)
            if episode is None:
                episode = AlertEpisode(*key, active=_seconds(alert["activeAt"]))
                self.alerts.append(episode)
            if alert["state"] == "firing" and episode.firing is None:
                episode.firing, episode.summary = t, alert["annotations"].get("summary", "")
            kept = alert.get("keepFiringSince")
            episode.untrue = _seconds(kept) if kept else None
        for episode in going.values():
            episode.ended = t


def gauges_of(page: str) -> dict[str, float]:
    """The engine's own numbers on its page, by name without the prefix."""
    return {name: float(value) for name, value in SAMPLE.findall(page)}


def _true(active: list[dict[str, Any]]) -> Iterator[tuple[str, str]]:
    for alert in active:
        if alert["state"] == "firing" and "keepFiringSince" not in alert:
            yield alert["labels"]["alertname"], alert["labels"]["severity"]


def _seconds(text: str) -> float:
    """RFC 3339 with nanoseconds to unix seconds."""
    return datetime.fromisoformat(re.sub(r"\.(\d{1,6})\d*", r".\1", text)).timestamp()
