"""`python -m bench.detection.apart [FOLDER...]`: verdicts on pairs of a prefill and a decode engine.

The recordings are made by `python -m tests.lab.apart`. Both engines of a pair go through one pipeline, as in
`kvpressure run`. Judged from the second minute on: each engine's verdicts by what its scheduler did, what the two
verdicts name together by what gains most in the counterfactuals, and roles by what the engines are. Advice at the end
is wrong where it changes a side that does not limit. Idle and healthy count as one: both ask nothing of anybody.
`--write-docs` writes the section of docs/internals/accuracy/detection.md.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from bench.detection.lab import LAB, records
from bench.written import write_part
from kvpressure.advice.advise import Case, Place, advise_on
from kvpressure.cli.replay import ReplayTarget
from kvpressure.config.thresholds import load_thresholds
from kvpressure.engine_state import Pipeline, PipelineSettings
from kvpressure.engines.reader import PageReader
from kvpressure.model.environment import DeclaredLimit
from kvpressure.model.verdict import Cause
from kvpressure.model.view import CALM, EngineView, decode_side_of, peers_of, role_of
from tests.lab.apart import WARM_SECONDS
from tests.lab.pairs import SIDES, side_of

THRESHOLDS: Final = load_thresholds()
CHANGE_NOTHING: Final = frozenset({"apply", "measure", "see_decode_side", "see_what_is_waited_for", "verify"})
ACTS_ON: Final = {"decode_replica": "decode", "transfer": "transfer"}
"""What an action changes, where it is not the engine that it is advised of."""
SIDE_OF: Final = {"decode_kv": "decode", "prefill_kv": "prefill", "prefill": "prefill", "transfer": "transfer"}
"""Before it the section is written by hand."""


@dataclass(slots=True)
class Found:
    """What came of one pair, in seconds; `advice` by whether what it changes is the side that limits."""

    name: str
    limits: str
    named: Counter[str] = field(default_factory=Counter)
    cells: Counter[tuple[str, str]] = field(default_factory=Counter)
    clear: int = 0
    wrong: int = 0
    roles: Counter[str] = field(default_factory=Counter)
    advice: Counter[str] = field(default_factory=Counter)
    advised: dict[str, tuple[str, ...]] = field(default_factory=dict)


def named(verdicts: Mapping[str, tuple[Cause, str]]) -> str:
    """Return what limits the pair by the verdicts, in the counterfactuals' words; of a side, by its first not calm."""
    worst: dict[str, tuple[Cause, str]] = {}
    for engine, verdict in verdicts.items():
        if worst.setdefault(side_of(engine), verdict)[0] in CALM:
            worst[side_of(engine)] = verdict
    (prefill, detail), (decode, _) = worst["prefill"], worst["decode"]
    if decode is Cause.KV_CACHE_PRESSURE:
        return "decode_kv"
    if decode is Cause.DEFERRED:
        return "transfer"
    if prefill is Cause.KV_CACHE_PRESSURE:
        return "decode side" if detail == "held_for_transfer" else "prefill_kv"
    if prefill is Cause.COMPUTE_BOUND:
        return "prefill"
    return "none" if {prefill, decode} <= CALM else f"{prefill}/{decode}"


def judged(folder: Path, about: Mapping[str, Any], *, flags: bool = True) -> Found:
    """Replay a pair of recordings; without `flags` nobody has read how the engines were started."""
    found = Found(about["name"], about["limits"])
    pipeline = Pipeline(PipelineSettings(), THRESHOLDS)
    last: dict[str, EngineView] = {}
    engines = about.get("engines", SIDES)
    for number, pair in enumerate(_pairs(folder, found.name, engines, pipeline, flags=flags)):
        last |= {side: view for side, (view, _) in pair.items()}
        if number < WARM_SECONDS:
            continue
        for side, (view, record) in pair.items():
            role = role_of(view.derived)
            found.roles["right" if role == side_of(side) else "wrong" if role else "not known"] += 1
            _count(found, side, view, record)
        words = {side: (one.diagnosis.cause, one.diagnosis.detail) for side, one in last.items() if one.diagnosis}
        found.named[named(words)] += 1
    for side, view in last.items():
        _advice(found, side, view, [one for one in last.values() if one is not view])
    return found


def _count(found: Found, side: str, view: EngineView, record: Mapping[str, Any]) -> None:
    truth = record["truth"]
    if view.diagnosis is None or not truth["clear"]:
        return
    cause, label = view.diagnosis.cause, record["label"]
    found.clear += 1
    if cause not in truth["accepted"] and not {cause, Cause(label)} <= CALM:
        found.wrong += 1
        found.cells[f"{side_of(side)}: {label}", str(cause)] += 1


