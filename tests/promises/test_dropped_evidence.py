"""Less evidence never gives more verdict: a series that monitoring drops makes a verdict unknown, not another one.

Every recording of the lab, of tests/wild and of the traces, without each family that is read, and without each
histogram's buckets. `make dropped` tries them all, for a quarter of an hour; here it is one in thirty-two.
Exceptions have their reason, and none of them pages anybody, or is surer than the verdict by all that there is.
"""

import json
import lzma
import os
import re
from collections import Counter
from collections.abc import Iterator
from fnmatch import fnmatchcase
from itertools import islice
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from kvpressure.cli.replay import Replay, ReplayTarget
from kvpressure.engines.recordings import TraceError
from kvpressure.model.catalogue import CATALOGUE, NOT_KNOWN
from kvpressure.model.verdict import Cause
from kvpressure.runtimes.registry import TABLES
from tests.support.tools import FIXTURES
from tests.support.verdicts import THRESHOLDS

pytestmark = pytest.mark.recorded

MOST_CHANGED_RATIO: Final = 0.01
AS_SURE_RATIO: Final = 0.05
SECONDS: Final = 75
NAME: Final = re.compile(r"[a-zA-Z_:][\w:]*")
PARTS: Final = ("_bucket", "_sum", "_count", "_created")
ALL: Final = os.environ.get("DROPPED") == "all"
SHARE: Final = 32
READ: Final = frozenset(name for table in TABLES for name in table.all_names())
NO_ENGINE: Final = frozenset({"trtllm-old-page"})
RECORDINGS: Final = sorted(
    path
    for folder in ("lab", "wild", "traces")
    for path in (FIXTURES / folder).rglob("*.jsonl.xz")
    if "workingset" not in path.parts and path.name.split(".")[0] not in NO_ENGINE
)

_REASON: Final = "the series is the only one that says what those that wait wait for, and something else fits the rest"
_COUNTS: Final = "the series is the queue itself"
_AGO: Final = "the same is named some polls sooner or later"
_GIVEN: Final = "the verdict stays one of the cache, of another word: what holds it is said, or what it stops"

EXCEPTIONS: Final[dict[tuple[str, str], str]] = {
    ("decode-kv-backs-up-decode-*", "vllm:num_requests_waiting_by_reason"): _REASON,
    ("deferred-lora-*", "vllm:lora_requests_info"): _REASON,
    ("trickle-deadlock", "vllm:num_requests_waiting_by_reason"): _REASON,
    (
        "kv-json-*",
        "vllm:*",
    ): "those that do not fit are counted as deferred too, and only the fit test tells them apart",
    ("sglang-grammar", "sglang:num_grammar_queue_reqs"): _COUNTS,
    ("transfers-never-end", "sglang:num_decode_transfer_queue_reqs"): _COUNTS,
    ("ranks-in-lockstep", "sglang:num_decode_prealloc_queue_reqs"): _COUNTS,
    ("stuck-hang-*", "*:num_*"): _AGO,
    ("paused-keep-*", "vllm:num_requests_*"): _AGO,
    ("prompt-as-long-as-the-pool", "vllm:generation_tokens_total"): _AGO,
    ("prompt-as-long-as-the-pool", "vllm:prompt_tokens_total"): _AGO,
    ("seats-of-a-state-pool", "sglang:time_to_first_token_seconds"): _AGO,
    ("two-ranks", "vllm:*"): _AGO,
    ("three-answers-and-no-more", "vllm:generation_tokens_total"): _AGO,
    ("short-bursts", "vllm:num_preemptions_total"): "a burst is over sooner than what it preempted leaves the window",
    ("livelock-requeued-1s", "vllm:kv_cache_usage_perc"): "a hang is named before its loop could be seen: it is one",
    ("kv-stranded-*", "vllm:*"): _AGO,
    ("kv-lpm-*", "sglang:*"): _AGO,
    ("kv-reserved-*", "sglang:*"): _AGO,
    ("world-longanswer", "vllm:num_preemptions_total"): _AGO,
    ("h100-24-sessions", "vllm:kv_cache_usage_perc"): _AGO,
    ("offload-pinned-15min", "vllm:*"): _GIVEN,
    ("crawling-engine", "vllm:time_to_first_token_seconds_count"): "nothing else says that nobody is served",
    ("trickle-deadlock", "vllm:*"): "the trickle, or that no prompt grows, shows in nothing else; deferred is true",
    ("a-seat-left-empty", "sglang:time_to_first_token_seconds"): "both are right, and it changes between them anyway",
    ("bursts-at-a-full-pool", "vllm:request_prompt_tokens"): "prompts of one length: their mean is their length",
}


