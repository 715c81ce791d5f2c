"""Recordings of the lab: one page a second with the truth of that second, in the project's own format, and a summary.

`t`, `label` and `page` are those of `kvpressure record`; `truth` beside them says which causes may be named, the detail
and how many ran and waited. The first line also has `regime`: what was run.
"""

from __future__ import annotations

import json
import lzma
import statistics
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from tests.lab.regime import Regime
from tests.lab.truth import Book, Truth, truths
from tests.lab.world import Answer, Result

LEAST_SHARE: Final = 0.2
"""Of its seconds a regime has to show the cause that it is about."""


def write(regime: Regime, version: str, book: Book, result: Result, folder: Path) -> dict[str, Any]:
    """Write the recording; the summary that came out."""
    told = truths(book.seconds[: regime.seconds])
    folder.mkdir(parents=True, exist_ok=True)
    about: dict[str, Any] = {"name": regime.name, "version": version, "family": regime.family, "rows": regime.rows}
    if regime.declared:
        about["declared"] = {"kv_watermark_ratio": regime.flags.watermark}
    with lzma.open(folder / f"{regime.name}.jsonl.xz", "wt", preset=1) as file:
        for number, page in enumerate(result.pages):
            truth = told[page.second]
            record = {"t": round(page.t, 3), "label": truth.label, "truth": truth.record(), "page": page.text}
            file.write(json.dumps(record | ({"regime": about} if not number else {}), separators=(",", ":")) + "\n")
    return {
        **about,
        "truth": _histogram(told),
        **numbers(result, regime.seconds),
        "failed": _failed(regime, told, result),
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


def _quantile(values: Sequence[float], share: float) -> float | None:
    if len(values) < 2:
        return round(values[0], 2) if values else None
    return round(statistics.quantiles(values, n=100, method="inclusive")[round(share * 100) - 1], 2)
