"""What a run prints: the timeline, the alerts, the verdicts that were wrong, and the bars."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from tests.e2e_vllm.judge import Row, wrong
from tests.e2e_vllm.observe import AlertEpisode, Look
from tests.e2e_vllm.run import Story

STEP_SECONDS = 10.0
HEAD = f"{'s':>5} {'phase':12} {'run':>5} {'wait':>5} {'p95':>5} {'KV':>5} {'blocked':>7}  cause (confidence)"


class Timeline:
    """Turns looks into one line per ten seconds, as they come."""

    def __init__(self) -> None:
        self._began: float | None = None
        self._looks: list[Look] = []

    def add(self, look: Look) -> str | None:
        """The line of the ten seconds that this look ends, else None."""
        self._began = self._began or look.t
        self._looks.append(look)
        if look.t - self._looks[0].t < STEP_SECONDS - 0.5:
            return None
        looks, self._looks = self._looks, []
        return line(looks, looks[-1].t - self._began)


def line(looks: Sequence[Look], t: float) -> str:
    """Means of the engine's own gauges over some seconds; the newest derived values; every verdict of that time."""
    pages = [look.page for look in looks if look.page]
    derived: Mapping[str, Any] = next((look.engine["derived"] for look in reversed(looks) if look.engine), {})
    running, waiting, usage = (
        _shown(None if not pages else sum(page[name] for page in pages) / len(pages))
        for name in ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")
    )
    p95 = _shown(derived.get("effective_batch_size_quantile", {}).get("0.95"))
    blocked = _shown(derived.get("admission_blocked_ratio"))
    return f"{t:5.0f} {looks[-1].phase:12} {running:>5} {waiting:>5} {p95:>5} {usage:>5} {blocked:>7}  {_causes(looks)}"


def _causes(looks: Sequence[Look]) -> str:
    found = Counter(look.cause for look in looks)
    last = {look.cause: look.engine["confidence"] for look in looks if look.engine}
    return ", ".join(
        "no engine"
        if cause is None
        else f"{cause} ({_shown(last[cause])}" + (f", {number} s)" if len(found) > 1 else ")")
        for cause, number in found.items()
    )


def _shown(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}" if value < 1.005 else f"{value:.1f}"


def summary(story: Story, rows: Sequence[Row]) -> Iterator[str]:
    """Everything after the timeline."""
    began = story.looks[0].t
    yield f"\nvLLM booted in {', '.join(f'{seconds:.0f} s' for seconds in story.boot_seconds)}"
    for visit in story.visits:
        tokens = visit.tally.output_tokens / max(1.0, visit.ended - visit.began)
        yield (
            f"{visit.phase.name:12} {visit.began - began:5.0f} to {visit.ended - began:5.0f} s: {visit.phase.load}; "
            f"{visit.tally.finished} requests, {tokens:.0f} tokens/s, {visit.tally.failed} failed"
        )
    yield "\nalerts (seconds of the run): pending, firing, only kept firing, gone; time not muted by its cause"
    yield from (_alert(one, story) for one in sorted(story.alerts, key=lambda one: one.active))
    yield from _wrong(story)
    if story.failures:
        yield f"\nrequests of this test that failed (vLLM is down for a while): {story.failures}"
    yield ""
    yield from (f"{'ok    ' if row.held else 'MISSED'} {row.what}: {row.seen}" for row in rows)
    missed = sum(not row.held for row in rows)
    yield f"\n{len(rows) - missed} of {len(rows)} bars held, {datetime.now(UTC):%Y-%m-%d %H:%M} UTC"


def _alert(one: AlertEpisode, story: Story) -> str:
    began = story.looks[0].t
    times = (one.active, one.firing, one.untrue, one.ended)
    shown = " ".join(f"{'-' if t is None else f'{t - began:.0f}':>6}" for t in times)
    muting = [other for other in story.alerts if other.name == "KVPressureCacheTooSmall" and other is not one]
    alone = sum(_fires(one, look.t) and not any(_fires(other, look.t) for other in muting) for look in story.looks)
    return f"{one.name:28} {one.severity:8} {shown} {alone:>5} s  {one.summary}"


def _fires(one: AlertEpisode, t: float) -> bool:
    return one.firing is not None and one.firing <= t and (one.ended is None or t < one.ended)


def _wrong(story: Story) -> Iterator[str]:
    """Each stretch of wrong verdicts outside the time a verdict may take, with the evidence at its beginning."""
    began = story.looks[0].t
    for visit in story.visits:
        right = " or ".join(sorted(visit.phase.causes))
        before: Look | None = None
        for look in wrong(story, visit):
            if before is None or look.t - before.t > 3.0 or look.cause != before.cause:
                yield f"\n{look.t - began:.0f} s, {visit.phase.name}: {look.cause} instead of {right}"
                yield f"  page: {look.page}"
                symptoms = {} if look.engine is None else look.engine["symptoms"]
                yield from (
                    f"  {name}: {one['state']}: {one['text']}"
                    for name, one in symptoms.items()
                    if one["value"] is not None
                )
            before = look
