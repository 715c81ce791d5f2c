"""Figures in texts for people are those of the benchmark that they come from."""

import json
import math
import re
from pathlib import Path
from typing import Any

from kvpressure.cli.findings import EngineFacts
from kvpressure.cli.report import brief_report
from kvpressure.cli.triage.run import of_trace
from tests.support.printed import printed
from tests.support.tools import FIXTURES

ROOT = Path(__file__).parents[2]
ACCURACY = ROOT / "docs" / "internals" / "accuracy"
LAB: list[dict[str, Any]] = [
    row for row in json.loads((ROOT / "bench/detection/lab.json").read_text()) if "regime" in row
]
COUNTED = [row for row in LAB if row["seconds"] and row["right"] is not None]


def test_the_page_on_detection_says_of_the_lab_what_the_lab_says():
    page = (ROOT / "docs/detection.md").read_text()
    told = re.search(
        r"^\| vLLM's own scheduler, (\d+) situations, four versions \| ([\d.]+) % \| \d+ of \d+ \| 0 \| (\d+) \|$",
        page,
        re.MULTILINE,
    )
    once = re.search(r"\(seeds 121, 122\) \| ([\d.]+) and ([\d.]+) %", page)
    first = re.search(r"The first verdict comes (\d+) s after", page)
    measured = (ACCURACY / "detection.md").read_text()
    said = "seeds 121 and 122 of the table were {} and {} % when they were run for the first time"
    assert said.format(*once.groups()) in " ".join(measured.split())
    situations, percent, critical = told.groups()
    assert (
        int(situations) == len({row["regime"] for row in LAB}) == len(list((ROOT / "tests/lab/regimes").glob("*.toml")))
    )
    assert len({row["version"] for row in LAB}) == 4
    right = sum(row["seconds"] * row["right"] for row in COUNTED) / sum(row["seconds"] for row in COUNTED)
    assert float(percent) == math.floor(1000 * right) / 10
    assert sum(row["wrong_and_critical"] for row in LAB) == int(critical)
    (median,) = re.findall(r"^\| all \|.*\| (\d+) \| \d+ \|$", measured, re.MULTILINE)
    assert first[1] == median


def test_what_is_told_of_the_page_is_what_its_score_says():
    rows = json.loads((ROOT / "bench/detection/pages.json").read_text())
    told = re.search(
        r"fires in (\d+) of (\d+) stretches of two minutes before their end, (\d+) s after they begin on the "
        r"simulator and (\d+) s in the lab \(at a scrape a minute (\d+), (\d+) s and (\d+) s\); (\w+) begins? "
        r"after the end",
        " ".join((ACCURACY / "detection.md").read_text().split()),
    )
    assert told is not None
    expected = []
    for seconds in (15, 60):
        of = {("lab" in row["episodes"]): row for row in rows if row["scrape_seconds"] == seconds}
        expected.append(sum(row["told"] for row in of.values()))
        expected += [sum(row["stretches"] for row in of.values())] if seconds == 15 else []
        expected += [f"{of[in_lab]['delay_seconds']:.0f}" for in_lab in (False, True)]
    late = sum(row["begun_after_the_end"] + row["false"] for row in rows)
    assert told.groups() == (*map(str, expected), str(late) if late else "none")


def test_the_triage_in_the_readme_is_what_the_recording_gives():
    """Line by line, but for the name of what was read."""
    found = of_trace(FIXTURES / "traces" / "long-context-collapse.jsonl.xz", EngineFacts())
    (one,) = found
    _, *lines = printed(brief_report(found, one.view.t), 200).rstrip().splitlines()
    shown = (ROOT / "README.md").read_text().split("```")[1]
    assert shown.strip().splitlines()[1:] == [line.rstrip() for line in lines]


def test_the_scores_without_an_exporter_are_those_of_the_benchmark():
    """The two tables about the rules without an exporter say for each interval what those about all alerts do."""
    measured, shown = ((ACCURACY / name).read_text() for name in ("detection.md", "vllm-only.md"))
    heads = ("**Alerts in the scheduler lab, by seconds between scrapes**", "**The same, by seconds between scrapes**")
    tables = re.findall(r"\|---\|---\|---\|---\|\n((?:\| .*\n)+)", shown)
    scored = [table for table in tables if "KVPressureVLLMCacheTooSmall**" in table]
    assert len(scored) == len(heads)
    for head, table in zip(heads, scored, strict=True):
        rows = [line.strip("| ").split(" | ") for line in measured.split(head)[1].split("\n\n")[1].splitlines()]
        found = {cells[0].removesuffix(" (warning)"): cells[1:] for cells in rows if len(cells) == 13}
        for line in table.splitlines():
            name, *cells = line.strip("| ").split(" | ")
            expected = found[name.strip("`*")]
            for number, cell in enumerate(cells):
                recall, _, false, delay = expected[4 * number : 4 * number + 4]
                assert cell == f"{recall}, {false} false" + ("" if delay == "-" else f", {delay} s"), (name, head)
