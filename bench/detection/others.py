"""`python -m bench.detection.others`: every alert on vLLM's own series, each against what it is right about.

Two sets of recordings of the scheduler lab: those of `make lab`, and longer ones (`python -m tests.lab --long`), as
most of these alerts look at five or ten minutes. Pages are scraped every 15, 30 and 60 s, and the rules evaluated by a
real Prometheus, as for the first alert (`bench/detection/rules.py`). An alert counts by itself here: what mutes it is
left out. Writes others.json, and with `--write-docs` its part of docs/internals/accuracy/vllm-only.md.

What an alert is right about has three answers a second: it has to fire, it may, it may not. Causes come from the
recording's truth, which is what the scheduler did; how long those who come will wait is told in hindsight, by who was
admitted afterwards; shares that are preempted or refused are counted on pages of every second, around the moment, not
before it as an alert does.

Two alerts no recording of the lab can judge. `KVPressureVLLMSLOBurn` is played on episodes of half an hour of the
simulator: right where so large a share of the requests waited too long for a first token, by each request's own times,
those that still wait among them. `KVPressureVLLMMetricsAbsent` on servers that die, start again, answer without
metrics, are scaled down or replaced, and on a Prometheus that stops. These are in objectives.json.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from bench.detection import prometheus
from bench.detection.episodes import long_scenario, restart_times, seeds
from bench.detection.judge import SCRAPE_SECONDS, Outcome, Scrape, page_series
from bench.detection.lab import LAB, RECORDINGS, recordings, records
from bench.detection.prometheus import STEP_SECONDS, Sample
from bench.detection.rules import INTERVALS, RuleScore, firing, samples, score_rule
from bench.detection.score import KV, Second
from bench.detection.shipped import Rule, named_by, vllm_only
from bench.detection.table import Table, number, percent
from bench.detection.truth import Accepted
from bench.simulator.service import Scenario, ServerDownError, SimulatedServer
from bench.simulator.stats import Request
from bench.written import write_part
from kvpressure.bundle.options import VLLM_ONLY
from kvpressure.config.thresholds import Thresholds, load_thresholds
from kvpressure.engines.reader import PageReader
from kvpressure.engines.recordings import stem
from kvpressure.model.samples import EngineSample

BURN, ABSENT = "KVPressureVLLMSLOBurn", "KVPressureVLLMMetricsAbsent"
SIMULATED_RESULTS: Final = Path(__file__).parent / "objectives.json"
SIMULATED: Final = "simulated"
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


def simulated(*, write: bool) -> None:
    """Play the two alerts' episodes, evaluate, print, write."""
    limits = load_thresholds()
    episodes = {BURN: [served(about, seed, limits) for about, seed in seeds()], ABSENT: [*map(outage, SEEDS)]}
    scores = {seconds: scored_simulated(episodes, seconds) for seconds in INTERVALS}
    of = " and ".join(str(len(some)) for some in episodes.values())
    shown = _printed(scores, f"Late first tokens, and absent metrics, simulated {of} times")
    SIMULATED_RESULTS.write_text(json.dumps(list(result_rows(SIMULATED, scores)), indent=1) + "\n")
    if write:
        write_part("vllm-only.md", "bench.detection.others simulated", shown)


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


def scored_simulated(episodes: Mapping[str, Sequence[Watched]], scrape_seconds: int) -> dict[str, AlertScore]:
    """Each alert on its own episodes, scraped that often."""
    found, each = {}, round(scrape_seconds / STEP_SECONDS)
    for alert, watched in episodes.items():
        kept = [one for episode in watched for one in episode.samples if round(one.t / STEP_SECONDS) % each == 0]
        longest = max(one.truth[-1].t for one in watched)
        (rule,) = vllm_only(scrape_seconds, alert)
        with prometheus.serving(kept, scrape_seconds) as server:
            found[alert] = alert_score(server, rule, longest, {one.name: one.truth for one in watched})
    return found


NOT: Final[Accepted] = frozenset({"other"})
MUST: Final[Accepted] = frozenset({KV})
MAY: Final[Accepted] = MUST | NOT
"""In the words of the rules' scores, which know KV pressure alone; here it stands for what the alert is about."""

