"""`python -m bench.scaling.worker MODULE < WISHES`: runs, in a process whose clock stands still between events.

A wish is a line of JSON, and so is what `answer` of the module makes of it.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

from tests.lab.fetch import NEWEST, fetch, package

ROOT: Final = Path(__file__).parents[2]
LAB: Final = ROOT / ".cache" / "lab"
"""Where runs and recordings of the lab are kept."""
Wish = Mapping[str, Any]


def answers(module: str, wishes: Iterable[Wish]) -> Iterator[dict[str, Any]]:
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


def kept_answers(module: str, wishes: Sequence[Wish], kept: Path, *, workers: int = 1) -> list[dict[str, Any]]:
    """The answers to all wishes, in their order, by that many processes; each is added to the file `kept` as it comes.

    What the file has already is not run again, but for wishes with a `record`: recordings are read afterwards, and have
    to be those of this run.
    """
    kept.parent.mkdir(parents=True, exist_ok=True)
    known = map(json.loads, kept.read_text().splitlines() if kept.exists() else ())
    told = {_key(line["wish"]): line["told"] for line in known}
    left = [wish for wish in wishes if wish.get("record") or _key(wish) not in told]

    def ask(part: Sequence[Wish]) -> None:
        for wish, answer in zip(part, answers(module, part), strict=True):
            told[_key(wish)] = answer
            with kept.open("a") as file:
                file.write(json.dumps({"wish": wish, "told": answer}) + "\n")

    with ThreadPoolExecutor(workers) as pool:
        list(pool.map(ask, [left[number::workers] for number in range(workers)]))
    return [told[_key(wish)] for wish in wishes]


def _key(wish: Wish) -> str:
    return json.dumps({name: value for name, value in wish.items() if name != "record"}, sort_keys=True)


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
