"""Less evidence never gives more verdict: a series that monitoring drops makes a verdict unknown, not another one."""

from __future__ import annotations

import json
import lzma
import re
from pathlib import Path
from typing import Final

import pytest

from kvpressure.cli.replay import Replay, ReplayTarget
from kvpressure.engines.recordings import TraceError
from kvpressure.model.catalogue import NOT_KNOWN
from tests.support.tools import FIXTURES
from tests.support.verdicts import THRESHOLDS

pytestmark = pytest.mark.recorded

MOST_CHANGED_RATIO: Final = 0.01
SECONDS: Final = 75
NAME: Final = re.compile(r"[a-zA-Z_:][\w:]*")
RECORDINGS: Final = (
    *("lab/kv-collapse-0.33.0", "lab/compute-long-prompt-0.33.0", "lab/cap-prefix-0.33.0"),
    "lab/sglang/cap-requests-0.5.23",
)
HISTOGRAMS: Final = (
    *("vllm:request_prompt_tokens", "vllm:time_to_first_token_seconds", "vllm:iteration_tokens_total"),
    *("sglang:time_to_first_token_seconds", "sglang:prompt_tokens_histogram"),
)
FAMILIES: Final = (
    *HISTOGRAMS,
    *("vllm:generation_tokens_total", "vllm:prompt_tokens_total", "vllm:kv_cache_usage_perc"),
    *("vllm:cache_config_info", "vllm:request_success_total", "sglang:realtime_tokens_total"),
)


def pages(path: Path) -> list[dict[str, object]]:
    """The first polls of a recording."""
    with lzma.open(path, "rt") as lines:
        return [json.loads(line) for line, _ in zip(lines, range(SECONDS), strict=False)]


def causes(rows: list[dict[str, object]], folder: Path) -> dict[float, str]:
    """The cause at each poll."""
    path = folder / "pages.jsonl.xz"
    with lzma.open(path, "wt", preset=0) as target:
        target.writelines(json.dumps(row) + "\n" for row in rows)
    found: dict[float, str] = {}
    for item in Replay(ReplayTarget("t"), THRESHOLDS).views(path):
        if not isinstance(item, TraceError):
            found[item[0].t] = item[1][0].diagnosis.cause if item[1] and item[1][0].diagnosis else NOT_KNOWN
    return found


def without(page: str, names: frozenset[str]) -> str:
    """A page without the series of these names."""
    return "\n".join(line for line in page.split("\n") if (match := NAME.match(line)) is None or match[0] not in names)


@pytest.mark.parametrize("recording", RECORDINGS)
@pytest.mark.parametrize("parts", [("", "_bucket", "_sum", "_count"), ("_bucket",)], ids=["family", "buckets"])
def test_what_is_dropped_makes_no_other_verdict(recording: str, parts: tuple[str, ...], tmp_path: Path):
    rows = pages(FIXTURES / f"{recording}.jsonl.xz")
    whole, wrong = causes(rows, tmp_path), {}
    for family in FAMILIES if "" in parts else HISTOGRAMS:
        names = frozenset(f"{family}{part}" for part in parts)
        less = causes([{**row, "page": without(str(row["page"]), names)} for row in rows], tmp_path)
        changed = [t for t, cause in less.items() if cause not in (NOT_KNOWN, whole.get(t))]
        if len(changed) > MOST_CHANGED_RATIO * len(whole):
            wrong[family] = len(changed)
    assert wrong == {}