ROOM: Final = frozenset({KV, "concurrency_bound", "compute_bound", "host_bound"})
"""Causes for which a request waits for its turn, and not for something of its own, or for an engine that stands."""
GROWS_SECONDS: Final = 300
"""A queue grows where more wait than so long before."""
HALF: Final = 0.5
"""From half of what an alert asks for on, it may fire: it sees a mean of minutes, and the truth is of a moment."""
AROUND_SECONDS: Final = 60
LATE_SECONDS: Final = 240
"""What went on within this long may still be told: windows of five minutes and more."""


@dataclass(frozen=True, slots=True)
class Tick:
    """One page of every second: `t` seconds after the first, what may be named in it, and what vLLM had counted."""

    t: float
    accepted: Accepted
    queued: float = 0.0
    started: float = 0.0
    finished: float = 0.0
    preempted: float = 0.0
    rejected: float = 0.0


Right = Callable[[Sequence[Tick], Thresholds], list[Accepted]]


def cause(name: str) -> Right:
    """Right where that cause alone is true; it may fire where it is one of several."""

    def right(track: Sequence[Tick], _: Thresholds) -> list[Accepted]:
        return [MUST if tick.accepted == {name} else MAY if name in tick.accepted else NOT for tick in track]

    return right


def grows(track: Sequence[Tick], thresholds: Thresholds) -> list[Accepted]:
    """Right where who comes now waits the alert's minute for room, and more wait than five minutes ago."""
    least, end, found = thresholds.alert.queue_wait_min_seconds, track[-1].t, []
    for index, tick in enumerate(track):
        before = max(0, index - GROWS_SECONDS)
        waited, known = _waits(track, index)
        if not tick.accepted & ROOM or not tick.queued:
            found.append(NOT)
        elif waited >= least and tick.accepted <= ROOM and tick.queued > track[before].queued:
            found.append(MUST)
        else:
            found.append(MAY if waited >= least * HALF or not known or end - tick.t < least else NOT)
    return found


def recomputes(track: Sequence[Tick], thresholds: Thresholds) -> list[Accepted]:
    """Right where so many are preempted for each one admitted, for want of KV cache."""
    least = thresholds.symptoms.preempting_min_ratio * thresholds.score.preempted_full_factor
    shares = [(a, b) for a, b in _counted(track, "preempted", "started")]
    told = [lost > least * admitted for lost, admitted in shares]
    nearly = [lost > HALF * least * admitted for lost, admitted in shares]
    return _told(track, told, nearly, KV)


def rejects(track: Sequence[Tick], thresholds: Thresholds) -> list[Accepted]:
    """Right where so large a share of those who ask is refused."""
    least = thresholds.symptoms.load_shed_min_ratio
    shares = [(a, a + b) for a, b in _counted(track, "rejected", "finished")]
    told = [refused > 0 and refused >= least * asked for refused, asked in shares]
    nearly = [refused > 0 and refused >= HALF * least * asked for refused, asked in shares]
    return _told(track, told, nearly, "")


NOT_SCORED: Final = frozenset(
    {
        "KVPressureVLLMEvicting",
        "KVPressureVLLMMemoryHighComputeLow",
        "KVPressureVLLMQueueAtGateway",
        "KVPressureVLLMReplicasUneven",
    }
)
"""One compares with the day before, one replicas with each other, the others read a GPU exporter or a gateway: no
recording has these. In `rules/vllm-only/tests` they fire."""

RIGHTS: Final[Mapping[str, Right]] = {
    "KVPressureVLLMCacheTooSmall": cause(KV),
    "KVPressureVLLMNoProgress": cause("stuck"),
    "KVPressureVLLMQueueGrows": grows,
    "KVPressureVLLMRecomputing": recomputes,
    "KVPressureVLLMRejecting": rejects,
    "KVPressureVLLMRequestsDeferred": cause("deferred"),
}


def judged(alert: str, track: Sequence[Tick], thresholds: Thresholds) -> list[Second]:
    """The seconds of one engine as the rules' scores read them, for that alert."""
    return [Second(tick.t, "", said) for tick, said in zip(track, RIGHTS[alert](track, thresholds), strict=True)]


def _waits(track: Sequence[Tick], index: int) -> tuple[float, bool]:
    """Seconds until as many were admitted as wait now, at least; and whether that is all of them."""
    now, goal = track[index], track[index].started + track[index].queued
    for before, later in pairwise(track[index:]):
        if later.started < before.started:  # a new server: those who waited are gone
            return before.t - now.t, False
        if later.started >= goal:
            return later.t - now.t, True
    return track[-1].t - now.t, False


