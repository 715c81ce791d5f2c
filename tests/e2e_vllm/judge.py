"""Holds a run against the bars: one row per thing that must be so."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tests.e2e_vllm.observe import AlertEpisode, Look
from tests.e2e_vllm.run import Story, Visit
from tests.e2e_vllm.scenario import ALL_OF_ONE, KV_ALERTS, PAGING, Bars

ALARMING = frozenset({"kv_cache_pressure", "stuck"})
MISSED_ERROR_RATIO = 0.1
"""Turns under way at the end are counted by one side alone."""


@dataclass(frozen=True, slots=True)
class Row:
    """One bar: whether it was held, and what was seen."""

    held: bool
    what: str
    seen: str


def judge(story: Story, bars: Bars) -> list[Row]:
    """All rows."""
    rows: list[Row] = []
    for visit in story.visits:
        rows += _verdict(story, visit, bars)
        rows += _evidence(story, visit)
        rows += _alerts(story, visit)
        rows += _commands(visit)
        rate = visit.page_bytes_per_second
        held = rate is not None and rate <= bars.page_bytes_per_second
        seen = f"{rate or 0:.0f} B/s; a full page has {story.full_page_bytes} B"
        rows.append(Row(held, f"{visit.phase.name}: page bytes at most {bars.page_bytes_per_second:.0f} B/s", seen))
    return [*rows, *_plan(story), *_down(story), *_sources(story), *_kv_events(story)]


def _kv_events(story: Story) -> Iterator[Row]:
    if (read := story.kv_events) is None:
        return
    counts = read.counts
    bad = {name: many for name in ("bad", "unknown", "oversized", "skipped") if (many := counts.get(name))}
    held = bool(counts.get("stored") and counts.get("removed")) and not bad
    seen = ", ".join(f"{name} {many:.0f}" for name, many in counts.items()) or "nothing"
    yield Row(held, "KV events: blocks stored and removed are read, and none is bad or unknown", seen)
    if not read.sessions:
        return
    seen = f"{read.missed_tokens:,.0f} of {read.again_tokens:,.0f}"
    held = abs(read.missed_tokens - read.again_tokens) <= MISSED_ERROR_RATIO * read.again_tokens
    yield Row(held, "KV events: capacity misses are what turns had to compute again", seen)
    pools = ", ".join(f"{ratio:.2f} at {pool}" for pool, ratio in read.hit_ratio_by_pool.items())
    held = read.hit_ratio is not None and bool(pools)
    yield Row(held, "KV events: the hit ratio by size of the pool", f"{read.hit_ratio}; {pools or 'none'}")
    seen = f"of {read.token_ids} of {read.sessions} sessions"
    yield Row(not read.token_ids, "KV events: the exporter neither keeps nor writes token ids", seen)


def settled(story: Story, visit: Visit) -> list[Look]:
    """The seconds of a phase after the time that a verdict may take."""
    return [look for look in story.looks if visit.began + visit.phase.verdict_seconds <= look.t <= visit.ended]


def wrong(story: Story, visit: Visit) -> list[Look]:
    """The settled seconds with another verdict than the phase's."""
    return [look for look in settled(story, visit) if look.cause not in visit.phase.causes]


def verdict_delay(story: Story, visit: Visit) -> float | None:
    """Seconds from the phase's first request to its right verdict, None without one."""
    seen = [look.t for look in story.looks if visit.began <= look.t <= visit.ended and look.cause in visit.phase.causes]
    # A phase whose verdict is that of the phase before has it from the first second.
    return seen[0] - visit.began if seen else None


def _verdict(story: Story, visit: Visit, bars: Bars) -> Iterator[Row]:
    right = " or ".join(sorted(visit.phase.causes))
    delay = verdict_delay(story, visit)
    seen = "never" if delay is None else f"after {delay:.0f} s"
    within = visit.phase.verdict_seconds
    yield Row(delay is not None and delay <= within, f"{visit.phase.name}: verdict {right} within {within:.0f} s", seen)
    looks, bad = settled(story, visit), wrong(story, visit)
    if looks:
        ratio = 1 - len(bad) / len(looks)
        others = ", ".join(sorted({str(look.cause) for look in bad}))
        yield Row(
            ratio >= bars.right_ratio,
            f"{visit.phase.name}: it stays in {bars.right_ratio:.0%} of the seconds after that",
            f"{ratio:.1%} of {len(looks)} s" + (f"; {others} else" if others else ""),
        )


def _evidence(story: Story, visit: Visit) -> Iterator[Row]:
    """Of the settled seconds with the right verdict: the detail, and the words in the evidence."""
    phase = visit.phase
    engines = [look.engine for look in settled(story, visit) if look.engine and look.cause in phase.causes]
    if phase.details:
        found = Counter(str(engine["detail"]) for engine in engines)
        held = bool(found) and set(found) <= phase.details
        what = f"{phase.name}: the detail is {' or '.join(sorted(phase.details))}"
        yield Row(held, what, ", ".join(f"{detail} {number} s" for detail, number in found.items()) or "never")
    if phase.says:
        told = [text for engine in engines for text in _sentences(engine) if phase.says in text]
        yield Row(bool(told), f'{phase.name}: the evidence says "{phase.says}"', told[-1] if told else "never")


