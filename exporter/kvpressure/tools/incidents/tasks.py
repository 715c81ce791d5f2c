"""Targets followed in processes beside each other."""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool

from kvpressure.tools.incidents.client import Prometheus
from kvpressure.tools.incidents.errors import PrometheusError
from kvpressure.tools.incidents.follow import Task, follow
from kvpressure.tools.incidents.names import Json


def work(task: Task) -> Json:
    """Follow one target, with a connection of its own. Raises PrometheusError."""
    with Prometheus(task.server) as client:
        return follow(client, task)


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
