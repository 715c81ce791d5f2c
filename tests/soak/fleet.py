"""64 engines at 1 Hz for ten virtual minutes, 5 % of the answers faulty: what is lost, and what is told wrong."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from prometheus_client.parser import text_string_to_metric_families

from kvpressure.config.settings import Settings
from kvpressure.config.settings.keys import validate
from kvpressure.config.settings.load import Loaded
from kvpressure.config.thresholds import load_thresholds
from kvpressure.daemon.exporter import Daemon
from kvpressure.exposition import Snapshot, text
from tests.soak.engines import SLOW_SECONDS, TRUTHS, Engine
from tests.support.servers import FaultServer
from tests.support.virtual_time import LoopClock, run

SCRAPE_SECONDS = 15
SETTLED_SECONDS = 45
DEADLINE_SECONDS = 10.0
BACKOFF_SECONDS = 5.0


@dataclass
class Seen:
    """What came of one run."""

    engines: dict[str, Engine]
    polls: Counter[str] = field(default_factory=Counter)
    pages: Counter[str] = field(default_factory=Counter)
    lost_ticks: Counter[str] = field(default_factory=Counter)
    verdicts: Counter[tuple[str, str]] = field(default_factory=Counter)
    internal_errors: int = 0
    scrapes: int = 0

    def problems(self, seconds: int) -> Iterator[str]:
        """Everything that must not be."""
        for name, engine in self.engines.items():
            if self.pages[name] < engine.served - 1:  # the last answer may be on its way
                yield f"{name}: {engine.served} whole pages were sent, {self.pages[name]} were used"
            excused = engine.met["slow"] * SLOW_SECONDS + engine.met["hung"] * (DEADLINE_SECONDS + BACKOFF_SECONDS)
            lost = seconds - self.polls[name]
            if lost > excused + 2:
                yield f"{name}: {lost} ticks without a poll, {excused:.0f} s of waiting explain it"
        for (truth, told), count in self.verdicts.items():
            if told not in (truth, "unknown"):
                yield f"{count} seconds of {truth} were told as {told}"
        if self.internal_errors:
            yield f"{self.internal_errors} internal errors"


def fleet(engines: int, seconds: int, faulty: float, seed: int = 0) -> Seen:
    """Run the exporter's daemon against so many engines."""
    made = {f"e{n}": Engine(list(TRUTHS)[n % len(TRUTHS)], seed + n, faulty) for n in range(engines)}
    return run(_fleet(made, seconds))


async def _fleet(made: dict[str, Engine], seconds: int) -> Seen:
    seen = Seen(made)
    async with contextlib.AsyncExitStack() as stack:
        targets = []
        for name, engine in made.items():
            server = await stack.enter_async_context(FaultServer(engine))
            targets.append({"name": name, "url": server.url})
        settings = validate(
            Settings, {"engines": {"targets": targets}, "gpu": {"vendors": []}, "host": {"enabled": False}}
        )
        daemon = Daemon(Loaded(settings, load_thresholds()), lambda: settings, lambda *_: (), LoopClock())
        polled = daemon._feeds.fleet
        take = polled._on_page

        def count(target: object, page: object) -> None:
            seen.pages[target.name] += 1  # type: ignore[attr-defined]
            take(target, page)  # type: ignore[arg-type]

        polled._on_page = count
        running = asyncio.create_task(daemon.run())
        for second in range(seconds):
            await asyncio.sleep(1.0)
            if second >= SETTLED_SECONDS:
                seen.verdicts.update(_verdicts(daemon.snapshot(), made))
            if second % SCRAPE_SECONDS == 0:
                seen.scrapes += 1
                _scrape(daemon.snapshot())
        for name, (source, _) in polled._running.items():
            counts, health = source.counts, source.health()
            seen.polls[name], seen.lost_ticks[name] = counts.polls, counts.missed
            seen.internal_errors += health.errors.get("internal", 0)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    return seen


def _verdicts(snapshot: Snapshot, made: dict[str, Engine]) -> Iterator[tuple[str, str]]:
    for view in snapshot.known:
        if view.diagnosis is not None:
            yield made[view.key.target].truth, view.diagnosis.cause.value


def _scrape(snapshot: Snapshot) -> None:
    """The page is one that a reader takes."""
    for openmetrics in (False, True):
        text.render(snapshot, openmetrics=openmetrics)
    families = list(text_string_to_metric_families(text.render(snapshot, openmetrics=False).decode()))
    assert len(families) > 5, "hardly anything on the page"
