"""`kvpressure run`: the exporter, until a signal ends it: in order and soon on the first, at once on the second.

Not by `asyncio.run`: it waits, and the interpreter does after it, for threads that may hang in a file system, a name
server or a password hash. Everything that has to be ended in order is ended by then.
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
from kvpressure.cli.say import CANNOT_TELL, OutputError, tell_unwritten
from kvpressure.config.settings import ConfigError, Settings, load_settings
from kvpressure.config.settings.load import load
from kvpressure.daemon.exporter import Daemon
from kvpressure.daemon.node_sources import settings_model
from kvpressure.web.server import Listener

log = structlog.get_logger("kvpressure")

GC_THRESHOLDS: Final = (700, 1, 10_000)
"""Python's own are 700, 10, 10: everybody waits for a collection. With 512 engines a full one walks all that is known
of them, 0.3 to 0.6 s, and each few pages cause one; a middle one of what ten small ones leave takes 10 to 50 ms, many
times a second."""

SWITCH_SECONDS: Final = 0.0001
"""How long a thread that computes keeps the others waiting at each of their system calls. Python's 5 ms make 40 of an
answer; with 0.5 ms a probe beside 500 slow readers waits for 70 to 140 ms (p99), with 0.1 ms for 43."""

ENDING: Final = (signal.SIGTERM, signal.SIGINT)
ORDERLY_SECONDS: Final = 1.2
"""How long what runs may take to end in order; a GPU driver that hangs takes half of it."""

LAST_RESORT_SECONDS: Final = 1.7
"""When the process ends whatever holds up its event loop."""

_HELD_UP: Final = b'level=warning event="ended without order: something held up the event loop"\n'

Beside = Callable[[Daemon, list[str]], Coroutine[None, None, None]]
"""Runs beside the daemon once its server listens on the given URLs."""


@click.command()
@settings_flags
def command(**flags: str | None) -> None:
    """Run the exporter.

    Without any settings it serves this machine: the GPUs it finds and an engine on localhost:8000. SIGHUP reloads the
    settings, SIGUSR1 lets go of the GPU drivers for a while, SIGTERM ends it within two seconds, a second one at once.
    """
    wanted = given(flags)

    def read() -> Settings:
        return load_settings(wanted, os.environ, settings_model())

    try:
        loaded = load(read)
    except ConfigError as error:
        refuse(error)
    logs.configure(loaded.settings.log.level, loaded.settings.log.format)

    def make() -> Daemon:
        daemon = Daemon(loaded, read)
        # The garbage collector and busy threads hold up the others, which share one interpreter lock.
        gc.freeze()  # modules and settings live to the end: the collector need not walk them again and again
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
    """Return the event that the first signal sets; from then on the process has `LAST_RESORT_SECONDS` to live.

    Python's own handlers and not the loop's: they run also while something else holds up the loop.
    """
    loop, stop = asyncio.get_running_loop(), asyncio.Event()

    def first(_: int, __: FrameType | None) -> None:
        for ending in ENDING:
            # The default action needs nothing of this process; the kernel does not give it to process 1.
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
    """Cancel `tasks` while `closing` runs; gives the names of those that have not ended in `ORDERLY_SECONDS`.

    A task that lost its cancellation is asked again.
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
            task.exception()  # what a task failed with was told when it failed
    return sorted(task.get_name() for task in waiting)


def run_to_the_end(work: Coroutine[Any, Any, None]) -> NoReturn:
    """Run `work` and end the process with it. Raises ConfigError and KeyboardInterrupt if `work` does."""
    try:
        asyncio.Runner().run(work)
    except (ConfigError, KeyboardInterrupt):
        raise
    except OutputError as error:
        tell_unwritten(error)
        leave(CANNOT_TELL)
    except BaseException:  # noqa: BLE001 - told, and then nothing may keep the process
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
    # What has not been waited for: a journalctl, say, whose reader hangs in another log.
    for listed in glob.glob("/proc/self/task/*/children"):  # noqa: PTH207 no objects in a signal handler
        with contextlib.suppress(OSError), open(listed, encoding="ascii") as children:  # noqa: PTH123
            for pid in children.read().split():
                os.kill(int(pid), signal.SIGKILL)
    os._exit(code)


def _last_resort(_: int, __: FrameType | None) -> NoReturn:
    # Not the log: whoever holds it up may be in the middle of a line.
    with contextlib.suppress(OSError):
        os.set_blocking(2, False)
        os.write(2, _HELD_UP)
    _exit(0)
