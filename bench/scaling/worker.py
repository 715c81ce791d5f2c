"""`python -m bench.scaling.worker MODULE < WISHES`: runs, in a process whose clock stands still between events.

A wish is a line of JSON, and so is what `answer` of the module makes of it.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from tests.lab.fetch import NEWEST, fetch, package

ROOT: Final = Path(__file__).parents[2]


def answers(module: str, wishes: Iterable[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """What such a process answers, as it comes. RuntimeError where it ends in between."""
    if not (lines := "".join(json.dumps(wish) + "\n" for wish in wishes)):
        return
    fetch(NEWEST)
    command = [sys.executable, "-m", "bench.scaling.worker", module]
    env = {**os.environ, "PYTHONHASHSEED": "0"}
    with subprocess.Popen(
        command, cwd=ROOT, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(lines)
        process.stdin.close()
        for line in process.stdout:
            yield json.loads(line)
    if process.returncode:
        raise RuntimeError(f"a run ended with {process.returncode}")


def main(module: str) -> int:
    """Run what is wished for, one after the other."""
    from tests.lab.worker import prepare  # noqa: PLC0415 - changes the process

    clock = prepare(package(NEWEST))
    answer = importlib.import_module(module).answer  # after the stand-ins are there
    for line in sys.stdin:
        print(json.dumps(answer(json.loads(line), clock)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
