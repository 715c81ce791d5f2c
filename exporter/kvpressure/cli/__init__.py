"""The command line: one file per command; each parses, calls and prints."""

from __future__ import annotations

import importlib

import click

from kvpressure import __version__

COMMANDS = {
    "run": "run",
    "demo": "demo",
    "replay": "replay",
    "record": "record",
    "plan": "plan",
    "triage": "triage",
    "advise": "advise",
    "audit": "audit",
    "generate": "generate",
    "check-config": "check_config",
}


class LazyGroup(click.Group):
    """Imports a command's module when the command is used: `run` never pays for what the others need."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """All commands, in the order of the table."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """The command, None for an unknown name."""
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = importlib.import_module(f"kvpressure.cli.{COMMANDS[cmd_name]}").command
        return command


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="kvpressure")
def main() -> None:
    """Tells why a vLLM replica loses throughput to KV cache pressure: the exporter and its tools."""
