"""`python -m bench.detection.objectives`: two alerts on vLLM's own series that no recording of the lab can judge.

`KVPressureVLLMSLOBurn` on episodes of half an hour of the simulator: right where so large a share of the requests
waited too long for a first token, by each request's own times, those that still wait among them.
`KVPressureVLLMMetricsAbsent` on servers that die, start again, answer without metrics, are scaled down or replaced, and
on a Prometheus that stops.
Prometheus scrapes every 15, 30 and 60 s, and evaluates the rules as shipped. Writes objectives.json, and with
`--write-docs` its part of docs/internals/accuracy/vllm-only.md.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from bench.detection import prometheus
from bench.detection.episodes import long_scenario, restart_times, seeds
from bench.detection.others import (
    HALF,
    LATE_SECONDS,
    MAY,
    MUST,
    NOT,
    AlertScore,
    alert_score,
    names_table,
    result_rows,
    scores_table,
)
from bench.detection.prometheus import STEP_SECONDS, Sample
from bench.detection.rules import INTERVALS
from bench.detection.score import Second
from bench.detection.shipped import vllm_only
from bench.detection.truth import Accepted
from bench.simulator.service import Scenario, ServerDownError, SimulatedServer
from bench.simulator.stats import Request
from bench.written import write_part
from kvpressure.config.thresholds import Thresholds, load_thresholds

BURN, ABSENT = "KVPressureVLLMSLOBurn", "KVPressureVLLMMetricsAbsent"
SCORED: Final = (BURN, ABSENT)
RESULTS: Final = Path(__file__).parent / "objectives.json"
OBJECTIVE_SECONDS: Final = 2.5
HOUR, DAY = 3600.0, 86400.0
ABSENT_SECONDS: Final = 300.0
SEEDS: Final = range(32)
_FIRST_TOKEN: Final = re.compile(
    rb'^vllm:time_to_first_token_seconds_(?:(bucket)\{(?=[^}]*le="2\.5")|(count)\{)[^}]*engine="(\d+)"[^}]*\} (\S+)',
    re.MULTILINE,
)


@dataclass(slots=True)
class Watched:
    """An engine as its Prometheus saw it, and what was true: an answer for every 15 s."""

    name: str
    samples: list[Sample] = field(default_factory=list)
    truth: list[Second] = field(default_factory=list)


class _Asked(SimulatedServer):
    """A simulated server that remembers who asked."""

    def __init__(self, scenario: Scenario, seed: int) -> None:
        self.asked: list[Request] = []
        super().__init__(scenario, seed)

    def _arrive(self, request: Request, t: float) -> None:
        self.asked.append(request)
        super()._arrive(request, t)


def main() -> int:
    """Play, evaluate, print, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write-docs", action="store_true", help="write the table in vllm-only.md")
    options = parser.parse_args()
    if not prometheus.installed():
        print("prometheus is not installed (Debian package prometheus): nothing to do")
        return 0
    limits = load_thresholds()
    episodes = {BURN: [served(about, seed, limits) for about, seed in seeds()], ABSENT: [*map(outage, SEEDS)]}
    scores = {seconds: scored(episodes, seconds) for seconds in INTERVALS}
    of = " and ".join(str(len(some)) for some in episodes.values())
    tables = [scores_table(scores, f"Late first tokens, and absent metrics, simulated {of} times"), names_table(scores)]
    for table in tables:
        print(table.text())
    RESULTS.write_text(json.dumps(list(result_rows("simulated", scores)), indent=1) + "\n")
    if options.write_docs:
        shown = "\n".join(table.markdown() for table in tables)
        write_part("vllm-only.md", "bench.detection.objectives", shown)
    return 0


