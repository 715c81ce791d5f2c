"""`python -m bench.incidents.month FOLDER`: the blocks of a Prometheus that has scraped a hundred engines for a month.

Most of the time an engine is described by the ten series that the screen looks at; around each incident, and twenty
minutes before it, by whole pages of a simulated engine whose truth is known. A tenth of the engines has two busy hours
a day, of a simulated engine too, in which bursts of long prompts wait for a second or two and nothing is wrong.
`truth.json` says when what was wrong with whom.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import re
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from bench.simulator.load import Lengths, OpenLoop, Phase, Traffic
from bench.simulator.scenarios import CAUSES, episode
from bench.simulator.service import Scenario, ServerDownError, SimulatedServer

START: Final = 1_700_006_400.0
"""A whole day, as promtool cuts blocks."""
DAY: Final = 86_400
STEP: Final = 15
PER_ENGINE: Final = 4
POOL_RUNS: Final = 3
LEAD_SECONDS: Final = 1500.0
BUSY_HOURS: Final = range(10, 12)
BUSY_EVERY: Final = 10
LINE: Final = re.compile(rb"^([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{([^\n]*)\})? ([^ \n]+)", re.MULTILINE)
LOSING: Final = ("kv_cache_pressure", "concurrency_bound", "host_bound", "stuck")


@dataclass(frozen=True, slots=True)
class Played:
    """A simulated run: its cause, when trouble began and ended, and its pages, seconds since its begin."""

    cause: str
    began: float
    ended: float
    pages: tuple[tuple[int, bytes], ...]

    @property
    def seconds(self) -> int:
        """Its length in whole steps."""
        return self.pages[-1][0] + STEP


@dataclass(frozen=True, slots=True)
class Window:
    """A run at a place of an engine's month."""

    begin: int
    played: Played


def pool_of(cause: str) -> list[Played]:
    """The first runs whose engine has one rank: on fewer ranks than it was drawn for, a load is no longer healthy."""
    label = next(known for known in CAUSES if known == cause)
    alone = (seed for seed in itertools.count() if episode(label, seed).engine.ranks == 1)
    return [played(cause, episode(label, seed), seed) for seed in itertools.islice(alone, POOL_RUNS)]


def played(cause: str, short: Scenario, seed: int) -> Played:
    """An episode with a long healthy time before its trouble."""
    first, trouble, *rest = short.phases
    length = random.Random(seed).choice((150.0, 300.0, 900.0))
    phases = (replace(first, seconds=LEAD_SECONDS), replace(trouble, seconds=length), *rest)
    scenario = replace(short, phases=phases)
    server, pages = SimulatedServer(scenario, seed), []
    for second in range(0, int(scenario.seconds), STEP):
        try:
            pages.append((second, server.page(server.start + second + 0.5)))
        except ServerDownError:
            continue
    return Played(cause, LEAD_SECONDS, LEAD_SECONDS + length, tuple(pages))


def busy_run(seed: int) -> Played:
    """Hours in which bursts of long prompts come, and are served at once; of its pages, all but buckets."""
    traffic = Traffic(Lengths(2500, "lognormal", 0.5), Lengths(180, "lognormal", 0.4))
    load = OpenLoop(traffic, 1.0, burst=10, burst_every_seconds=40.0)
    phase = Phase("healthy", float(len(BUSY_HOURS) * 3600), (load,))
    server = SimulatedServer(Scenario("busy", replace(episode("healthy", 1).engine, ranks=1), (phase,)), seed)
    pages = []
    for second in range(0, int(phase.seconds), STEP):
        lines = server.page(server.start + second + 0.5).splitlines(keepends=True)
        pages.append(
            (second, b"".join(line for line in lines if line.startswith(b"vllm:") and b"_bucket{" not in line))
        )
    return Played("healthy", 0.0, 0.0, tuple(pages))


def windows(pool: list[Played], days: int, rng: random.Random) -> list[Window]:
    """Some runs in each engine's month, after its busy hours and none across midnight."""
    found = []
    for day in sorted(rng.sample(range(days), min(PER_ENGINE, days))):
        run = rng.choice(pool)
        begin = day * DAY + rng.randrange(13 * 3600, DAY - run.seconds - 3600) // STEP * STEP
        found.append(Window(begin, run))
    return found


