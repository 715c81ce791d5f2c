"""`python -m bench.incidents.month FOLDER`: a look back at a month of a hundred engines, timed and judged.

The folder gets the blocks of a Prometheus, if it has none yet. Most of the time an engine is described by the ten
series that the screen looks at; around each incident, and twenty minutes before it, by whole pages of a simulated
engine whose truth is known. A tenth of the engines has two busy hours a day, of a simulated engine too, in which bursts
of long prompts wait for a second or two and nothing is wrong. `truth.json` says when what was wrong with whom.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import re
import resource
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from bench.simulator.clients import Lengths, OpenLoop, Phase, Traffic
from bench.simulator.scenarios import CAUSES, episode
from bench.simulator.service import Scenario
from tests.support.past import Scrape, blocks_of, openmetrics, prometheus, simulated
from tests.support.processes import resident_mib

START: Final = 1_700_006_400.0
"""A whole day, as promtool cuts blocks."""
DAY: Final = 86_400
STEP: Final = 15
PER_ENGINE: Final = 4
POOL_RUNS: Final = 3
LEAD_SECONDS: Final = 1500.0
BUSY_HOURS: Final = range(10, 12)
BUSY_EVERY: Final = 10
LOSING: Final = ("kv_cache_pressure", "concurrency_bound", "host_bound", "stuck")
NO_BUCKETS: Final = re.compile(rb"vllm:(?!.*_bucket)")
EVERYTHING: Final = re.compile(rb"")
LATE_SECONDS: Final = 120.0


@dataclass(frozen=True, slots=True)
class Run:
    """A simulated run: its cause, when trouble began and ended, and its pages, in seconds since its begin."""

    cause: str
    began: float
    ended: float
    scrapes: tuple[Scrape, ...]
    kept: re.Pattern[bytes] = EVERYTHING

    @property
    def seconds(self) -> int:
        """Its length in whole steps."""
        return int(self.scrapes[-1].t) // STEP * STEP + STEP


Window = tuple[int, Run]
"""A run, and the second of an engine's month at which it begins."""


def pool_of(cause: str) -> Iterator[Run]:
    """The first runs whose engine has one rank: on fewer ranks than it was drawn for, a load is no longer healthy."""
    label = next(known for known in CAUSES if known == cause)
    alone = (seed for seed in itertools.count() if episode(label, seed).engine.ranks == 1)
    for seed in itertools.islice(alone, POOL_RUNS):
        short = episode(label, seed)
        first, trouble, *rest = short.phases
        length = random.Random(seed).choice((150.0, 300.0, 900.0))
        phases = (replace(first, seconds=LEAD_SECONDS), replace(trouble, seconds=length), *rest)
        pages = simulated(replace(short, phases=phases), seed, {}, STEP, 0.0)
        yield Run(cause, LEAD_SECONDS, LEAD_SECONDS + length, tuple(pages))


def busy_run(seed: int) -> Run:
    """Hours in which bursts of long prompts come, and are served at once; of its pages, all but buckets."""
    traffic = Traffic(Lengths(2500, "lognormal", 0.5), Lengths(180, "lognormal", 0.4))
    load = OpenLoop(traffic, 1.0, burst=10, burst_every_seconds=40.0)
    phase = Phase("healthy", float(len(BUSY_HOURS) * 3600), (load,))
    busy = Scenario("busy", replace(episode("healthy", 1).engine, ranks=1), (phase,))
    return Run("healthy", 0.0, 0.0, tuple(simulated(busy, seed, {}, STEP, 0.0)), NO_BUCKETS)


