"""Recordings of the lab: one page a second with the truth of that second, in the project's own format, and a summary.

`t`, `label` and `page` are those of `kvpressure record`; `truth` beside them says which causes may be named, the detail
and how many ran and waited, and what the prefix cache did. The first line also has `regime`: what was run. Where it was
run with a pool without limit too, each second has `without_limit`, and `regime` what clients got in both runs.
"""

import json
import lzma
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.lab.ledger import Cached
from tests.lab.regime import Regime
from tests.lab.truth import Book, Second, Truth, truths
from tests.lab.world import Answer, Result

LEAST_SHARE: Final = 0.2
"""Of its seconds a regime has to show the cause that it is about."""


@dataclass(frozen=True, slots=True)
class Played:
    """A run that is over."""

    regime: Regime
    book: Book
    result: Result


def write(
    regime: Regime,
    version: str,
    book: Book,
    result: Result,
    folder: Path,
    without_limit: Played | None = None,
    more: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Write the recording, with `more` about it in its first line; the summary that came out."""
    told = truths(book.seconds[: regime.seconds])
    folder.mkdir(parents=True, exist_ok=True)
    about: dict[str, Any] = {"name": regime.name, "version": version, "family": regime.family, "rows": regime.rows}
    about |= more or {}
    if regime.declared:
        about["declared"] = {"kv_watermark_ratio": regime.flags.watermark}
    if without_limit is not None:
        given = Played(regime, book, result)
        about |= {"given": cache_numbers(given), "without_limit": cache_numbers(without_limit)}
    with lzma.open(folder / f"{regime.name}.jsonl.xz", "wt", preset=1) as file:
        for number, page in enumerate(result.pages):
            truth = told[page.second]
            record = {"t": round(page.t, 3), "label": truth.label, "truth": truth.record(), "page": page.text}
            if without_limit is not None:
                record["truth"]["without_limit"] = _unlimited(without_limit.book.seconds[page.second])
            file.write(json.dumps(record | ({"regime": about} if not number else {}), separators=(",", ":")) + "\n")
    return {
        **about,
        "truth": _histogram(told),
        **numbers(result, regime.seconds),
        "failed": _failed(regime, told, result) or _cache_failed(book, without_limit),
    }


def numbers(result: Result, seconds: int) -> dict[str, Any]:
    """What the clients got."""
    ended = [(answer, answer.ended) for answer in result.answers if answer.ok and answer.ended is not None]
    whole = [end.seconds for _, end in ended]
    first = [end.first_token_seconds for _, end in ended if end.first_token_seconds is not None]
    tokens = sum(end.tokens for _, end in ended)
    asked = len(result.answers) + result.unfinished
    return {
        "done": len(ended),
        "refused_or_given_up": sum(not answer.ok for answer in result.answers),
        "unfinished": result.unfinished,
        "requests_per_second": round(len(ended) / seconds, 3),
        "tokens_per_second": round(tokens / seconds, 1),
        "latency_p50": _quantile(whole, 0.5),
        "latency_p95": _quantile(whole, 0.95),
        "first_token_p95": _quantile(first, 0.95),
        "within_60s": round(sum(value <= 60 for value in whole) / max(1, asked), 3),
        "preempted": result.preempted,
        "pages": len(result.pages),
    }


def cache_numbers(played: Played, since: int | None = None) -> dict[str, Any]:
    """What the prefix cache did and what clients got from the second `since` on; None: once the first have all come.

    Tokens are per second. `again_ratio`: of the computed prompt tokens, those that were evicted before; `again_work`:
    the share of the time that computing them takes. `age`: mean seconds from a block's last use to its eviction, which
    lies between `age_least` and `turnover`, seconds in which the free tokens are written over; None: nothing was.
    """
    regime = played.regime
    warm = warm_seconds(regime) if since is None else since
    seconds = played.book.seconds[warm : regime.seconds]
    cached, state = Cached(), Counter[str]()
    for second in seconds:
        cached.add(second.cached)
        state.update(second.state)
    counted = len(seconds)
    count = {name: cached.count[name] / counted for name in ("asked", "found", "computed", "again", "generated")}
    first = [
        answer.ended.first_token_seconds
        for answer in played.result.answers
        if answer.ended is not None and answer.ended.first_token_seconds is not None
        if answer.t - answer.ended.seconds >= played.book.begin + warm
    ]
    pool, free = (regime.flags.num_gpu_blocks - 1) * regime.flags.block_size, state["free"] / counted
    written = count["computed"] + count["generated"]
    return {
        "pool": pool,
        "hits": _ratio(count["found"], count["asked"]),
        "tokens_per_second": round(count["generated"], 1),
        "prompts_per_second": round(count["computed"], 1),
        "first_token_mean": round(statistics.fmean(first), 3) if first else None,
        "first_token_p95": _quantile(first, 0.95),
        "running": round(state["running"] / counted, 2),
        "waiting": round(state["waiting"] / counted, 2),
        "usage": round(1 - free / pool, 3),
        "again_ratio": _ratio(count["again"], count["computed"]),
        "again_work": round(count["again"] * regime.cost.prefill_token_seconds, 3),
        "evicted": cached.count["evicted"],
        "age_least": _ratio(free, written + count["found"]),
        "age": round(statistics.fmean(cached.ages), 2) if cached.ages else None,
        "turnover": _ratio(free, written),
        "kept_by": dict(cached.kept_by),
    }


def warm_seconds(regime: Regime) -> int:
    """Until then the first clients come, and most of what they ask for nobody has asked for before."""
    return min(60, regime.seconds // 4)


def _ratio(part: float, whole: float) -> float | None:
    return round(part / whole, 3) if whole else None


def _unlimited(second: Second) -> dict[str, int]:
    return {name: second.cached.count[name] for name in ("asked", "found", "computed", "generated")}


def goodput(answers: Sequence[Answer], seconds: int, limit_seconds: float) -> float:
    """Requests a second that were answered in full within the limit."""
    return sum(answer.ok and answer.seconds <= limit_seconds for answer in answers) / seconds


def _histogram(told: Sequence[Truth]) -> dict[str, int]:
    """Seconds by label and detail; `?` where more than one cause may be named."""
    words = (
        f"{truth.label}{'/' if truth.detail else ''}{truth.detail}{'?' * (len(truth.accepted) > 1)}" for truth in told
    )
    return dict(Counter(words).most_common())


def _failed(regime: Regime, told: Sequence[Truth], result: Result) -> str:
    """Why the run does not show what it should; empty when it does."""
    if result.checks:
        return f"{len(result.checks)} pages contradict the scheduler: {result.checks[0]}"
    labels = Counter(truth.label for truth in told)
    if regime.expect and labels[regime.expect] < LEAST_SHARE * len(told):
        return f"{regime.expect} is hardly ever true: {dict(labels)}"
    return ""


def _cache_failed(book: Book, without_limit: Played | None) -> str:
    """Why the books of the prefix cache cannot be right; empty when they can."""
    count: Counter[str] = Counter()
    under_way = 0
    for second in book.seconds:
        count.update(second.cached.count)
        under_way = under_way if second.cached.under_way is None else second.cached.under_way
    booked = count["found"] + count["computed"] + count["dropped"] + under_way
    if booked != count["asked"]:
        return f"{count['asked']} prompt tokens were asked for, {booked} are booked"
    if without_limit is not None:
        checks = without_limit.result.checks
        evicted = sum(second.cached.count["evicted"] for second in without_limit.book.seconds)
        return checks[0] if checks else f"the pool without limit evicted {evicted} blocks" if evicted else ""
    return ""


def _quantile(values: Sequence[float], share: float) -> float | None:
    if len(values) < 2:
        return round(values[0], 2) if values else None
    return round(statistics.quantiles(values, n=100, method="inclusive")[round(share * 100) - 1], 2)
