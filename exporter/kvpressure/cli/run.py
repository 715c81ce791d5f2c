"""`kvpressure run`: the exporter."""

from __future__ import annotations

import gc
import os
import sys
from typing import Final

import click
import structlog

from kvpressure import logs
from kvpressure.cli.options import given, refuse, settings_flags
from kvpressure.cli.serve import run_to_the_end, serve
from kvpressure.config.settings import ConfigError, Settings, load_settings
from kvpressure.config.settings.load import load
from kvpressure.daemon.exporter import Daemon
from kvpressure.daemon.node_sources import settings_model

GC_THRESHOLDS: Final = (700, 1, 10_000)
"""Python's own are 700, 10, 10: everybody waits for a collection. With 512 engines a full one walks all that is known
of them, 0.3 to 0.6 s, and each few pages cause one; a middle one of what ten small ones leave takes 10 to 50 ms, many
times a second."""

SWITCH_SECONDS: Final = 0.0001
"""How long a thread that computes keeps the others waiting at each of their system calls. Python's 5 ms make 40 of an
answer; with 0.5 ms a probe beside 500 slow readers waits for 70 to 140 ms (p99), with 0.1 ms for 43."""

log = structlog.get_logger("kvpressure")


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