def _counted(track: Sequence[Tick], *names: str) -> list[tuple[float, ...]]:
    """How much each counter rose in the two minutes around each tick; a counter that begins again rises from 0."""
    rises = [[0.0] for _ in names]
    for before, later in pairwise(track):
        for rise, name in zip(rises, names, strict=True):
            now, was = getattr(later, name), getattr(before, name)
            rise.append(rise[-1] + (now - was if now >= was else now))
    spans = [
        (max(0, index - AROUND_SECONDS), min(len(track) - 1, index + AROUND_SECONDS)) for index in range(len(track))
    ]
    return [tuple(rise[end] - rise[begin] for rise in rises) for begin, end in spans]


def _told(track: Sequence[Tick], told: Sequence[bool], nearly: Sequence[bool], needed: str) -> list[Accepted]:
    """Must where it is so and the cause, if one is needed, may be named; may where it nearly is, or was a while ago."""
    found, until = [], float("-inf")
    for tick, is_so, is_nearly in zip(track, told, nearly, strict=True):
        fits = not needed or needed in tick.accepted
        if is_so and fits:
            found.append(MUST)
            until = tick.t + LATE_SECONDS
        else:
            found.append(MAY if (is_nearly and fits) or tick.t <= until else NOT)
    return found


LONG: Final = LAB / "long"
RESULTS: Final = Path(__file__).parent / "others.json"
SETS: Final = {"long": "nine to twenty minutes", "short": "three to five minutes"}


@dataclass(frozen=True, slots=True)
class Played:
    """A recording: what a Prometheus saw, and what was true every second."""

    outcome: Outcome
    track: Sequence[Tick]


@dataclass(slots=True)
class AlertScore:
    """One alert at one interval: its score, and the recordings with an episode that it missed, or made up."""

    score: RuleScore
    missed: list[str] = field(default_factory=list)
    invented: list[str] = field(default_factory=list)

    @property
    def cell(self) -> str:
        """Recall in time, episodes found, false ones, and the delay, as the table has them."""
        score = self.score
        delay = "" if score.delay is None else f", {number(score.delay)} s"
        return f"{percent(score.recall)}, {score.found}/{score.episodes} found, {score.false_episodes} false{delay}"


Scores = Mapping[int, Mapping[str, AlertScore]]
"""By seconds between scrapes and by alert."""


