"""What is to be followed, target by target, here or in processes beside each other."""

from __future__ import annotations

import itertools
import multiprocessing
import signal
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass

from kvpressure.config.thresholds import Thresholds
from kvpressure.model.environment import DeclaredLimit
from kvpressure.tools.incidents.client import Prometheus, Server
from kvpressure.tools.incidents.discover import Seen
from kvpressure.tools.incidents.document import Json
from kvpressure.tools.incidents.errors import PrometheusError
from kvpressure.tools.incidents.follow import follow
from kvpressure.tools.incidents.journal import Key
from kvpressure.tools.incidents.paging import Span


@dataclass(frozen=True, slots=True)
class Task:
    """One target to follow: what a worker needs to know."""

    server: Server
    seen: Seen
    stretches: tuple[tuple[Span, bool], ...]
    step: float | None
    settings: tuple[Thresholds, ...]
    shortest_seconds: float
    declared: tuple[DeclaredLimit, ...] | None = None

    @property
    def key(self) -> Key:
        """Under which it is remembered that it is done."""
        return "target", self.seen.runtime, *itertools.chain.from_iterable(self.seen.target.labels)


def work(task: Task) -> Json:
    """Follow one target, with a connection of its own. Raises PrometheusError."""
    with Prometheus(task.server) as client:
        return followed(client, task)


def followed(client: Prometheus, task: Task) -> Json:
    """Return the same, with the connection that there is. Raises PrometheusError."""
    first, *others = follow(
        client, task.seen, task.stretches, task.step, task.settings, task.shortest_seconds, task.declared
    )
    return {
        "incidents": first.incidents,
        "others": [one.incidents for one in others],
        "unjudged": first.unjudged,
        "samples": first.samples,
        "unread": first.unread,
        "warnings": list(client.asked.warnings),
    }


def in_parallel(tasks: Sequence[Task], workers: int, finished: Callable[[Task, Json], None]) -> None:
    """In `workers` processes; the longest first, so that none is left alone at the end. Raises PrometheusError."""
    longest = sorted(tasks, key=lambda task: -sum(span.seconds for span, _ in task.stretches))
    context = multiprocessing.get_context("spawn")
    before = set(multiprocessing.active_children())
    pool = ProcessPoolExecutor(min(workers, len(tasks)), context, initializer=_leave_ctrl_c_to_the_parent)
    over = False
    try:
        running: dict[Future[Json], Task] = {pool.submit(work, task): task for task in longest}
        while running:
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                finished(running.pop(future), future.result())
        over = True
    except BrokenProcessPool as error:
        text = "a process that read was killed, perhaps for want of memory; give fewer --workers"
        raise PrometheusError("killed", text) from error
    finally:
        if not over:  # nobody waits for what the others read
            for process in set(multiprocessing.active_children()) - before:
                process.terminate()
        pool.shutdown(wait=True, cancel_futures=True)


def _leave_ctrl_c_to_the_parent() -> None:
    """Leave it to the parent, which ends the others: a terminal sends it to every process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
