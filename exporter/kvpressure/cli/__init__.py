"""The command line: one file per command; each parses, calls and prints."""

from __future__ import annotations

import importlib
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kvpressure import __version__
from kvpressure.printable import clean_lines

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

COMMANDS = {
    "run": "Run the exporter.",
    "demo": "Watch an incident: a simulated engine, no GPU needed.",
    "triage": "Say what limits running engines, why, and what to do.",
    "incidents": "Look back: the incidents that a Prometheus has seen.",
    "whatif": "Predict what other flags would do.",
    "plan": "Compute safe limits for a model or a running engine.",
    "audit": "Check manifests or a cluster for declared limits.",
    "generate": "Write alerts, dashboards and runbooks.",
    "record": "Record an engine's pages.",
    "replay": "Run a recording through the diagnosis.",
    "check-config": "Check the settings.",
}
"""What each does, short enough for one line of the list."""

KUBECTL_PLUGIN = "kubectl-kvpressure"


class LazyGroup(click.Group):
    """Imports a command's module when the command is used: `run` never pays for what the others need."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """All commands, in the order of the table."""
        return list(COMMANDS)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """Return the table; no command has to be imported for it."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Return the table and the options beside it; again no command has to be imported."""
        from click.shell_completion import CompletionItem  # noqa: PLC0415 - only shells ask

        named = [CompletionItem(name, help=text) for name, text in COMMANDS.items() if name.startswith(incomplete)]
        return named + click.Command.shell_complete(self, ctx, incomplete)

    def __call__(self, *args: Any, **extra: Any) -> Any:
        """As a program of its own."""
        if os.getpid() == 1:  # the kernel gives it no default actions: while it starts, SIGTERM would go unheard
            signal.signal(signal.SIGTERM, lambda number, _: os._exit(128 + number))
        from kvpressure.cli import say  # noqa: PLC0415 - who imports the group prints nothing

        say.guard_streams()
        try:
            try:
                return super().__call__(*args, **extra)
            except SystemExit:
                say.finish()
                raise
        except say.OutputError as error:
            say.end_unwritten(error)
        except BrokenPipeError:
            say.end_unread()
        except Exception:  # noqa: BLE001 - 1 says that something was found, and a crash of any kind is no finding
            import traceback  # noqa: PLC0415 - for once that it is needed

            text = "kvpressure failed: a defect of its own, no finding (exit code 2)"
            say.fail(*traceback.format_exc().splitlines(), text)

    def main(self, *args: Any, **extra: Any) -> Any:
        """Under the name that was typed: kubectl runs its plugin `kubectl-kvpressure` for `kubectl kvpressure`."""
        if extra.get("prog_name") is None:
            plugin = Path(sys.argv[0]).name == KUBECTL_PLUGIN
            extra["prog_name"] = KUBECTL_PLUGIN.replace("-", " ") if plugin else "kvpressure"
        return super().main(*args, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        """Errors quote what was met; click prints them itself."""
        try:
            return super().invoke(ctx)
        except click.ClickException as error:
            error.message = clean_lines(error.message)  # type: ignore[misc]  # final for subclasses
            raise
        except BrokenPipeError:  # click would end with 1
            from kvpressure.cli.say import end_unread  # noqa: PLC0415 - when it is needed

            end_unread()

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """Return the command, None for an unknown name."""
        if cmd_name not in COMMANDS:
            return None
        if cmd_name == "run":
            _load_structlog_alone()
        command: click.Command = importlib.import_module(f"kvpressure.cli.{cmd_name.replace('-', '_')}").command
        return command


_LEFT_OUT = ("greenlet", "rich")


def _load_structlog_alone() -> None:
    """Import structlog as if it were alone: with rich it loads pygments, for tracebacks in colour; 4 MiB of 90."""
    if "structlog" in sys.modules:
        return
    hidden = [name for name in _LEFT_OUT if name not in sys.modules]
    sys.modules.update(dict.fromkeys(hidden))  # type: ignore[arg-type]
    importlib.import_module("structlog")
    for name in hidden:
        del sys.modules[name]


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="kvpressure")
def main() -> None:
    """Tells why a replica loses throughput to KV cache pressure: the exporter and its tools."""