def served(about: str, seed: int, limits: Thresholds) -> Watched:
    """One long episode: what the page says of first tokens, and the shares that were late by each request's times.

    Of a server with several ranks, the first is judged by all requests: they go to the rank with the shortest queue.
    """
    scenario = long_scenario(about, seed)
    server, found = _Asked(scenario, seed), Watched(scenario.name)
    steps = int(scenario.seconds // STEP_SECONDS)
    for step in range(steps):
        t = step * STEP_SECONDS
        try:
            page = server.page(server.start + t)
        except ServerDownError:
            continue
        for bucket, _, engine, value in _FIRST_TOKEN.findall(page):
            name = f"vllm:time_to_first_token_seconds_{'bucket' if bucket else 'count'}"
            labels = {"episode": found.name, "engine": engine.decode(), **({"le": "2.5"} if bucket else {})}
            if engine == b"0":
                found.samples.append(Sample(name, labels, t, float(value)))
    known = _known(server, restart_times(scenario))
    found.truth = [Second(step * STEP_SECONDS, "", said) for step, said in enumerate(_burns(known, steps, limits))]
    return found


def _known(server: _Asked, restarts: Sequence[float]) -> list[tuple[float, bool]]:
    """When it was known of each request whether its first token was late, and whether it was, in order.

    Who gave up before, or was lost with the server before, waited for less.
    """
    found = []
    for one in server.asked:
        late = one.arrived + OBJECTIVE_SECONDS
        lost = next((at for at in restarts if at > one.arrived), float("inf"))
        ended = one.last_token if one.first_token is None and one.last_token else lost
        if one.first_token is not None and one.first_token <= late:
            found.append((one.first_token, False))
        elif one.first_token is not None or (late <= ended and late <= server.clock):
            found.append((late, True))
    return sorted(found)


def _burns(known: Sequence[tuple[float, bool]], steps: int, limits: Thresholds) -> Iterator[Accepted]:
    alert = limits.alert
    budget = alert.slowed_budget_ratio
    spans = ((HOUR, 300.0, alert.fast_burn_min_factor), (6 * HOUR, 1800.0, alert.slow_burn_min_factor))
    until = float("-inf")
    for step in range(steps):
        t = step * STEP_SECONDS
        burns = [
            min(_late(known, t, long), _late(known, t, short)) / (factor * budget) for long, short, factor in spans
        ]
        if max(burns) > 1:
            until = t + LATE_SECONDS
            yield MUST
        else:
            yield MAY if max(burns) > HALF or t <= until else NOT


def _late(known: Sequence[tuple[float, bool]], t: float, span: float) -> float:
    lately = [late for at, late in known if t - span < at <= t]
    return sum(lately) / len(lately) if lately else 0.0


def outage(seed: int) -> Watched:
    """An hour and more of an engine with requests, and what befalls it; a third of the seeds is no outage."""
    rng = random.Random(f"outage/{seed}")
    kind = ("dies", "restarts", "without metrics", "scaled down", "dies", "prometheus stops", "replaced", "flaps")[
        seed % 8
    ]
    found = Watched(f"{kind}-{seed}")
    begin = rng.uniform(600, 1800)
    lasts = {
        "restarts": rng.uniform(30, 240),
        "prometheus stops": rng.uniform(120, 1500),
        "flaps": 1200.0,
        "replaced": rng.uniform(400, 900),
    }.get(kind, rng.choice((rng.uniform(400, 1500), rng.uniform(4000, 9000))))
    labels = {"job": "vllm", "instance": found.name, "episode": found.name}
    until = float("-inf")
    for step in range(int((begin + lasts + 1800) // STEP_SECONDS)):
        t = step * STEP_SECONDS
        out = begin <= t < begin + lasts
        if kind == "flaps":
            out = out and int((t - begin) // 60) % 3 < 2
        pod = "new" if kind == "replaced" and t >= begin else "old"
        gone = (kind == "scaled down" and t >= begin) or (kind == "prometheus stops" and out)
        if not gone:
            up = float(not out or kind == "without metrics")
            found.samples.append(Sample("up", {**labels, "pod": pod}, t, up))
            if not out:
                row = {**labels, "pod": pod, "engine": "0", "model_name": "m"}
                found.samples.append(Sample("vllm:num_requests_running", row, t, float(rng.randrange(20))))
        missed = kind in {"dies", "without metrics"} and out
        if missed and t - begin >= ABSENT_SECONDS:
            said, until = MUST, t + LATE_SECONDS
        else:
            said = MAY if t <= until or (missed and t - begin >= HALF * ABSENT_SECONDS) else NOT
        found.truth.append(Second(t, "", said))
    return found


def scored(episodes: Mapping[str, Sequence[Watched]], scrape_seconds: int) -> dict[str, AlertScore]:
    """Each alert on its own episodes, scraped that often."""
    found, each = {}, round(scrape_seconds / STEP_SECONDS)
    for alert, watched in episodes.items():
        kept = [one for episode in watched for one in episode.samples if round(one.t / STEP_SECONDS) % each == 0]
        longest = max(one.truth[-1].t for one in watched)
        (rule,) = vllm_only(scrape_seconds, alert)
        with prometheus.serving(kept, scrape_seconds) as server:
            found[alert] = alert_score(server, rule, longest, {one.name: one.truth for one in watched})
    return found


if __name__ == "__main__":
    sys.exit(main())
