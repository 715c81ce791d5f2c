"""`python -m tests.lab.worker VERSION FOLDER NAME...`: runs regimes one after the other and writes their recordings.

A process of its own for each version: here `vllm` means one wheel, and the clock stands still. A line of JSON says of
each run what came out.
"""

import json
import random
import sys
import time
import traceback
from collections.abc import Mapping, Sequence, Set
from pathlib import Path

import prometheus_client

from tests.lab import stubs, working_set
from tests.lab.clock import BEGIN, Clock
from tests.lab.fetch import package
from tests.lab.lengthen import LONG, lengthened
from tests.lab.lengthen import MARK as LONGER
from tests.lab.record import Played, write
from tests.lab.regime import Regime, regimes
from tests.lab.vary import MARK, varied


def main(arguments: Sequence[str]) -> int:
    """Run them; 1 when any did not show what it was written for."""
    version, folder, *names = arguments
    clock = prepare(package(version))
    known, failed = regimes() | regimes(LONG), 0
    for name in names:
        try:
            summary = run(found(known, name), version, clock, Path(folder))
        except Exception as error:  # noqa: BLE001 - vLLM's own code may raise anything, and the others still run
            summary = {"name": name, "version": version, "failed": f"{type(error).__name__}: {error} {_place(error)}"}
        failed += bool(summary["failed"])
        print(json.dumps(summary), flush=True)
    return int(failed > 0)


def found(known: Mapping[str, Regime], name: str) -> Regime:
    """The regime of that name, with what its marks say."""
    made = working_set.find(name)
    if made is not None:
        return made
    named, _, seed = name.partition(MARK)
    written, _, factor = named.partition(LONGER)
    regime = lengthened(known[written], int(factor)) if factor else known[written]
    return varied(regime, int(seed)) if seed else regime


def _place(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    return f"({Path(frames[-1].filename).name}:{frames[-1].lineno})"


def prepare(unpacked: Path, more: Set[str] = frozenset()) -> Clock:
    """Stand-ins for all but the scheduler and `more` modules, and the clock, once per process."""
    for collector in list(prometheus_client.REGISTRY._collector_to_names):
        prometheus_client.REGISTRY.unregister(collector)
    stubs.install(unpacked, more)
    clock = Clock()
    clock.install()
    return clock


def run(regime: Regime, version: str, clock: Clock, folder: Path) -> dict[str, object]:
    """One regime's recording, and what came out. Of the working set's family also with a pool without limit."""
    began = time.process_time()
    given = play(regime, version, clock)
    unlimited = None
    if regime.family == working_set.FAMILY:
        unlimited = play(working_set.without_limit(regime), version, clock)
    summary = write(regime, version, given.book, given.result, folder, unlimited)
    return {**summary, "cpu_seconds": round(time.process_time() - began, 1)}


def play(regime: Regime, version: str, clock: Clock) -> Played:
    """Run it from the beginning of time."""
    from tests.lab.server import Server  # noqa: PLC0415 - imports vLLM's names, after the stand-ins are there

    clock.now = BEGIN
    # vLLM samples blocks for its residency histograms with the process's own generator.
    random.seed(regime.seed)
    server = Server(regime, package(version), version, clock)
    return Played(regime, server.book, server.run())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