ALWAYS: Final = frozenset(
    {
        ("paused-keep-0.33.0", "http_requests_total"),
        ("idle-stream-0.33.0", "vllm:num_requests_waiting_by_reason"),
        ("slow-store", "vllm:num_requests_waiting_by_reason"),
        ("slow-store", "vllm:external_prefix_cache_hits_total"),
        ("hybrid-pages", "vllm:cache_config_info"),
        ("hybrid-pages", "vllm:prompt_tokens_total"),
        ("short-bursts", "vllm:num_preemptions_total"),
    }
)
"""Each was another verdict once; the first paged."""


def pages(path: Path) -> list[dict[str, object]]:
    """The first polls of a recording."""
    with lzma.open(path, "rt") as lines:
        return [json.loads(line) for line in islice(lines, SECONDS)]


class Said(NamedTuple):
    """A verdict, and how sure it is."""

    cause: Cause = NOT_KNOWN
    confidence: float = 0.0

    @property
    def pages(self) -> bool:
        return self.cause is Cause.STUCK or CATALOGUE[self.cause].of_cache


def verdicts(path: Path) -> dict[float, Said]:
    """What is said at each poll of a recording."""
    found: dict[float, Said] = {}
    for item in Replay(ReplayTarget("t"), THRESHOLDS).views(path):
        if not isinstance(item, TraceError):
            diagnosis = item[1][0].diagnosis if item[1] else None
            found[item[0].t] = Said(diagnosis.cause, diagnosis.confidence) if diagnosis else Said()
    return found


def without(page: str, names: frozenset[str]) -> str:
    """A page without the series of these names."""
    return "\n".join(line for line in page.split("\n") if (match := NAME.match(line)) is None or match[0] not in names)


def families(page: str) -> Iterator[tuple[str, frozenset[str]]]:
    """What can be dropped, with its series: each family that is read, and the buckets of each histogram."""
    names = {match[0] for line in page.split("\n") if (match := NAME.match(line)) and match[0] in READ}
    stems = {name.removesuffix("_bucket") for name in names if name.endswith("_bucket")}
    found: dict[str, set[str]] = {}
    for name in names:
        stem = next((name.removesuffix(part) for part in PARTS if name.endswith(part)), name)
        found.setdefault(stem if stem in stems else name, set()).add(name)
    for family in sorted(found):
        yield family, frozenset(found[family])
        if family in stems:
            yield f"{family}_bucket", frozenset({f"{family}_bucket"})


def excepted(recording: str, family: str) -> bool:
    """Whether a pair is listed with a reason."""
    return any(fnmatchcase(recording, one) and fnmatchcase(family, other) for one, other in EXCEPTIONS)


def changed(whole: dict[float, Said], less: dict[float, Said]) -> list[tuple[Said, Said]]:
    """The verdicts of another cause than `unknown` that is not the one by all evidence, with that."""
    pairs = [(whole.get(t, Said()), said) for t, said in less.items() if said.cause is not NOT_KNOWN]
    found = [(before, said) for before, said in pairs if said.cause is not before.cause]
    return found if len(found) > MOST_CHANGED_RATIO * len(less) else []


def counted(pairs: list[tuple[Said, Said]]) -> list[tuple[str, int]]:
    return Counter(
        f"{one.cause} {one.confidence:.2f} -> {other.cause} {other.confidence:.2f}" for one, other in pairs
    ).most_common()


@pytest.mark.parametrize("path", RECORDINGS, ids=lambda path: path.name.removesuffix(".jsonl.xz"))
def test_what_is_dropped_makes_no_other_verdict(path: Path, tmp_path: Path):
    rows, recording = pages(path), path.name.removesuffix(".jsonl.xz")
    place, whole = RECORDINGS.index(path), None
    wrong: dict[str, list[tuple[str, int]]] = {}
    worse: dict[str, list[tuple[str, int]]] = {}
    for index, (family, names) in enumerate(families(str(rows[-1]["page"]))):
        if not ALL and (recording, family) not in ALWAYS and (index + place) % SHARE:
            continue
        whole = whole or verdicts(path)
        made = ({**row, "page": without(str(row["page"]), names)} for row in rows)
        (tmp_path / "pages.jsonl").write_text("".join(json.dumps(row) + "\n" for row in made))
        less = verdicts(tmp_path / "pages.jsonl")
        if not (pairs := changed(whole, less)):
            continue
        if not excepted(recording, family):
            wrong[family] = counted(pairs)
            continue
        ever, surest = {said.cause for said in whole.values()}, max(said.confidence for said in whole.values())
        pairs = [
            (one, other)
            for one, other in pairs
            if other.confidence > surest + AS_SURE_RATIO or (other.pages and other.cause not in ever)
        ]
        if pairs:
            worse[family] = counted(pairs)
    assert wrong == {}
    assert worse == {}


def test_an_exception_is_of_a_recording_that_is_there():
    names = [path.name.removesuffix(".jsonl.xz") for path in RECORDINGS]
    assert [one for one, _ in EXCEPTIONS if not any(fnmatchcase(name, one) for name in names)] == []
