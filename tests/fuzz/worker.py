"""One target in a process of its own, with bounded memory: `python -m tests.fuzz.worker TARGET SEED SECONDS INPUTS`."""

import faulthandler
import logging
import os
import resource
import sys
import time

from tests.fuzz import findings, registry, state
from tests.fuzz.engine import BATCH, Session

MAX_BYTES = 3 << 30
_SAVED_EVERY_SECONDS = 20.0


def run(name: str, seed: int, seconds: float, inputs: int) -> int:
    """Fuzz `name` for `seconds` or up to `inputs` in all its runs; gives how many findings there are."""
    target = registry.load(name)
    now = state.load(name, seed)
    open_keys = set()
    for path in findings.regressions(name):
        if (still := findings.shown(target.check, path.read_bytes())) is not None:
            open_keys.add(still.key)
            sys.stdout.write(f"{name}: still there: {path.name}: {still.what}\n")
    session = Session(name, target, seed, now.kept, open_keys)
    before = now.inputs, now.cpu_seconds
    until = saved = time.monotonic() + seconds
    while time.monotonic() < until and now.inputs < inputs:
        left = inputs - before[0] - session.inputs
        session.batch(now.batches, min(BATCH, left))
        now.batches += 1
        _take(now, session, before)
        if abs(time.monotonic() - saved) > _SAVED_EVERY_SECONDS:
            saved = time.monotonic()
            state.save(name, now)
    for finding in session.findings:
        path = findings.save(name, finding)
        sys.stdout.write(f"{name}: FOUND {path.name}: {finding.what}\n")
    _take(now, session, before)
    state.save(name, now)
    sys.stdout.write(
        f"{name}: {now.inputs:,} inputs in all, {now.inputs - before[0]:,} now, "
        f"{(now.cpu_seconds - before[1]) / max(1, now.inputs - before[0]) * 1e6:.0f} us each, slowest "
        f"{now.slowest_seconds * 1e3:.0f} ms, corpus {len(now.kept)}, {now.steps} steps, {now.peak_mib:.0f} MiB\n"
    )
    return len(session.findings) + len(open_keys)


def _take(now: state.State, session: Session, before: tuple[int, float]) -> None:
    now.inputs, now.cpu_seconds = before[0] + session.inputs, before[1] + session.cpu_seconds
    now.slowest_seconds = max(now.slowest_seconds, session.slowest_seconds)
    now.peak_mib = max(now.peak_mib, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
    now.kept, now.steps = session.kept, session.steps


if __name__ == "__main__":
    faulthandler.enable()
    os.nice(19)
    logging.disable()
    resource.setrlimit(resource.RLIMIT_AS, (MAX_BYTES, MAX_BYTES))
    sys.exit(1 if run(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4])) else 0)
