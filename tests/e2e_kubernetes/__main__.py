"""The whole run; exit code 1 when something is not as it must be, 2 without a run."""

import argparse
import asyncio
import os
import subprocess
import sys

from tests.e2e_kubernetes.programs import ROOT, MissingError, build, find
from tests.e2e_kubernetes.run import CACHE, tell

MAX_SIMULATED_SECONDS = 900
ISOLATED = (
    "unshare",
    "--net",
    "--mount",
    "--pid",
    "--fork",
    "--kill-child",
    "--mount-proc",
    "--propagation",
    "private",
)
"""A network with every port and address free, mounts of our own, and processes that all end with the first one."""


def main() -> int:
    """Build what is missing, then run in namespaces of our own."""
    parser = argparse.ArgumentParser(prog="python -m tests.e2e_kubernetes", description=__doc__)
    parser.add_argument("--build-only", action="store_true", help="build kube-apiserver and stop")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    try:
        build(_say)
        if given.build_only:
            return 0
        programs = find()
    except (MissingError, subprocess.CalledProcessError) as error:
        _say(f"{error}")
        return 2
    if given.inside:
        return asyncio.run(asyncio.wait_for(tell(programs), MAX_SIMULATED_SECONDS))
    if os.geteuid() != 0:
        _say("this needs root: namespaces, addresses for pods, and another user for the exporter")
        return 2
    command = (*ISOLATED, sys.executable, "-m", "tests.e2e_kubernetes", "--inside")
    try:
        return subprocess.run(command, cwd=ROOT, check=False, timeout=MAX_SIMULATED_SECONDS + 30).returncode
    finally:
        _say(f"\nreport and logs lie in {CACHE / 'run'}")


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