def _sentences(engine: Mapping[str, Any]) -> Iterator[str]:
    yield engine["grounds"] or ""
    yield from (symptom["text"] for symptom in engine["symptoms"].values())


def _alerts(story: Story, visit: Visit) -> Iterator[Row]:
    name, wanted, within = visit.phase.name, visit.phase.fires, visit.phase.fires_within_seconds
    episodes = [one for one in story.alerts if one.name == wanted and one.firing]
    if within is not None:
        delays = [one.firing - visit.began for one in episodes if one.firing and one.firing >= visit.began]
        seen = f"after {min(delays):.0f} s" if delays else "never"
        yield Row(bool(delays) and min(delays) <= within, f"{name}: {wanted} fires within {within:.0f} s", seen)
    if (within := visit.phase.resolves_within_seconds) is not None:
        ends = [one.ended for one in episodes]
        last = None if not ends or None in ends else max(end for end in ends if end) - visit.ended
        seen = "never" if last is None else f"after {last:.0f} s"
        held = last is not None and last <= within
        yield Row(held, f"{name}: {wanted} resolves within {within:.0f} s of the end of the load", seen)
    yield _others(story, visit)


def _others(story: Story, visit: Visit) -> Row:
    """What became true in the phase, or is true once things have settled, and should not be."""
    wanted = visit.phase.fires
    # Pressure has symptoms, which have alerts of their own; nobody is told them while KVPressureCacheTooSmall fires.
    # A server alone is all of its deployment: what makes a ticket for one replica pages for it too.
    allowed = KV_ALERTS if wanted in KV_ALERTS else frozenset({wanted, ALL_OF_ONE.get(wanted, wanted)})
    false = {f"{one.name} ({one.severity})" for one in story.alerts if one.name not in allowed and _false(one, visit)}
    true = {one for look in settled(story, visit) for one in look.alerts if one[1] in PAGING and one[0] not in allowed}
    bad = {(alert, severity) for alert, severity in true if alert in KV_ALERTS or severity == "critical"}
    false |= {f"{alert} ({severity})" for alert, severity in bad}
    others = ", ".join(sorted({alert for alert, _ in true - bad}))
    seen = (", ".join(sorted(false)) or "none") + (f"; other warnings: {others}" if others else "")
    but = f" but {wanted}" if wanted else ""
    return Row(not false, f"{visit.phase.name}: no KV alert and nothing critical{but} becomes true and fires", seen)


def _false(alert: AlertEpisode, visit: Visit) -> bool:
    """Whether it became true in this phase (the first seconds still show the phase before) and fired."""
    pages = alert.severity == "critical" or (alert.name in KV_ALERTS and alert.severity in PAGING)
    return pages and alert.firing is not None and visit.began <= alert.active <= visit.ended


def _commands(visit: Visit) -> Iterator[Row]:
    if visit.phase.triage_exit is not None:
        code, cause = visit.triage or (-1, "not run")
        held = code == visit.phase.triage_exit
        yield Row(held, f"{visit.phase.name}: triage ends with {visit.phase.triage_exit}", f"{code} ({cause})")
    if visit.triage_while_down is not None:
        code = visit.triage_while_down
        yield Row(code == 2, f"{visit.phase.name}: triage ends with 2 while vLLM is down", str(code))


def _plan(story: Story) -> Iterator[Row]:
    planned = {visit.phase.name for visit in story.visits if visit.phase.plans}
    if not planned:
        return
    batches = [look.page["num_requests_running"] for look in story.looks if look.page and look.phase in planned]
    plan = story.plan.get("max_num_seqs")
    mean = sum(batches) / len(batches) if batches else 0.0
    seen = f"max_num_seqs {plan}, {story.plan.get('tokens_per_request')} of {story.plan.get('pool_tokens')} tokens each"
    held = plan is not None and 1 <= plan <= mean + 1
    yield Row(held, "plan --url gives what fits, about the batch that ran", f"{seen}; on average {mean:.1f} ran")


def _down(story: Story) -> Iterator[Row]:
    began, ended = story.down
    looks = [look for look in story.looks if began <= look.t <= ended]
    if looks:
        causes = [str(look.cause) for look in looks]
        seen = ", ".join(f"{cause} {causes.count(cause)} s" for cause in dict.fromkeys(causes))
        yield Row(not ALARMING & set(causes), "vLLM killed and booting: no alarming verdict", seen)
        stale = [look for look in looks if look.t > began + 15.0]
        held = not any(look.engine and look.engine["answering"] for look in stale)
        yield Row(
            held,
            "15 s after the kill: the verdict is that of an engine that does not answer",
            "so" if held else "not so",
        )
        fired = [
            one for one in story.alerts if one.firing and one.severity in PAGING and began <= one.active <= ended + 60
        ]
        yield Row(
            not fired,
            "no warning and nothing critical over the restart",
            ", ".join(one.name for one in fired) or "none",
        )


def _sources(story: Story) -> Iterator[Row]:
    found = [one for one in story.targets.get("sources", []) if one["source"] == "engine"]
    up = bool(found) and all(one["up"] for one in found)
    yield Row(up, "/targets shows the engine up at the end", "; ".join(f"errors {one['errors']}" for one in found))