def windows(pool: list[Run], days: int, rng: random.Random) -> list[Window]:
    """Some runs in each engine's month, after its busy hours and none across midnight."""
    found = []
    for day in sorted(rng.sample(range(days), min(PER_ENGINE, days))):
        run = rng.choice(pool)
        found.append((day * DAY + rng.randrange(13 * 3600, DAY - run.seconds - 3600) // STEP * STEP, run))
    return found


def labels(engine: int) -> dict[str, str]:
    """Of a target."""
    instance = f"10.0.{engine // 250}.{engine % 250}:8000"
    return {"namespace": "prod", "pod": f"llm-{engine}", "instance": instance, "job": "vllm"}


def of_window(window: Window, engine: int) -> Iterator[bytes]:
    """Whole pages."""
    begin, run = window
    pages = (Scrape(START + begin + scrape.t, labels(engine), scrape.page) for scrape in run.scrapes)
    return (line for line in openmetrics(pages, run.kept) if not line.startswith(b"#"))


def of_day(day: int, engine: int, skipped: list[Window], rng: random.Random) -> Iterator[bytes]:
    """The ten series of an engine that is well."""
    closed = [(begin, begin + run.seconds) for begin, run in skipped]
    times = [t for t in range(day * DAY, (day + 1) * DAY, STEP) if not any(begin <= t < end for begin, end in closed)]
    waiting = [rng.randint(1, 3) if rng.random() < 0.01 else 0 for _ in times]
    rate = 4.0 + engine % 7
    own = "".join(f',{name}="{value}"' for name, value in labels(engine).items())
    gauges: Mapping[str, list[float]] = {
        "num_requests_running": [rng.randint(3, 9) for _ in times],
        "num_requests_waiting": list(waiting),
        "kv_cache_usage_perc": [rng.randint(20, 45) / 100 for _ in times],
    }
    slopes = {
        "num_preemptions_total": 0.0,
        "prompt_tokens_total": 900 * rate,
        "generation_tokens_total": 200 * rate,
        "e2e_request_latency_seconds_count": rate,
        "e2e_request_latency_seconds_sum": 4.5 * rate,
        "request_queue_time_seconds_sum": 0.1 * rate,
        "request_inference_time_seconds_sum": 4.35 * rate,
    }
    for name, values in {**gauges, **{name: [slope * t for t in times] for name, slope in slopes.items()}}.items():
        head = f'vllm:{name}{{engine="0",model_name="m"{own}}}'
        rows = zip(times, values, strict=True)
        yield "".join(f"{head} {value:.10g} {START + t:.0f}\n" for t, value in rows).encode()


def make(folder: Path, days: int, engines: int) -> None:
    """Write the blocks, a day at a time, and the truth."""
    folder.mkdir(parents=True, exist_ok=True)
    pool = [run for cause in LOSING for run in pool_of(cause)]
    busy = [busy_run(seed) for seed in range(POOL_RUNS)]
    rng = random.Random(15)
    of_engine = [windows(pool, days, rng) for _ in range(engines)]
    truth = [
        {
            "pod": f"llm-{engine}",
            "cause": run.cause,
            "began": START + begin + run.began,
            "ended": START + begin + run.ended,
        }
        for engine, its in enumerate(of_engine)
        for begin, run in its
    ]
    (folder / "truth.json").write_text(json.dumps(truth, indent=1))

    def lines(day: int) -> Iterator[bytes]:
        for engine, its in enumerate(of_engine):
            here = [one for one in its if one[0] // DAY == day]
            if engine % BUSY_EVERY == 0:
                here.insert(0, (day * DAY + BUSY_HOURS[0] * 3600, busy[engine // BUSY_EVERY % len(busy)]))
            yield from of_day(day, engine, here, rng)
            for one in here:
                yield from of_window(one, engine)
        yield b"# EOF\n"

    for day in range(days):
        blocks_of(folder, lines(day), "--max-block-duration=24h")
        print(f"day {day + 1} of {days}", flush=True)


def look(folder: Path, days: int, workers: str) -> None:
    """Look back, and print what it took and what was found."""
    end, most, out = START + days * DAY, 0.0, folder / "found.json"
    with prometheus(folder, folder / "data") as url, out.open("w") as file:
        command = [sys.executable, "-m", "kvpressure", "incidents", "--prometheus", url, "--json"]
        command += ["--since", f"{START:.0f}", "--until", f"{end:.0f}", "--workers", workers]
        began = time.monotonic()
        with subprocess.Popen(command, stdout=file) as process:
            while process.poll() is None:
                most = max(most, _resident_mib(process.pid))
                time.sleep(0.2)
        took, used = time.monotonic() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    document, truth = (json.loads(path.read_text()) for path in (out, folder / "truth.json"))
    _judge(document, [one for one in truth if one["ended"] < end])
    print(f"CPU: {used.ru_utime + used.ru_stime:.0f} s, without the Prometheus")
    print(f"{took:.0f} s, at most {most:.0f} MiB resident in all processes together")
    hours = document["seconds_read"] / 3600
    print(f"{document['targets']} targets, {hours:.0f} h read, {document['samples_read']} samples")


def _resident_mib(pid: int) -> float:
    """Of a process and its children."""
    try:
        below = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        return resident_mib(pid) + sum(_resident_mib(int(child)) for child in below)
    except (OSError, AssertionError):  # it has ended
        return 0.0


def _judge(document: Any, truth: Any) -> None:
    found = right = 0
    met: set[int] = set()
    for one in truth:
        mine = [
            incident
            for incident in document["incidents"]
            if incident["pod"] == one["pod"]
            and incident["began"] < one["ended"] + LATE_SECONDS
            and incident["began"] + incident["seconds"] > one["began"]
        ]
        met.update(map(id, mine))
        found += bool(mine)
        right += any(incident["cause"] == one["cause"] for incident in mine)
        if not mine:
            print("missed", one)
    invented = [one for one in document["incidents"] if id(one) not in met]
    for one in invented:
        print("invented", one["pod"], one["cause"], one["began"] - START, one["seconds"])
    print(f"{len(truth)} true incidents, {found} found, {right} with the right cause, {len(invented)} invented")


def main() -> None:
    """Make the month where it is not there, and look."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--days", type=int, default=30)
    parser.add_argument("--engines", type=int, default=100)
    parser.add_argument("--workers", default="2")
    options = parser.parse_args()
    if not (options.folder / "data").exists():
        make(options.folder, options.days, options.engines)
    look(options.folder, options.days, options.workers)


if __name__ == "__main__":
    main()
