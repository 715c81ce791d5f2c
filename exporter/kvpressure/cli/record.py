"""`kvpressure record`: records the pages of a live engine, or dumps what this machine's GPU libraries answer."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import click

from kvpressure import logs
from kvpressure.cli.access import access_option, context_option, namespace_option
from kvpressure.cli.page_at import Read, page_at
from kvpressure.cli.say import fail, say
from kvpressure.config.settings import Settings
from kvpressure.daemon.node_sources import NodeSources
from kvpressure.engines.recordings import SUFFIXES, TraceWriter
from kvpressure.model.errors import SourceError
from kvpressure.model.samples import GpuReport, GpuSample
from kvpressure.net.schedule import SystemClock
from kvpressure.sources.gpu.backend import GpuSettings
from kvpressure.sources.gpu.process import SOURCE as GPUS
from kvpressure.sources.gpu.record import BINDINGS, record_gpus


async def record_pages(
    read: Read, writer: TraceWriter, options: Mapping[str, Any], gpus: dict[str, GpuSample] | None = None
) -> None:
    """Write one full page per interval, with `gpus` by uuid as they are then. A repeated error is printed once."""
    clock, interval = SystemClock(), options["interval"]
    due, printed = clock.monotonic(), ""
    end = due + options["duration"]
    while due < end:
        try:
            answer = await read()
            writer.write(answer.t, answer.body, options["label"], None if gpus is None else tuple(gpus.values()))
            printed = ""
        except SourceError as error:
            if printed != error.sentence:
                say(error, err=True)
            printed = error.sentence
        # Ticks that pass during a slow response are skipped.
        due += interval * (1 + max(0.0, (clock.monotonic() - due) // interval))
        await clock.sleep_until(due)


@click.command()
@click.argument("url", required=False, metavar="[ADDRESS | KIND/NAME]")
@click.option("-o", "--output", required=True, type=click.Path(dir_okay=False, path_type=Path), help="File to write.")
@click.option("--duration", default=60.0, show_default=True, type=click.FloatRange(1, 86400), help="Seconds to record.")
@click.option("--interval", default=1.0, show_default=True, type=click.FloatRange(0.2, 60), help="Seconds per page.")
@click.option("--label", help="What the engine is going through, written on every line.")
@click.option(
    "--gpus", is_flag=True, help="With ADDRESS: GPU readings on every line. Alone: what the GPU libraries answer."
)
@namespace_option
@context_option
@access_option
def command(url: str | None, output: Path, **options: Any) -> None:
    """Record the metrics of the engine at ADDRESS (host:port, :port, or http://host:port) or in a pod, for `replay`.

    The format follows the file's name: .jsonl, .jsonl.gz or .jsonl.xz. Without ADDRESS, `--gpus` writes one JSON file
    of what the vendor libraries of this machine answer, with ids and serial numbers replaced, for a bug report.
    """
    if output.exists() and output.stat().st_size > 0:  # it may be of an incident
        raise click.UsageError(f"{output} exists: name another file, or delete it")
    if url is None:
        if not options["gpus"]:
            raise click.UsageError("give the address of an engine, or --gpus")
        _dump_gpus(output, options["duration"], options["interval"])
    elif not output.name.endswith(SUFFIXES):
        raise click.UsageError(f"{output}: the name must end in {', '.join(SUFFIXES)}")
    else:
        logs.configure("error", "logfmt")
        writer = TraceWriter(output)
        try:
            asyncio.run(_record(url, writer, options))
        except ValueError as error:
            raise click.UsageError(f"ADDRESS {error}") from None
        except SourceError as error:
            fail(error)
        except OSError as error:
            _end_unwritten(output, error)
        except (KeyboardInterrupt, asyncio.CancelledError):
            say("", err=True)  # the recording so far is kept
        count = writer.written
        say(f"{count} {'poll' if count == 1 else 'polls'} written to {output}" if count else "nothing was recorded")
        sys.exit(0 if count else 1)


def _end_unwritten(output: Path, error: OSError) -> NoReturn:
    fail(f"record: {output} cannot be written: {error.strerror or error}")


async def _record(address: str, writer: TraceWriter, options: Mapping[str, Any]) -> None:
    if (task := asyncio.current_task()) is not None:  # an xz file without an end cannot be read
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    newest: dict[str, GpuSample] = {}

    def take(_: str, report: GpuReport) -> None:
        newest.update((sample.uuid, sample) for sample in report.gpus)

    readers = NodeSources(Settings(), SystemClock(), take, (GPUS,) if options["gpus"] else ())
    readers.start()
    try:
        async with page_at(address, options) as (_, read):
            with writer:
                await record_pages(read, writer, options, newest if options["gpus"] else None)
    finally:
        await readers.stop()


def _dump_gpus(output: Path, duration: float, interval: float) -> None:
    options = replace(GpuSettings(), interval_seconds=interval)
    dumps = [record_gpus(vendor, options, duration) for vendor in BINDINGS]
    readings = [dump for dump in dumps if not dump["error"]]
    for dump in dumps:
        if dump["error"]:
            say(f"{dump['vendor']}: {dump['error']}", err=True)
    if not readings:
        sys.exit(1)
    try:
        output.write_text(json.dumps(readings, indent=1) + "\n")
    except OSError as error:
        _end_unwritten(output, error)
    say(f"readings of {', '.join(dump['vendor'] for dump in readings)} written to {output}")
