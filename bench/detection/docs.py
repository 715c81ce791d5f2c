"""docs/detection.md: what the tables mean, and the tables."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from bench.detection.judge import Outcome
from bench.detection.table import Table

DOCUMENT: Final = Path(__file__).parents[2] / "docs" / "detection.md"
PAGES_HEADING: Final = "## What wakes people"
LAB_HEADING: Final = "## The scheduler lab"
WORKING_SET_HEADING: Final = "## The working set"
SGLANG_HEADING: Final = "## SGLang in the scheduler lab"
"""Written by hand: the part about the working set leaves it as it is."""

_WORKING_SET_INTRO: Final = """
Contexts that are evicted and computed again, on regimes with sessions
([how](../tests/lab/README.md#the-working-set); [words](working-set.md)): `python -m
bench.detection.working_set FOLDER ...`, with recordings of `python -m tests.lab --working-set SEED`. **The truth** is
what vLLM's block pool did: a second is one of eviction where a fifth of the prompt tokens computed in the 20 s around
it had been evicted, and computing them took a fifth of the time. **Told** are those seconds of which the verdict said
so, as its detail or beside requests that wait; **false stretches** have no eviction within 15 s. **Jumps** are changes
of confidence by more than a third from one second to the next. **Age in bounds**: minutes in which the mean age at
eviction that the block pool has measured lies between `kvpressure_cache_eviction_age_min_seconds` and
`kvpressure_cache_eviction_age_max_seconds`; the last column allows a fifth outside, for means over a while in which
the load changes.

**With KV events, and by the page alone** (`python -m tests.lab.kv_events workingset-REGIME~SEED ... --verdicts
[--alone]`, [decision 0701](internals/decisions/0701-means-of-fewer-seconds.md)): seeds 81 and 82 on vLLM 0.33, judged
once, after the last change. The bar of 95 % is met by both (96.2 and 97.5 %; the seeds before had 94.2 to 95.1 %). Runs
are five minutes (`joins` eight). What is missed is the first seconds of a stretch, for the truth knows the ten that
come: six in the median. Where the share goes to and fro around a fifth (`busy-100`, `people-030`), 54 to 78 % are
told, and several times as many seconds that are none. The false stretch is of such a run: 46 s of `calm-100`, whose
pool just holds all contexts. Nothing is told, with events and without, of `cold`, `scattered`, `reset`, `restart`,
`uncached`, `busy-200`, `calm-130`, `people-100`, `people-200`, `trace-light` and `trace-fifth`, of which nothing is
eviction. Of seeds that were looked at, one has a stretch of 51 s without any (`people-030~72`).

| regime | runs | eviction s | told, events | recall | told, none | false stretches | told, page | false, page |
| --- | --: | --: | --: | --: | --: | --: | --: | --: |
| busy-020 | 2 | 510 | 507 | 99.4 % | 4 | 0 | 0 | 0 |
| busy-040 | 2 | 549 | 534 | 97.2 % | 0 | 0 | 0 | 0 |
| busy-060 | 2 | 557 | 542 | 97.3 % | 0 | 0 | 0 | 0 |
| busy-080 | 2 | 358 | 348 | 97.2 % | 156 | 0 | 48 | 0 |
| busy-100 | 2 | 98 | 76 | 77.5 % | 321 | 0 | 0 | 0 |
| calm-020 | 2 | 443 | 431 | 97.2 % | 3 | 0 | 0 | 0 |
| calm-040 | 2 | 409 | 403 | 98.5 % | 38 | 0 | 0 | 0 |
| calm-060 | 2 | 410 | 405 | 98.7 % | 61 | 0 | 0 | 0 |
| calm-080 | 2 | 278 | 267 | 96.0 % | 149 | 0 | 0 | 0 |
| calm-100 | 2 | 14 | 14 | 100.0 % | 80 | 1 | 0 | 0 |
| joins | 2 | 303 | 299 | 98.6 % | 130 | 0 | 261 | 0 |
| people-030 | 2 | 42 | 23 | 54.7 % | 168 | 0 | 0 | 0 |
| table | 2 | 493 | 478 | 96.9 % | 0 | 0 | 0 | 0 |
| seed 81 | 24 | 2133 | 2054 | 96.2 % | 576 | 0 | 53 | 0 |
| seed 82 | 24 | 2331 | 2273 | 97.5 % | 534 | 1 | 256 | 0 |
| both seeds | 48 | 4464 | 4327 | 96.9 % | 1110 | 1 | 309 | 0 |

By the page alone `joins` has a past to compare with: 261 of its 303 seconds are told (86.1 %; seed 81 has 53 of 95,
seed 82 all), and `busy-080` of one seed. Before, seed 71 had 92 % and seeds 22 and 72 none: their warm period found a
third to a half of the prompts, where room for all finds nine tenths. The other regimes are too small from their first
second on, and are called what limits them (`compute_bound`, `admission`) or, where steps are not full of prompts,
`healthy`. No page tells their misses from those of `cold`; where prompts take a fifth of the time and no past tells,
the verdict's missing evidence names KV events, of `cold` as of these.

**Routing**: the replica of `scattered` (each turn goes to any of four) beside one of its seed to which sessions return
(`calm-080`, `-100`, `-130`): *may be the routing* is said in 0 to 80 of 300 s of eleven pairs, none of eviction. It
finds .56 to .60 of its prompts, which is little less than the others do while their caches live as long. Where all four
are scattered, nothing on their pages tells.

**By the page alone**, the same recordings as `python -m bench.detection.working_set` scores them. **Beside a replica**
with twice the working set (`--beside 200`; seed 25, run once, before decision 0421), with which an engine without a
past is compared: 84 and 77 % of the seconds of `busy-040` and `-060`, 68 and 62 % of `calm-040` and `-060`, none of the
19 s of `busy-100`, of which one stretch of 13 s is false; 5 jumps of confidence.

"""

_PAGES_INTRO: Final = """
`python -m bench.detection.paging FOLDER ... --write-docs` writes this part. **Stretches** are true KV cache pressure of
two minutes and more; **told in time** is the share of them in which the alert fired before they were over, **delay**
its time after the onset, **firing** the share of their time in which its expression held. **After the end** are alerts
that began within a minute after the pressure was over, **false** those without any. Every engine is the only replica
of its model. **Wait** is what those who came waited on average, by the requests that waited over those admitted. The
lab's recordings begin with their pressure, so the exporter has just started there and knows no healthy time.

Run on all 328 episodes of the simulator and recordings, as they are, and on the 103 regimes of the lab without cards on
vLLM 0.33. **Varied** are its regimes on other servers, by seed. Each was run once before anything was changed for it:
seeds 31 and 32 paged in 91.4 % of 58 stretches at 15 s and 89.7 % at a scrape a minute, seed 33 in 27 and 26 of 29,
seed 34 in 22 of 27 at every interval. What was missed made people wait for 0 to 3 s on average; since [decision
0743](internals/decisions/0743-two-seconds-to-a-first-token.md) two seconds to the slowest first token in a hundred
count. Seeds 35 and 36 (`kv-*`; of 35 also `healthy-*` and `cap-*`) were run once, after it: 53 of 53 stretches at 15 s,
30 s and a scrape a minute, with medians of 30, 34 and 57 s (35) and 30, 45 and 45 s (36), none after the end, none
false; people waited for 1 s on average in the mildest. The tables of delays below are from before 0743.

**Before** the page read the queue (critical, all 328 episodes, any stretch): 63 of 72 told, many of them after their
end; firing 56 % of the time, median delay 143 s, at a scrape a minute 31 % and 296 s; in the lab 1 of 73.

**The other alerts** are right where what they are about held requests up when they began to fire, or had within 45 s:
`KVPressureQueueNotServed` anything but the KV cache, symptoms any trouble. **Episodes of half an hour** are simulated
servers with each cause for 25 minutes, healthy in each way that may look like trouble, or that start again: one to four
times within some minutes, in their pod, which Kubernetes counts, or in a new one, of which it counts none
(`bench/detection/long.py`; seeds from 200 on, on which nothing was chosen). An alert of restarts is right where there
were as many as it says. **Logs, sources and thresholds** are an hour each of a log file, of a source that fails, of an
exporter with thresholds of its own (`bench/detection/around.py`), with what looks alike in half of them: requests and
answers that speak of failures, lines from before the exporter began, libraries that were never there, outages shorter
than the alert says, overrides that change nothing. Lines of logs are those of vLLM that the reader was written for
(`tests/fixtures/logs`); failures are what the records of health show, not real outages. [The page of alerts](alerts.md)
has the sum for each.

"""

_LAB_INTRO: Final = """
`make lab` drives vLLM's own scheduler, KV cache manager and metrics on a virtual clock
([how](../tests/lab/README.md)) and records a page a second; `make bench-detection` judges them too. **The truth** of a
second is what the scheduler did: why it left each waiting request waiting, as shares of the queue, over 20 s. Seconds
in which two causes may be named are counted apart (*between*), as are those within 45 s of a change. **Wrong and
critical** are seconds with a `stuck` or `kv_cache_pressure` that may not be said. **Named**: stretches of 30 s or more
of one clear cause that were named before they were over, and how long after their beginning.
Two of the regimes cannot be seen from the page at all (`stuck-dropped`, `stuck-hang-idle`): they need a request of
one's own.

**Alerts** are evaluated as above, on the lab's pages scraped every 15 s. A recording lasts three to five minutes, so an
onset costs more of the recall here than in the simulator's eight minutes of pressure, and rules over 5 minutes have
hardly time to fire.

**Varied regimes** are other servers than those tuned on: `python -m tests.lab --vary SEED` (`tests/lab/vary.py`) runs
every regime with other sizes, loads and speeds, by up to 1.8 times to either side; what is true of them is again what
the scheduler did, which may be another cause than the one that the regime was written for. Seeds 1 to 3 of the table
have been looked at by now (seed 3 after its figure of 95.9 % was published). Three more were run once each, and what is
published of them was not tuned on:

- Seed 5: 96.1 % of 0.33's seconds right, KV found 35/35, 1 false KV stretch, and 93 s wrong and critical: 82 s of a
  sequence cap with a full pool, where even the scheduler has both reasons by turns, and 11 s of streams. It was looked
  at afterwards; nothing was changed for it.
- Seed 6: 97.6 % right, KV found 35/35, no false KV stretch, and 33 s wrong and critical, of a sequence cap with a pool
  that shared prefixes nearly fill. 198 of the wrong seconds are hangs of which no page can tell.
- Seed 7 (in the table): 93.3 % right, and 220 s wrong and critical, all of sequence caps in a cache that is all but
  full: 169 s with sliding windows, where one request more would have taken 38 % of the cache while it came in and 36 %
  was free, 50 s with shared prefixes. Other wrong seconds: prompts of a pooling model that compute, called a cap
  (173 s), idle streams at a cap, called deferred (130 s), hangs that no page shows (208 s).

**Where the page of an old vLLM does not say why requests wait** (before 0.21), what is left is told: `deferred` where
more adapters are asked for than may run, where most prompts' KV comes from elsewhere, or where requests that fit wait
for dozens of steps with no prompt being computed; else `unknown`. The last takes a prompt that waits at the head of the
line without chunked prefill for a grammar (`cap-head-of-line` at 0.12).

"""

_INTRO: Final = """# How well causes are found

Written by `python -m bench.detection --write-docs`; `make bench-detection` prints the same tables and fails when a bar
is missed. {episodes} episodes: {recordings} recordings of a real vLLM, labelled with what their client did, and
{simulated} seeded runs of the simulator, at least 40 of every cause. Every page goes through the same code as in
`kvpressure run`; a verdict is taken from every poll of every engine.

**The truth** of a simulated second is not the intention of its load but what the simulated scheduler knows
(`bench/detection/truth.py`): the share of the 20 s around it in which the head of the queue lacked blocks (at least
0.5: KV cache pressure; at most 0.1, and hardly one request in a hundred preempted: none), or only a place in the batch
(the sequence cap), how much longer than empty ones the steps took (0.7: compute; at most a third: not), whether the API
process was behind (host), whether the scheduler stood still (stuck). In between two causes either may be named; those
seconds are counted apart, as *between*. Seconds within 45 s of a change are *excluded*: a window of 60 s is then mostly
of the past. `unknown` is wrong from the 15th second. The third, and that one request in a hundred preempted may be
called KV pressure, were set after a first run had been seen: before, the same verdicts counted as one false KV stretch
in each of four variants and as 0.2 points fewer seconds right.

**KV found** counts stretches of clear KV pressure of at least 10 s that were named before they were 45 s over; **false
KV** counts stretches of KV verdicts that are neither in nor up to 45 s after any possible KV pressure. **Delay** runs
from the onset, as the scheduler knows it, to the first verdict.

**Variants**: every recording in all of them, every simulated episode as it is and in three of the others by turns. No
GPU data; utilization that reads 1 whenever a request runs; MIG (memory only); a fifth of the polls lost; counters of a
server that has run for a year; histograms with every sixth poll only, as in live operation; a restart of ten seconds
in the middle; and no GPU, lost polls, old counters and few names together.

**Alerts** are evaluated by a real Prometheus, every 15 s, on the same episodes scraped every 15 s, with `for` and
`keep_firing_for` applied as its rule engine does (a test compares them). `KVPressureCacheTooSmall` is the alert that is
shipped: expression and durations are read from the bundle, and the exporter's series that it asks for are those of its
page at each scrape, also while the engine does not answer. An evaluation sees the scrape of its own moment; in life the
newest one is up to 15 s old, which costs every alert 7 s more on average. Times within 45 s after KV pressure count
neither way. KV pressure lasts for 8 minutes in most simulated episodes, so that rules over 5 minutes can fire. GPU
memory is judged on episodes that have a GPU. Alerts that need most of a minute cannot fire in every recording: some
last only 20 s.

`KVPressureVLLMCacheTooSmall` is the alert of `kvpressure generate --flavour vllm-only` ([what that
is](vllm-only.md)): it reads what the rules that people copy read, vLLM's own series, and no exporter. **By seconds
between scrapes**: the same episodes with every second or fourth scrape, the first chosen by the episode's name, rules
generated for that interval (`--scrape-interval`), evaluated every 15 s as before. Its bar: a higher recall than every
copied rule on vLLM's series, with no more false episodes than any of them, at each interval. (A rule on GPU memory
needs an exporter, of another kind.) It is met since preemptions
between two scrapes count as two ([decision 0790](internals/decisions/0790-two-scrapes-count-a-preemption.md)).

Time in which an alert fires only because of its `keep_firing_for` counts for nothing: not as KV pressure found, not as
wrong, not as an episode, nor does it shorten a delay. It is there on purpose, so that pressure that comes and goes is
one alert, and nobody is told anew by it; but people do see it, so *kept too* is the precision (and, in the newer of
the tables, the recall) of all the time in which an alert is shown as firing. The bars are those of the warning, the
first that anybody hears: recall of 95 %, a median delay of 45 s, no false episode.

"""


def with_lab(text: str, tables: Sequence[Table]) -> str:
    """The page with the lab's tables at its end, instead of those that it had."""
    kept = text.split(f"\n{LAB_HEADING}\n", maxsplit=1)[0].rstrip("\n")
    shown = "\n".join(table.markdown() for table in tables)
    return f"{kept}\n\n{LAB_HEADING}\n{_LAB_INTRO}{shown}{_after(text, WORKING_SET_HEADING)}"


def with_working_set(text: str, table: Table) -> str:
    """The page with that table at its end, instead of the one that it had."""
    kept = text.split(f"\n{WORKING_SET_HEADING}\n", maxsplit=1)[0].rstrip("\n")
    shown = f"{kept}\n\n{WORKING_SET_HEADING}\n{_WORKING_SET_INTRO}{table.markdown()}"
    return shown + _after(text, SGLANG_HEADING)


def with_pages(text: str, tables: Sequence[Table]) -> str:
    """The page with what wakes people before the lab's part, instead of what it had of that."""
    kept, _, rest = text.partition(f"\n{PAGES_HEADING}\n")
    if not rest:
        kept, rest = text.split(f"\n{LAB_HEADING}\n", maxsplit=1)[0], text
    shown = "\n".join(table.markdown() for table in tables)
    return f"{kept.rstrip()}\n\n{PAGES_HEADING}\n{_PAGES_INTRO}{shown}{_after(rest, LAB_HEADING)}"


def lab_part(text: str) -> str:
    """The parts of a page that was written before that others write: pages and the lab; empty without them."""
    return _after(text, PAGES_HEADING) or _after(text, LAB_HEADING)


def _after(text: str, title: str) -> str:
    _, heading, part = text.partition(f"\n{title}\n")
    return heading + part


def document(tables: Sequence[Table], outcomes: Sequence[Outcome]) -> str:
    """The page's text."""
    recordings = sum(outcome.group == "recording" for outcome in outcomes)
    intro = _INTRO.format(episodes=len(outcomes), recordings=recordings, simulated=len(outcomes) - recordings)
    return intro + "\n".join(table.markdown() for table in tables)
