"""`kvpressure run`: the exporter, until a signal: an orderly end on the first, an immediate one on the second.

Not with `asyncio.run`: it waits, as the interpreter does after it, for threads that may hang in a file system, a name
server or a password hash. Everything that needs an orderly end has ended by then.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import glob
import os
import signal
import sys
import traceback
from collections.abc import Callable, Coroutine, Iterator
from types import FrameType
from typing import Any, Final, NoReturn

import click
import structlog

from kvpressure import logs
from kvpressure.cli.options import given, refuse, settings_flags
from kvpressure.cli.say import CANNOT_TELL, OutputError, report_unwritten
from kvpressure.config.settings import ConfigError, Settings, load_settings
from kvpressure.config.settings.load import load
from kvpressure.daemon.exporter import Daemon
from kvpressure.daemon.node_sources import settings_model
from kvpressure.web.server import Listener

log = structlog.get_logger("kvpressure")

GC_THRESHOLDS: Final = (700, 1, 10_000)
"""Python's are 700, 10, 10, and all threads wait for a collection. With 512 engines a full one takes 0.3 to 0.6 s, and
a few pages cause one; one of the middle generation takes 10 to 50 ms, many times a second."""

SWITCH_SECONDS: Final = 0.0001
"""How long a computing thread delays others at each system call. With Python's 5 ms a response takes 40 ms; with 0.5 ms
a probe beside 500 slow readers waits for 70 to 140 ms (p99), with 0.1 ms for 43."""

ENDING: Final = (signal.SIGTERM, signal.SIGINT)
ORDERLY_SECONDS: Final = 1.2
"""How long tasks may take to end; a GPU driver that hangs takes half of it."""

LAST_RESORT_SECONDS: Final = 1.7
"""When the process ends even if its event loop hangs."""

_LOOP_HANGS: Final = b'level=warning event="ended without order: something held up the event loop"\n'

Beside = Callable[[Daemon, list[str]], Coroutine[None, None, None]]
"""Runs beside the daemon once its server listens on the given URLs."""


@click.command()
@settings_flags
def command(**flags: str | None) -> None:
    """Run the exporter.

    Without any settings it serves this machine: the GPUs it finds and an engine on localhost:8000. SIGHUP reloads the
    settings, SIGUSR1 releases the GPU drivers for a while, SIGTERM ends it within two seconds, a second one at once.
    """
    flags_given = given(flags)

    def read() -> Settings:
        return load_settings(flags_given, os.environ, settings_model())

    try:
        loaded = load(read)
    except ConfigError as error:
        refuse(error)
    logs.configure(loaded.settings.log.level, loaded.settings.log.format)

    def make() -> Daemon:
        daemon = Daemon(loaded, read)
        # The garbage collector and busy threads delay the others, which share one interpreter lock.
        gc.freeze()  # modules and settings are never garbage
        gc.set_threshold(*GC_THRESHOLDS)
        sys.setswitchinterval(SWITCH_SECONDS)
        if loaded.settings.single_machine and not daemon.discovers:
            served = {"engine": "http://localhost:8000/metrics", "gpus": "all found"}
            log.info("no engines configured: serving this machine", **served)
        return daemon

    try:
        run_to_the_end(serve(make))
    except ConfigError as error:
        refuse(error)


async def serve(make: Callable[[], Daemon], beside: Beside | None = None) -> None:
    """Serve until SIGTERM or SIGINT. Raises ConfigError when the server cannot be started."""
    with stop_signal() as stop:
        daemon = make()
        listener = Listener(daemon, daemon.settings.web)
        urls = await listener.start()
        daemon.register_collector(listener.families)
        log.info("listening", urls=" ".join(urls))
        work: dict[str, Coroutine[Any, Any, Any]] = {
            "daemon": daemon.run(),
            "web configuration": listener.follow(),
            "signal": stop.wait(),
        }
        if beside is not None:
            work["beside"] = beside(daemon, urls)
        tasks = {asyncio.create_task(coroutine, name=name) for name, coroutine in work.items()}
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGHUP, daemon.request_reload)
        loop.add_signal_handler(signal.SIGUSR1, daemon.detach_gpus)
        try:
            while not stop.is_set():
                done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()  # raises what it failed with
                    tasks.remove(task)
        finally:
            log.info("stopping")
            if left := await end(tasks, listener.close()):
                log.warning("threads still running at exit", what=", ".join(left))


@contextlib.contextmanager
def stop_signal() -> Iterator[asyncio.Event]:
    """Yield the event that the first signal sets; the process ends at most `LAST_RESORT_SECONDS` later.

    With Python's signal handlers, not the loop's: they run also while the loop hangs.
    """
    loop, stop = asyncio.get_running_loop(), asyncio.Event()

    def first(_: int, __: FrameType | None) -> None:
        for ending in ENDING:
            # The default action works without this process; process 1 has none.
            signal.signal(ending, (lambda number, _: _exit(128 + number)) if os.getpid() == 1 else signal.SIG_DFL)
        signal.signal(signal.SIGALRM, _last_resort)
        signal.setitimer(signal.ITIMER_REAL, LAST_RESORT_SECONDS)
        loop.call_soon_threadsafe(stop.set)

    before = {ending: signal.signal(ending, first) for ending in ENDING}
    try:
        yield stop
    finally:
        if not stop.is_set():
            for ending, handler in before.items():
                signal.signal(ending, handler)


async def end(tasks: set[asyncio.Task[Any]], closing: Coroutine[Any, Any, None]) -> list[str]:
    """Cancel `tasks` while `closing` runs; return the names of those that have not ended in `ORDERLY_SECONDS`.

    A task that lost its cancellation is cancelled again.
    """
    waiting: set[asyncio.Task[Any]] = {*tasks, asyncio.create_task(closing, name="server")}
    for task in tasks:
        task.cancel()
    done, waiting = await asyncio.wait(waiting, timeout=0.75 * ORDERLY_SECONDS)
    for task in waiting:
        task.cancel()
    if waiting:
        more, waiting = await asyncio.wait(waiting, timeout=0.25 * ORDERLY_SECONDS)
        done |= more
    for task in done:
        if not task.cancelled():
            task.exception()  # it was logged when the task failed
    return sorted(task.get_name() for task in waiting)


def run_to_the_end(work: Coroutine[Any, Any, None]) -> NoReturn:
    """Run `work` and end the process with it. Raises ConfigError and KeyboardInterrupt if `work` does."""
    runner = asyncio.Runner()
    try:
        runner.run(work)
    except (ConfigError, KeyboardInterrupt):
        runner.get_loop().close()  # the runner's own `close` waits for threads
        raise
    except OutputError as error:
        report_unwritten(error)
        leave(CANNOT_TELL)
    except BaseException:  # noqa: BLE001 - printed, and then the process ends
        traceback.print_exc()
        leave(1)
    leave(0)


def leave(code: int) -> NoReturn:
    """End the process without waiting for any thread."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, OutputError):
            stream.flush()
    _exit(code)


def _exit(code: int) -> NoReturn:
    # Children that are still running, such as a journalctl whose reader hangs.
    for listed in glob.glob("/proc/self/task/*/children"):  # noqa: PTH207 no objects in a signal handler
        with contextlib.suppress(OSError), open(listed, encoding="ascii") as children:  # noqa: PTH123
            for pid in children.read().split():
                os.kill(int(pid), signal.SIGKILL)
    os._exit(code)


def _last_resort(_: int, __: FrameType | None) -> NoReturn:
    # Not the log: a thread may hang in the middle of a line.
    with contextlib.suppress(OSError):
        os.set_blocking(2, False)
        os.write(2, _LOOP_HANGS)
    _exit(0)