def main() -> int:
    """Play, evaluate, print, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    names = (*SETS, SIMULATED)
    parser.add_argument("sets", nargs="*", choices=[*names, []], help=f"{', '.join(names)}; all when none is given")
    parser.add_argument(
        "--write-docs", action="store_true", help="write the tables in docs/internals/accuracy/vllm-only.md"
    )
    options = parser.parse_args()
    if not prometheus.installed():
        print("prometheus is not installed (Debian package prometheus): nothing to do")
        return 0
    rows: list[dict[str, Any]] = []
    shown = []
    for name in (one for one in SETS if one in options.sets or not options.sets):
        found = [played(path) for path in recordings({"long": LONG, "short": RECORDINGS}[name])]
        if not found:
            print(f"no recordings of {SETS[name]}: `make lab` makes them")
            continue
        scores = {seconds: scored(found, seconds) for seconds in INTERVALS}
        shown.append(_printed(scores, f"Every alert, {len(found)} recordings of {SETS[name]}"))
        rows += result_rows(name, scores)
    if not options.sets and len(shown) == len(SETS):
        RESULTS.write_text(json.dumps(rows, indent=1) + "\n")
        if options.write_docs:
            write_part("vllm-only.md", "bench.detection.others", "\n".join(shown))
    if SIMULATED in (options.sets or names):
        simulated(write=options.write_docs)
    return 0


def _printed(scores: Scores, title: str) -> str:
    """Print both tables; they come as Markdown."""
    tables = [scores_table(scores, title), names_table(scores)]
    for table in tables:
        print(table.text())
    return "\n".join(table.markdown() for table in tables)


def played(path: Path) -> Played:
    """Read a recording: ticks of every page, and a scrape every 15 s."""
    reader, begin, track, scrapes, due = PageReader(), None, [], [], 0.0
    for record in records(path):
        begin = record["t"] if begin is None else begin
        t = record["t"] - begin
        page = reader.read(record["page"].encode(), record["t"])
        for sample in page.engines:
            track.append(_tick(t, frozenset(record["truth"]["accepted"]), sample))
            if t >= due:
                scrapes.append(_scrape(t, sample))
        due += SCRAPE_SECONDS * (t >= due)
        while due <= t - 2.0:  # nobody answered
            due += SCRAPE_SECONDS
    name = f"{path.parent.name}/{stem(path)}"
    return Played(Outcome(name, "lab", stem(path), {}, {"0": scrapes}, {}), track)


def _tick(t: float, accepted: frozenset[str], sample: EngineSample) -> Tick:
    gauges, counters = sample.gauges, sample.counters
    return Tick(
        t,
        accepted,
        gauges.get("waiting_capacity", gauges.get("waiting", 0.0)),
        counters.get("started", 0.0),
        counters.get("finished", 0.0),
        counters.get("preemptions", 0.0),
        counters.get("rejected", 0.0),
    )


def _scrape(t: float, sample: EngineSample) -> Scrape:
    page = tuple(page_series(sample, named_by(VLLM_ONLY)))
    values = {one.name: one.value for one in page if not one.labels}
    return Scrape(t, values, (), tuple(one for one in page if one.labels))


def scored(found: Sequence[Played], scrape_seconds: int) -> dict[str, AlertScore]:
    """Every alert on every recording, scraped that often."""
    limits, outcomes = load_thresholds(), [one.outcome for one in found]
    longest = max(scrape.t for one in outcomes for scrape in one.scrapes["0"])
    with prometheus.serving(samples(outcomes, scrape_seconds), scrape_seconds) as server:
        return {
            alert: alert_score(
                server,
                vllm_only(scrape_seconds, alert)[0],
                longest,
                {one.outcome.name: judged(alert, one.track, limits) for one in found},
            )
            for alert in RIGHTS
        }


def alert_score(
    server: prometheus.Server, rule: Rule, seconds: float, truths: Mapping[str, Sequence[Second]]
) -> AlertScore:
    """One alert on the engines that the server has, of which the truth is given by episode."""
    times = server.true_times(rule.expr, seconds)
    told = AlertScore(RuleScore(rule))
    for name, truth in truths.items():
        fired = firing(times.get((name, "0"), []), rule.for_seconds, rule.keep_seconds)
        alone = RuleScore(rule)
        score_rule(alone, fired, truth)
        told.score.add(alone)
        told.missed += [name] * (alone.found < alone.episodes)
        told.invented += [name] * bool(alone.false_episodes)
    return told


def scores_table(scores: Scores, title: str) -> Table:
    """A row per alert: recall in time, episodes found, false episodes and delay, by seconds between scrapes."""
    names = next(iter(scores.values()))
    rows = [(f"`{name}`", *(alerts[name].cell for alerts in scores.values())) for name in names]
    return Table(title, ("alert", *(f"{seconds} s" for seconds in scores)), tuple(rows))


def names_table(scores: Scores) -> Table:
    """A row per alert: regimes with an episode that it did not find, and those in which it fired without cause."""
    rows = []
    for name in next(iter(scores.values())):
        each = {seconds: alerts[name] for seconds, alerts in scores.items()}
        missed = _by_regime({seconds: alert.missed for seconds, alert in each.items()})
        rows.append((f"`{name}`", missed, _by_regime({seconds: alert.invented for seconds, alert in each.items()})))
    return Table("Where it is wrong (all intervals, or the one named)", ("alert", "missed", "false"), tuple(rows))


def _by_regime(episodes: Mapping[int, Sequence[str]]) -> str:
    """Names of regimes, with the intervals at which they occur when that is not all of them."""
    found: dict[str, set[int]] = {}
    for seconds, names in episodes.items():
        for name in names:
            found.setdefault(name.rpartition("/")[2].partition("+")[0], set()).add(seconds)
    told = (
        name + ("" if len(at) == len(episodes) else f" ({', '.join(map(str, sorted(at)))} s)")
        for name, at in sorted(found.items())
    )
    return ", ".join(told) or "-"


def result_rows(name: str, scores: Scores) -> Iterator[dict[str, Any]]:
    """What is kept: a row per set, interval and alert."""
    for seconds, alerts in scores.items():
        for alert, told in alerts.items():
            score = told.score
            yield {
                "set": name,
                "scrape_seconds": seconds,
                "alert": alert,
                "shown": told.cell,
                "recall": score.recall,
                "precision": score.precision,
                "found": score.found,
                "episodes": score.episodes,
                "false_episodes": score.false_episodes,
                "delay_median_seconds": score.delay,
                "missed": sorted(told.missed),
                "invented": sorted(told.invented),
            }


if __name__ == "__main__":
    sys.exit(main())