def _advice(found: Found, side: str, view: EngineView, others: list[EngineView]) -> None:
    assert view.diagnosis is not None
    place = Place(target=view.key.target, model_name=view.key.model_name, runtime=view.runtime)
    about = view.diagnosis, view.derived, view.limits, THRESHOLDS, place, view.observed, peers_of(view, others)
    actions = advise_on(Case(*about, decode_side=decode_side_of(view, others)))
    found.advised[side] = tuple(one.key for one in actions)
    for key in found.advised[side]:
        if key not in CHANGE_NOTHING:
            acts_on = ACTS_ON.get(key, side_of(side))
            found.advice["right" if acts_on == SIDE_OF.get(found.limits) else f"wrong: {side} {key}"] += 1


def _pairs(
    folder: Path, name: str, engines: Sequence[str], pipeline: Pipeline, *, flags: bool
) -> Iterator[dict[str, tuple[EngineView, dict[str, Any]]]]:
    """Yield the views of each second and its records, by engine."""
    rows = {engine: list(records(folder / f"{name}-{engine}.jsonl.xz")) for engine in engines}
    readers = {engine: PageReader() for engine in engines}
    targets = {}
    for side, lines in rows.items():
        declared = lines[0]["regime"].get("declared", {})
        limits = tuple(DeclaredLimit(limit, value, "flags") for limit, value in declared.items()) if flags else None
        targets[side] = ReplayTarget(f"{side}-0", limits=limits)
    for second in zip(*rows.values(), strict=False):
        made = {}
        for side, record in zip(rows, second, strict=True):
            page = readers[side].read(record["page"].encode(), record["t"])
            for view in pipeline.on_page(targets[side], page):
                made[side] = (view, record)
        yield made


def main() -> int:
    """Judge, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="*", type=Path, default=sorted((LAB / "apart").glob("*")))
    parser.add_argument(
        "--write-docs", action="store_true", help="write the section of docs/internals/accuracy/detection.md"
    )
    options = parser.parse_args()
    found: dict[tuple[str, str], list[Found]] = {}
    for folder in options.folders:
        for line in (folder / "truth.jsonl").read_text().splitlines():
            for roles in ("flags", "metrics"):
                about = json.loads(line)
                one = judged(folder, about, flags=roles == "flags")
                each = Counter(map(side_of, about.get("engines", SIDES)))
                several = f", {each['prefill']} + {each['decode']} engines" if each.total() > 2 else ""
                found.setdefault((f"{folder.name}{several}", roles), []).append(one)
                print(f"{one.name} ({roles}): limits {one.limits}; named {dict(one.named.most_common(4))}")
                print(f"  roles {dict(one.roles)}; {one.wrong} of {one.clear} wrong {dict(one.cells.most_common(3))}")
                print(f"  advised {one.advised} {dict(one.advice)}", flush=True)
    text = tables(found)
    print(text)
    if options.write_docs:
        write_part("detection.md", "bench.detection.apart", text)
    return 0


def tables(found: Mapping[tuple[str, str], Sequence[Found]]) -> str:
    """Return the figures by vLLM's version and what roles are known by; what is named by what limits; wrong cells."""
    rows = [
        "| vLLM | roles by | pairs (seeds) | clear s | wrong | named right | role known | role wrong | advice wrong |",
        "| --- | --- | --: | --: | --: | --: | --: | --: | --: |",
    ]
    for (version, by), some in found.items():
        named_ = sum((one.named for one in some), Counter[str]())
        roles, advice = (sum((getattr(one, key) for one in some), Counter[str]()) for key in ("roles", "advice"))
        right = sum(one.named[one.limits] for one in some)
        clear, wrong = sum(one.clear for one in some), sum(one.wrong for one in some)
        seeds = ", ".join(sorted({one.name.partition("@")[2] or "as written" for one in some}))
        rows.append(
            f"| {version} | {by} | {len(some)} ({seeds}) | {clear} | {wrong} ({wrong / max(1, clear):.1%}) "
            f"| {right / max(1, named_.total()):.1%} | {1 - roles['not known'] / max(1, roles.total()):.1%} "
            f"| {roles['wrong']} | {advice.total() - advice['right']} of {advice.total()} |"
        )
    every = [one for some in found.values() for one in some]
    cells: dict[str, Counter[str]] = {}
    for one in every:
        cells.setdefault(one.limits, Counter()).update(one.named)
    rows += ["", "| what limits | named together, seconds |", "| --- | --- |"]
    for limits, counts in sorted(cells.items()):
        rows.append(f"| {limits} | {', '.join(f'{word} {seconds}' for word, seconds in counts.most_common(5))} |")
    wrong_cells = sum((one.cells for one in every), Counter[tuple[str, str]]())
    wrong_advice = sum((one.advice for one in every), Counter[str]())
    rows += ["", "| wrong: truth of one engine | verdict | seconds |", "| --- | --- | --: |"]
    rows += [f"| {truth} | {verdict} | {seconds} |" for (truth, verdict), seconds in wrong_cells.most_common()]
    rows += [f"| advice at the end | {word} | {count} |" for word, count in wrong_advice.items() if word != "right"]
    return "\n".join(rows) + "\n"


if __name__ == "__main__":
    sys.exit(main())