def labels(engine: int) -> bytes:
    """Of a target."""
    return b'namespace="prod",pod="llm-%d",instance="10.0.%d.%d:8000",job="vllm"' % (
        engine,
        engine // 250,
        engine % 250,
    )


def of_window(window: Window, engine: int) -> Iterator[bytes]:
    """Whole pages."""
    own = labels(engine)
    for second, page in window.played.pages:
        stamp = b" %d\n" % (START + window.begin + second)
        for name, inner, value in LINE.findall(page):
            if not name.endswith(b"_created"):
                yield name + b"{" + (inner.rstrip(b",") + b"," if inner else b"") + own + b"} " + value + stamp


def of_day(day: int, engine: int, skipped: list[Window], rng: random.Random) -> Iterator[bytes]:
    """The ten series of an engine that is well."""
    closed = [(one.begin, one.begin + one.played.seconds) for one in skipped]
    times = [t for t in range(day * DAY, (day + 1) * DAY, STEP) if not any(begin <= t < end for begin, end in closed)]
    waiting = [rng.randint(1, 3) if rng.random() < 0.01 else 0 for _ in times]
    rate = 4.0 + engine % 7
    inner = b'{engine="0",model_name="m",' + labels(engine) + b"} "
    gauges: Mapping[bytes, list[bytes]] = {
        b"num_requests_running": [b"%d" % rng.randint(3, 9) for _ in times],
        b"num_requests_waiting": [b"%d" % value for value in waiting],
        b"kv_cache_usage_perc": [b"0.%d" % rng.randint(20, 45) for _ in times],
    }
    slopes = {
        b"num_preemptions_total": 0.0,
        b"prompt_tokens_total": 900 * rate,
        b"generation_tokens_total": 200 * rate,
        b"e2e_request_latency_seconds_count": rate,
        b"e2e_request_latency_seconds_sum": 4.5 * rate,
        b"request_queue_time_seconds_sum": 0.1 * rate,
        b"request_inference_time_seconds_sum": 4.35 * rate,
    }
    for name, values in gauges.items():
        head = b"vllm:" + name + inner
        yield b"".join([b"%s%s %d\n" % (head, value, START + t) for t, value in zip(times, values, strict=True)])
    for name, slope in slopes.items():
        head = b"vllm:" + name + inner
        yield b"".join([b"%s%.2f %d\n" % (head, slope * t, START + t) for t in times])


def main() -> None:
    """Write the blocks, a day at a time."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--days", type=int, default=30)
    parser.add_argument("--engines", type=int, default=100)
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    pool = [run for cause in LOSING for run in pool_of(cause)]
    busy = [busy_run(seed) for seed in range(POOL_RUNS)]
    rng = random.Random(15)
    of_engine = [windows(pool, options.days, rng) for _ in range(options.engines)]
    truth = [
        {
            "pod": f"llm-{engine}",
            "cause": one.played.cause,
            "began": START + one.begin + one.played.began,
            "ended": START + one.begin + one.played.ended,
        }
        for engine, its in enumerate(of_engine)
        for one in its
    ]
    (options.folder / "truth.json").write_text(json.dumps(truth, indent=1))
    lines = options.folder / "day.om"
    for day in range(options.days):
        with lines.open("wb") as file:
            for engine, its in enumerate(of_engine):
                here = [one for one in its if one.begin // DAY == day]
                if engine % BUSY_EVERY == 0:
                    run = busy[engine // BUSY_EVERY % len(busy)]
                    here.insert(0, Window(day * DAY + BUSY_HOURS[0] * 3600, run))
                file.writelines(of_day(day, engine, here, rng))
                for one in here:
                    file.writelines(of_window(one, engine))
            file.write(b"# EOF\n")
        command = ["promtool", "tsdb", "create-blocks-from", "--max-block-duration=24h", "openmetrics", "-q"]
        subprocess.run([*command, str(lines), str(options.folder / "data")], check=True)
        print(f"day {day + 1} of {options.days}", flush=True)
    lines.unlink()


if __name__ == "__main__":
    main()
