"""`python -m bench.uneven.worker TRAFFIC...`: a line of JSON for each run, in a process whose clock stands still."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence

from tests.lab.fetch import NEWEST, package


def main(wanted: Sequence[str]) -> int:
    """Each traffic where it fits, then by every router."""
    cpu = time.process_time
    from tests.lab.worker import prepare  # noqa: PLC0415 - changes the process

    clock = prepare(package(NEWEST))
    from bench.uneven.play import Run  # noqa: PLC0415 - after the stand-ins are there
    from bench.uneven.routers import BEST, ROUTERS, where_it_fits  # noqa: PLC0415
    from bench.uneven.traffic import TRAFFIC  # noqa: PLC0415

    for number, traffic in enumerate(TRAFFIC):
        if wanted and traffic.name not in wanted:
            continue
        for turn, (router, made) in enumerate({BEST: where_it_fits, **ROUTERS}.items()):
            began = cpu()
            episode = f"t{number}-r{turn}" if router != BEST else ""
            run = Run(traffic, made(), package(NEWEST), clock, episode)
            answer = {"traffic": traffic.name, "router": router, "episode": episode, "waits": run.play()}
            print(f"{traffic.name}, {router}: {cpu() - began:.0f} s", file=sys.stderr, flush=True)
            print(json.dumps(answer | {"series": run.series}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
