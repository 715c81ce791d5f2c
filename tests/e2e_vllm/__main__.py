"""`python -m tests.e2e_vllm`: the whole run; exit code 1 when a bar was missed."""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import sys
from dataclasses import asdict, replace
from typing import TextIO

from tests.e2e_vllm.environment import CACHE, prepare
from tests.e2e_vllm.judge import judge
from tests.e2e_vllm.observe import Look
from tests.e2e_vllm.report import HEAD, Timeline, summary
from tests.e2e_vllm.run import play
from tests.e2e_vllm.scenario import PHASES, Bars

LONGEST_SECONDS = 2400.0


def main() -> int:
    """Prepare, play, judge, print."""
    parser = argparse.ArgumentParser(prog="python -m tests.e2e_vllm", description=__doc__)
    parser.add_argument("--install-only", action="store_true", help="make vLLM's environment and stop")
    parser.add_argument("--phase", action="append", choices=[phase.name for phase in PHASES], help="only these phases")
    given = parser.parse_args()
    environment = prepare(_print)
    if given.install_only:
        return 0
    folder, bars = CACHE / "run", Bars()
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    phases = tuple(replace(phase) for phase in PHASES if not given.phase or phase.name in given.phase)
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
        story = asyncio.run(asyncio.wait_for(play(environment, phases, folder, bars, say, on_look), LONGEST_SECONDS))
        rows = judge(story, bars)
        for text in summary(story, rows, bars):
            say(text)
    _print(f"report, logs and the recording lie in {folder}")
    return 0 if all(row.held for row in rows) else 1


def _print(text: str, file: TextIO = sys.stdout) -> None:
    file.write(text + "\n")
    file.flush()


if __name__ == "__main__":
    sys.exit(main())
