"""`make fuzz`: every target for its share of the time, one process after the other, or WORKERS at once.

Goes on where the last run with the same seed ended; `--publish` writes the totals into `results.json`.
"""

import argparse
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

from tests.fuzz import registry, results

NO_END = 1 << 62


def main() -> int:
    """The exit code is 1 when there are findings, or a process that died."""
    parser = argparse.ArgumentParser(prog="make fuzz")
    parser.add_argument("--seconds", type=float, default=600.0, help="for all targets together")
    parser.add_argument("--inputs", type=int, default=NO_END, help="a target that has had so many is done")
    parser.add_argument("--targets", default="", help="names, separated by blanks; all without it")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--publish", action="store_true", help="write results.json, and run nothing")
    given = parser.parse_args()
    if given.publish:
        results.publish()
        return 0
    names = given.targets.split() or registry.names()
    for name in names:
        registry.load(name)
    share = given.seconds * given.workers / len(names)
    sys.stdout.write(f"seed {given.seed}, {len(names)} targets, {share:.0f} s each\n")
    with ThreadPoolExecutor(given.workers) as pool:
        ended = list(pool.map(lambda name: _worker(name, given.seed, share, given.inputs), names))
    return 1 if any(ended) else 0


def _worker(name: str, seed: int, seconds: float, inputs: int) -> int:
    sys.stdout.flush()
    command = [sys.executable, "-m", "tests.fuzz.worker", name, str(seed), str(seconds), str(inputs)]
    code = subprocess.run(command, stdin=subprocess.DEVNULL, check=False).returncode
    if code not in (0, 1):
        sys.stdout.write(f"{name}: the process DIED with {code}; run it alone with the same seed\n")
    return code


if __name__ == "__main__":
    sys.exit(main())
