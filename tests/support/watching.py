"""Watches an incident from outside: the demo's phases, Prometheus' and Alertmanager's alerts, what was delivered."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tests.support.alerting import Webhook
from tests.support.processes import Process, get

Key = tuple[str, str]
"""Name and severity of an alert."""

PHASE = re.compile(r"^ ?\d+:\d\d  (\w+): (.*)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Event:
    """One change. `what`: pending, firing, over (Prometheus); muted by, no longer muted, delivered (Alertmanager)."""

    t: float
    key: Key
    what: str


@dataclass(frozen=True, slots=True)
class Phase:
    """A phase of the demo; `began` is unix seconds."""

    began: float
    name: str
    note: str


@dataclass
class Watcher:
    """Asks everyone once a second; `say` gets each line of the timeline as it happens."""

    demo: Process
    prometheus: str
    alertmanager: str
    hook: Webhook
    say: Callable[[str], None]
    phases: list[Phase] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    _states: dict[Key, str] = field(default_factory=dict)
    _muted: dict[Key, str] = field(default_factory=dict)
    _delivered: int = 0

    async def until(self, done: Callable[[Watcher], object], seconds: float) -> None:
        """Watch until `done`; fails after `seconds`, or when the demo ends."""
        end = time.monotonic() + seconds
        while not done(self):
            assert time.monotonic() < end, f"still not so after {seconds:.0f} s:\n{self.timeline()}"
            assert self.demo.process.returncode is None, self.demo.output()
            await self.look()
            await asyncio.sleep(1.0)

    async def look(self) -> None:
        """See what changed."""
        told, managed = await asyncio.gather(
            get(f"{self.prometheus}/api/v1/alerts"), get(f"{self.alertmanager}/api/v2/alerts")
        )
        now = time.time()
        for name, note in PHASE.findall(self.demo.output())[len(self.phases) :]:
            self.phases.append(Phase(now, name, note))
            self.say(f"\n{name}: {note}")
        self._deliveries()
        self._prometheus(now, json.loads(told)["data"]["alerts"])
        self._alertmanager(now, json.loads(managed))

    def quiet(self) -> bool:
        """Whether Prometheus has no alert at all, pending or firing."""
        return not self._states

    def began(self, phase: str) -> float:
        """When the first phase of that name began."""
        return next(one.began for one in self.phases if one.name == phase)

    def seen(self, what: str, alertname: str | None = None, severity: str | None = None) -> list[Event]:
        """Events whose text begins with `what`, of an alert, of a severity."""
        return [
            event
            for event in self.events
            if event.what.startswith(what) and alertname in (None, event.key[0]) and severity in (None, event.key[1])
        ]

    def timeline(self) -> str:
        """Everything seen, by phase; seconds since the phase began."""
        return "\n".join(self._line(event) for event in sorted(self.events, key=lambda event: event.t))

    def _deliveries(self) -> None:
        new = self.hook.deliveries[self._delivered :]
        self._delivered += len(new)
        for one in new:
            self._note(one.t, one.key, f"delivered to /{one.path}: {one.status}")

    def _prometheus(self, now: float, alerts: list[dict[str, Any]]) -> None:
        states = {_key(alert): str(alert["state"]) for alert in alerts}
        for key in states.keys() | self._states.keys():
            if states.get(key) != self._states.get(key):
                self._note(now, key, states.get(key, "over"))
        self._states = states

    def _alertmanager(self, now: float, alerts: list[dict[str, Any]]) -> None:
        names = {alert["fingerprint"]: " ".join(_key(alert)) for alert in alerts}
        muted = {
            _key(alert): ", ".join(sorted(names.get(one, one) for one in alert["status"]["inhibitedBy"]))
            for alert in alerts
            if alert["status"]["state"] == "suppressed"
        }
        for key in muted.keys() | self._muted.keys():
            if bool(muted.get(key)) != bool(self._muted.get(key)):
                self._note(now, key, f"muted by {muted[key]}" if key in muted else "no longer muted")
        self._muted = muted

    def _note(self, t: float, key: Key, what: str) -> None:
        event = Event(t, key, what)
        self.events.append(event)
        self.say(self._line(event))

    def _line(self, event: Event) -> str:
        phase = next((one for one in reversed(self.phases) if one.began <= event.t), None)
        since = f"{phase.name:>10} +{event.t - phase.began:3.0f} s" if phase else f"{'start':>10}       "
        return f"{since}  {event.key[0]:<27} {event.key[1]:<8} {event.what}"


def _key(alert: dict[str, Any]) -> Key:
    return alert["labels"]["alertname"], alert["labels"]["severity"]
