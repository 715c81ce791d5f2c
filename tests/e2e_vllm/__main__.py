"""`python -m tests.e2e_vllm`: every scenario, or those of `--scenario`; exit code 1 when a bar was missed."""

import argparse
import asyncio
import json
import shutil
import sys
import time
from dataclasses import asdict, replace
from typing import TextIO

from tests.e2e_vllm.environment import CACHE, Environment, prepare
from tests.e2e_vllm.judge import Row, judge
from tests.e2e_vllm.observe import Look
from tests.e2e_vllm.report import HEAD, Timeline, summary
from tests.e2e_vllm.run import play
from tests.e2e_vllm.scenario import Bars, Scenario
from tests.e2e_vllm.scenarios import SCENARIOS

MAX_SIMULATED_SECONDS = 2400.0
BY_NAME = {scenario.name: scenario for scenario in SCENARIOS}


def main() -> int:
    """Prepare, play, judge, print."""
    parser = argparse.ArgumentParser(prog="python -m tests.e2e_vllm", description=__doc__)
    parser.add_argument("--install-only", action="store_true", help="make vLLM's environment and stop")
    parser.add_argument("--scenario", action="append", choices=BY_NAME, help="only these; all by default")
    parser.add_argument("--phase", action="append", help="only the phases of this name")
    given = parser.parse_args()
    environment = prepare(_print)
    if given.install_only:
        return 0
    began, rows = time.monotonic(), []
    for name in given.scenario or BY_NAME:
        phases = tuple(phase for phase in BY_NAME[name].phases if not given.phase or phase.name in given.phase)
        if phases:
            rows += _play(environment, replace(BY_NAME[name], phases=phases))
    missed = sum(not row.held for row in rows)
    minutes = (time.monotonic() - began) / 60
    _print(
        f"\n{len(rows) - missed} of {len(rows)} bars held in {minutes:.0f} minutes; everything lies in {CACHE / 'run'}"
    )
    return 1 if missed or not rows else 0


def _play(environment: Environment, scenario: Scenario) -> list[Row]:
    folder = CACHE / "run" / scenario.name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    with (folder / "report.txt").open("w") as report, (folder / "looks.jsonl").open("w") as looks:
        timeline = Timeline()

        def say(text: str) -> None:
            _print(text)
            _print(text, report)

        def on_look(look: Look) -> None:
            looks.write(json.dumps(asdict(look), separators=(",", ":")) + "\n")
            text = timeline.add(look)
            if text is not None:
                say(text)

        say(HEAD)
        story = asyncio.run(asyncio.wait_for(play(environment, scenario, folder, say, on_look), MAX_SIMULATED_SECONDS))
        rows = judge(story, Bars())
        for text in summary(story, rows):
            say(text)
    return rows


def _print(text: str, file: TextIO = sys.stdout) -> None:
    file.write(text + "\n")
    file.flush()


if __name__ == "__main__":
    sys.exit(main())
