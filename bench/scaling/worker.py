"""`python -m bench.scaling.worker < WISHES`: runs, in a process whose clock stands still between events.

A wish is a line of JSON with a `shape` and an `autoscaler`: its name, or `static N`. A line of JSON answers each.
"""

from __future__ import annotations

import json
import sys

from tests.lab.fetch import NEWEST, package


def main() -> int:
    """Run what is wished for, one after the other."""
    import time  # noqa: PLC0415 - before the clock is taken over

    cpu = time.process_time
    from tests.lab.worker import prepare  # noqa: PLC0415 - changes the process

    clock = prepare(package(NEWEST))
    from bench.scaling.autoscalers import OTHERS, Autoscaler, Ours, Static  # noqa: PLC0415 - after the stand-ins are there
    from bench.scaling.fleet import FIRST_REPLICAS, Fleet  # noqa: PLC0415
    from bench.scaling.shapes import FLAGS, SHAPES  # noqa: PLC0415

    shapes = {shape.name: shape for shape in SHAPES}
    for line in sys.stdin:
        wish, began = json.loads(line), cpu()
        shape, name = shapes[wish["shape"]], wish["autoscaler"]
        first = FIRST_REPLICAS
        if name.startswith("static "):
            first = int(name.split()[1])
            scaler: Autoscaler = Static(first)
        elif name in OTHERS:
            scaler = OTHERS[name]()
        else:
            declared = {**FLAGS, **shape.flags} if name == "kvpressure" else {}
            scaler = Ours(declared)
        outcome = Fleet(shape, package(NEWEST), clock, scaler, first).run()
        answer = {
            **wish,
            "violating_minutes": outcome.violating,
            "replica_hours": round(outcome.replica_seconds / 3600, 3),
            "requests": sum(one.counted for one in outcome.minutes),
            "late": sum(one.late for one in outcome.minutes),
            "slow": sum(one.slow for one in outcome.minutes),
            "replicas": outcome.counts,
            "bad": [number for number, one in enumerate(outcome.minutes, 1) if one.violates],
            "cpu_seconds": round(cpu() - began, 1),
        }
        if wish.get("told") and isinstance(scaler, Ours):
            answer["told"] = scaler.told
        print(json.dumps(answer), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
