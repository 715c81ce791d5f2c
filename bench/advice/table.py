"""The tables of docs/internals/accuracy/advice.md, and whether its bars are held."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import Final

from bench.advice.changes import Key
from bench.advice.judge import Done, Measured, Row

MAX_LOSS: Final = 0.03
LEAST_SHARE: Final = 0.9
TOKENS_ERROR: Final = 0.10
LATENCY_ERROR: Final = 0.25
CPU_SECONDS: Final = 0.5

_NAMES: Final = {
    "cap_prompt": "prompts at most {:.0f}",
    "cap_output": "answers at most {:.0f}",
    "max_num_seqs": "max_num_seqs {:.0f}",
    "max_num_batched_tokens": "max-num-batched-tokens {:.0f}",
    "watermark": "watermark {:g}",
    "kv_cache_dtype": "KV in 8 bits",
    "add_replica": "{:.0f} servers",
    "short_first": "prompts up to {:.0f} first",
    "prefix_caching": "prefix caching",
    "kv_offloading": "{:.0f} GiB of host memory",
    "max_loras": "max_loras {:.0f}",
}


def document(rows: Sequence[Row], checks: Mapping[str, tuple[bool, bool]]) -> str:
    """A block of rows for each regime: as it is, each action alone, all together, the best set, what was declined."""
    lines = [
        "| regime | what was done | tokens/s predicted | tokens/s | p95 s predicted | p95 s | goodput /s | checks |",
        "|---|---|--:|--:|--:|--:|--:|---|",
    ]
    for row in rows:
        lines += _rows(row, checks.get(row.name))
    return "\n".join(lines) + "\n"


def _rows(row: Row, checks: tuple[bool, bool] | None) -> Iterator[str]:
    yield _line(row.name, "nothing" if not row.reason else f"nothing: {row.reason}", None, row.before)
    for done in row.alone if len(row.alone) > 1 else ():
        yield _line("", _words(done.changes), done, done.after)
    if row.together:
        told = "" if checks is None else f"{_yes(checks[0])} → {_yes(checks[1])}"
        yield _line("", f"**{_words(row.printed)}**", row.together, row.together.after, told)
    if row.best_after is not None and row.best not in (row.printed, ()):
        yield _line("", f"best: {_words(row.best)}", None, row.best_after)
    for done in row.declined:
        yield _line("", f"not advised: {_words(done.changes)}", done, done.after)


def _line(name: str, what: str, done: Done | None, after: Measured, checks: str = "") -> str:
    p95 = "-" if after.latency_p95 is None else f"{after.latency_p95:.1f}"
    predicted = ("", "") if done is None else (f"{done.tokens_expected:.0f}", f"{done.latency_expected:.1f}")
    cells = (
        name,
        what,
        predicted[0],
        f"{after.tokens_per_second:.0f}",
        predicted[1],
        p95,
        f"{after.goodput:.2f}",
        checks,
    )
    return f"| {' | '.join(cells)} |"


def _yes(value: bool) -> str:
    return "true" if value else "false"


def _words(changes: Key) -> str:
    return ", ".join(_NAMES[kind].format(value) for kind, value in changes) or "nothing"


def summary(rows: Sequence[Row], checks: Mapping[str, tuple[bool, bool]], *, searched: bool) -> tuple[str, int]:
    """The bars and what was measured against them, and how many are missed."""
    advised = [done for row in rows for done in (*row.alone, *([row.together] if row.together else []))]
    every = advised + [done for row in rows for done in row.declined]
    worst = max(((row.loss(done), row.name, done) for row in rows for done in row.alone), key=lambda one: one[0])
    shares = [(share, row.name) for row in rows if (share := row.share_of_best) is not None]
    least = min(shares)
    tokens = median(done.tokens_error for done in advised)
    latencies = median(error for done in advised if (error := done.latency_error) is not None)
    slowest = max(rows, key=lambda row: row.cpu_seconds)
    usual = median(row.cpu_seconds for row in rows)
    all_tokens = median(done.tokens_error for done in every)
    turned = sum(not before and after for before, after in checks.values())
    bars = [
        (
            "no printed action loses more than 3 % of the goodput",
            worst[0] <= MAX_LOSS,
            f"worst {-worst[0]:+.1%} ({worst[1]}: {_words(worst[2].changes)})",
        ),
        (
            "the printed set reaches 90 % of the goodput of the best set of the same changes",
            least[0] >= LEAST_SHARE,
            f"{sum(share >= LEAST_SHARE for share, _ in shares)} of {len(shares)}, least {least[0]:.0%} ({least[1]})",
        ),
        (
            "median error of predicted tokens/s at most 10 %",
            tokens <= TOKENS_ERROR,
            f"{tokens:.1%}; with what was not advised {all_tokens:.1%}",
        ),
        ("median error of predicted p95 latency at most 25 %", latencies <= LATENCY_ERROR, f"{latencies:.1%}"),
        (
            f"an advice takes at most {CPU_SECONDS:g} s of CPU",
            slowest.cpu_seconds <= CPU_SECONDS,
            f"median {usual:.2f} s, worst {slowest.cpu_seconds:.2f} s ({slowest.name})",
        ),
        ("recovery checks false before and true after", turned == len(checks), f"{turned} of {len(checks)} regimes"),
    ]
    if not searched:
        bars[1] = (bars[1][0], False, "not searched: only what is advised was run")
    lines = ["| bar | held | measured |", "|---|---|---|"]
    lines += [f"| {name} | {'yes' if held else '**no**'} | {told} |" for name, held, told in bars]
    return "\n".join(lines), sum(not held for _, held, _ in bars)
