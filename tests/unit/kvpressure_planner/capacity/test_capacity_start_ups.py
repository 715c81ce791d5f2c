"""What `plan` prints for the start-ups of vLLM in public reports is what the page says, and as near as it should be."""

import json
import re
import shlex
import statistics
from typing import Any, Final

import pytest
from click.testing import CliRunner

from kvpressure.capacity.arithmetic import GIB
from kvpressure.cli import main
from tests.support.tools import ROOT

PAGE: Final = (ROOT / "docs/internals/accuracy/plan.md").read_text()
FROM_MEMORY, FROM_NAME = (
    re.findall(r"^\| `(--.+)` \| ([-\d.,]+)(?: (\w+))? \| ([-\d.,]+) \| ([-+][\d.]+)% \| (.+) \|$", part, re.MULTILINE)
    for part in PAGE.split("## From the GPU's name")
)
TOKENS_BAR, MEDIAN_BAR, WORST_BAR = 3.0, 5.0, 10.0
BEYOND: Final = {"club-3090 issue 612", "vllm issue 21348"}
"""Reports of the page's rows that the text below its tables explains: an older vLLM, and a KV connector."""
LENGTHS: Final = ("--prompt-p95", "1000", "--output-p95", "200")


def planned(options: str) -> dict[str, Any]:
    given = shlex.split(options)
    lengths = () if "--prompt-p95" in given else LENGTHS
    result = CliRunner().invoke(main, ["plan", *given, *lengths, "--json"])
    assert result.exit_code in {0, 1}, result.output
    plan: dict[str, Any] = json.loads(result.output)
    return plan


def number(text: str) -> float:
    return float(text.replace(",", ""))


@pytest.mark.parametrize("row", FROM_MEMORY, ids=[row[-1] for row in FROM_MEMORY])
def test_logged_memory_holds_as_many_tokens_as_the_server_logged(row: tuple[str, ...]) -> None:
    options, logged, _, written, difference, report = row
    tokens = planned(options)["pool_tokens"]
    off = 100 * (tokens / number(logged) - 1)
    assert tokens == number(written)
    assert off == pytest.approx(float(difference), abs=0.0051)
    assert abs(off) <= TOKENS_BAR or report in BEYOND


def test_the_name_of_a_gpu_gives_about_the_pool_that_the_server_logged() -> None:
    differences = []
    for options, logged, unit, written, difference, report in FROM_NAME:
        plan = planned(options)
        steps = {step["label"]: step["value"] for step in plan["steps"]}
        if unit == "blocks":
            found = re.search(r"blocks for ([\d,]+) sequences", " ".join(plan["warnings"]))
            size, largest = number(found[1]), number(logged)
        else:
            size = (steps["KV pool"] if "KV pool" in steps else -steps["Memory missing"]) / GIB
            card = steps["Memory for vLLM"] / plan["gpu_memory_utilization"] / GIB
            largest = max(number(logged), card / 20)
        off = 100 * (size - number(logged)) / largest
        assert size == pytest.approx(number(written), abs=0.0051)
        assert off == pytest.approx(float(difference), abs=0.051)
        assert abs(off) <= WORST_BAR or report in BEYOND
        differences.append(abs(off))
    assert statistics.median(differences) <= MEDIAN_BAR
    assert f"The median is {statistics.median(differences):.1f} %" in PAGE
