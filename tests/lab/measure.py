"""What a change of flags would do: a regime run again with other flags, and what its clients got.

For judging advice: the same clients, the same second of arrival, the same seed; only flags differ. Runs in a process of
its own, because a process has one clock and one version of vLLM. Nothing is recorded.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.lab.fetch import NEWEST, fetch, package

ROOT: Final = Path(__file__).parents[2]
GOODPUT_SECONDS: Final = 60.0
LIMIT_SECONDS: Final = 600


class MeasureError(Exception):
    """The run did not end well; the message is the last line that it left."""


@dataclass(frozen=True, slots=True)
class Measured:
    """What the clients of one run got. `goodput` counts requests a second answered in full within 60 s, `tokens` those
    of answers that ended; `refused_ratio` is the share of requests that were refused or given up. Latency in seconds.
    """

    tokens_per_second: float
    goodput: float
    latency_p95: float | None
    refused_ratio: float
    preempted: int


def measure(
    name: str, flags: Mapping[str, Any] | None = None, *, seconds: int = 180, seed: int = 1, version: str = NEWEST
) -> Measured:
    """Run the regime `name` with those of its flags replaced. Raises MeasureError, and FetchError without a network."""
    fetch(version)
    asked = {"name": name, "flags": dict(flags or {}), "seconds": seconds, "seed": seed, "version": version}
    done = subprocess.run(
        [sys.executable, "-m", "tests.lab.measure", json.dumps(asked)],
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": "0"},
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
        check=False,
    )
    if done.returncode:
        raise MeasureError((done.stderr.strip().splitlines() or ["no word"])[-1])
    return Measured(**json.loads(done.stdout))


def main(arguments: Sequence[str]) -> int:
    """In the process of its own."""
    from tests.lab.worker import prepare  # noqa: PLC0415 - changes the process: only where it is asked for

    asked = json.loads(arguments[0])
    clock = prepare(package(asked["version"]))
    print(json.dumps(_run(asked, clock)))
    return 0


def _run(asked: Mapping[str, Any], clock: Any) -> dict[str, Any]:
    from dataclasses import replace  # noqa: PLC0415

    from tests.lab.record import goodput, numbers  # noqa: PLC0415 - after the stand-ins are there
    from tests.lab.regime import changed, regimes  # noqa: PLC0415
    from tests.lab.server import Server  # noqa: PLC0415

    regime = changed(regimes()[asked["name"]], **asked["flags"])
    regime = replace(regime, seconds=asked["seconds"], seed=asked["seed"])
    version = asked["version"]
    result = Server(regime, package(version), version, clock).run()
    told = numbers(result, regime.seconds)
    all_asked = len(result.answers) + result.unfinished
    return {
        "tokens_per_second": told["tokens_per_second"],
        "goodput": round(goodput(result.answers, regime.seconds, GOODPUT_SECONDS), 4),
        "latency_p95": told["latency_p95"],
        "refused_ratio": round(told["refused_or_given_up"] / max(1, all_asked), 4),
        "preempted": told["preempted"],
    }


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
