"""The command line, one file per command."""

from __future__ import annotations

import importlib
import importlib.util
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
    "incidents": "Report past incidents, by the series in a Prometheus.",
    "whatif": "Predict what other flags would do.",
    "plan": "Compute safe limits for a model or a running engine.",
    "audit": "Check manifests or a cluster for declared limits.",
    "generate": "Write alerts, dashboards and runbooks.",
    "record": "Record an engine's pages.",
    "replay": "Run a recording through the diagnosis.",
    "check-config": "Check the settings.",
}
"""Each command's line in the list."""

GONE = {
    "--container": "name it in the pod's annotation kvpressure.io/container",
    "--kubeconfig": "kubectl reads the environment: KUBECONFIG=FILE kvpressure ...",
    "--port": "kubectl port-forward pod/NAME PORT, and the engine is :PORT; or the pod's annotation kvpressure.io/port",
    "generate --no-runbooks": "delete the folder runbooks of the bundle",
    "generate --runbooks": "the bundle always has them",
    "incidents --bearer-token-file": "in --http.config.file authorization: {credentials_file: FILE}",
    "incidents --ca-file": "in --http.config.file tls_config: {ca_file: FILE}",
    "incidents --cert-file": "in --http.config.file tls_config: {cert_file: FILE, key_file: FILE}",
    "incidents --header": "in --http.config.file http_headers: {NAME: {values: [VALUE]}}",
    "incidents --insecure": "in --http.config.file tls_config: {ca_file: FILE}, with the server's own certificate",
    "incidents --key-file": "in --http.config.file tls_config: {cert_file: FILE, key_file: FILE}",
    "incidents --password-file": "in --http.config.file basic_auth: {username: NAME, password_file: FILE}",
    "incidents --username": "in --http.config.file basic_auth: {username: NAME, password_file: FILE}",
    "incidents --schema": "docs/schemas has them, and a running exporter at /api/v1/schemas/incidents",
    "incidents --timeout": "an answer may take 120 s",
    "plan --kube-context": "kubectl config use-context NAME, or kubectl port-forward and --url :PORT",
    "record --force": "delete the file first",
    "run --web.telemetry-path": "set telemetry_path in the section web of the settings file",
}
"""What to do instead of an option that is gone, by the option, or by its command and name."""

JOINED = {
    "incidents": "kvpressure_incidents",
    "whatif": "kvpressure_planner",
    "plan": "kvpressure_planner",
    "audit": "kvpressure_planner",
}
"""Commands of the distribution's other packages, which join by the entry points of GROUP: loaded when they are used."""

GROUP = "kvpressure.commands"

KUBECTL_PLUGIN = "kubectl-kvpressure"


def installed() -> dict[str, str]:
    """Return the commands of the packages that are here, each with its line in the list."""
    return {name: line for name, line in COMMANDS.items() if _is_here(name)}


def _is_here(name: str) -> bool:
    """Whether the package of a command of the list is here, without importing it."""
    package = JOINED.get(name)
    return package is None or importlib.util.find_spec(package) is not None


class LazyGroup(click.Group):
    """Imports a command's module when the command is used, so that `run` does not load those of the others."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """Return the commands that are here, in the order of the table."""
        return list(installed())

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """Write the table, without importing commands."""
        with formatter.section("Commands"):
            formatter.write_dl(list(installed().items()))

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Return the commands and options that match, without importing commands."""
        from click.shell_completion import CompletionItem  # noqa: PLC0415 - only for shells

        named = [CompletionItem(name, help=text) for name, text in installed().items() if name.startswith(incomplete)]
        return named + click.Command.shell_complete(self, ctx, incomplete)

    def __call__(self, *args: Any, **extra: Any) -> Any:
        """Run as a program."""
        if os.getpid() == 1:  # it has no default actions: SIGTERM would be ignored while it starts
            signal.signal(signal.SIGTERM, lambda number, _: os._exit(128 + number))
        from kvpressure.cli import say  # noqa: PLC0415 - not needed to import the group

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
        except Exception:  # noqa: BLE001 - exit code 1 means a finding, which a crash is not
            import traceback  # noqa: PLC0415 - only for crashes

            text = "kvpressure failed: a defect of its own, no finding (exit code 2)"
            say.fail(*traceback.format_exc().splitlines(), text)

    def main(self, *args: Any, **extra: Any) -> Any:
        """Run under the name that was typed: kubectl runs `kubectl-kvpressure` for `kubectl kvpressure`."""
        if extra.get("prog_name") is None:
            plugin = Path(sys.argv[0]).name == KUBECTL_PLUGIN
            extra["prog_name"] = KUBECTL_PLUGIN.replace("-", " ") if plugin else "kvpressure"
        return super().main(*args, **extra)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Take the options of the group, of which some print."""
        try:
            return super().parse_args(ctx, args)
        except BrokenPipeError:  # click would end with 1
            from kvpressure.cli.say import end_unread  # noqa: PLC0415 - only here

            end_unread()

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; clean the foreign text in errors that click prints."""
        try:
            return super().invoke(ctx)
        except click.NoSuchOption as error:
            name, command = error.option_name, error.ctx.info_name if error.ctx is not None else ""
            if instead := GONE.get(f"{command} {name}", GONE.get(name)):
                raise click.UsageError(f"{name} is gone: {instead}", error.ctx) from None
            raise
        except click.ClickException as error:
            error.message = clean_lines(error.message)  # type: ignore[misc]  # final for subclasses
            raise
        except BrokenPipeError:  # click would end with 1
            from kvpressure.cli.say import end_unread  # noqa: PLC0415 - only here

            end_unread()
        except (KeyboardInterrupt, click.Abort):  # click would end with 1, which means a finding
            from kvpressure.cli.say import say  # noqa: PLC0415 - only here

            say("", err=True)
            sys.exit(128 + signal.SIGINT)

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        """Return the command as click does; name the closest for an unknown name."""
        if args[0] not in COMMANDS and not ctx.resilient_parsing:
            from difflib import get_close_matches  # noqa: PLC0415 - only here

            if near := get_close_matches(args[0], installed(), 1):
                ctx.fail(f"No such command {args[0]!r}. Did you mean {near[0]!r}?")
        return super().resolve_command(ctx, args)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return the command, None for an unknown name.

        Raises click.UsageError where its package is not installed.
        """
        if cmd_name not in COMMANDS:
            return None
        if not _is_here(cmd_name):
            if ctx.resilient_parsing:  # for completion
                return None
            ctx.fail(f"{cmd_name} is not installed here: pip install kvpressure")
        if cmd_name == "run":
            _load_structlog_alone()
        if (package := JOINED.get(cmd_name)) is not None:
            return _joined(cmd_name, package)
        command: click.Command = importlib.import_module(f"kvpressure.cli.{cmd_name.replace('-', '_')}").command
        return command


def _joined(name: str, package: str) -> click.Command:
    """Return the command of an entry point, in a source tree without metadata the one that it would name."""
    from importlib.metadata import EntryPoint, entry_points  # noqa: PLC0415 - only for these commands

    in_tree = EntryPoint(name, f"{package}.cli.{name}:command", GROUP)
    command: click.Command = next(iter(entry_points(group=GROUP, name=name)), in_tree).load()
    return command


_HIDDEN = ("greenlet", "rich")


def _load_structlog_alone() -> None:
    """Import structlog without rich: with it, structlog loads pygments for tracebacks in colour, 4 MiB of 90."""
    if "structlog" in sys.modules:
        return
    hidden = [name for name in _HIDDEN if name not in sys.modules]
    sys.modules.update(dict.fromkeys(hidden))  # type: ignore[arg-type]
    importlib.import_module("structlog")
    for name in hidden:
        del sys.modules[name]


@click.group(
    cls=LazyGroup,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
@click.version_option(__version__, prog_name="kvpressure")
@click.pass_context
def main(ctx: click.Context) -> None:
    """Report why a replica loses throughput to KV cache pressure: the exporter and its tools.

    Without a command, triage the engines of this machine.
    """
    if ctx.invoked_subcommand is None and (triage := main.get_command(ctx, "triage")) is not None:
        with triage.make_context("triage", [], parent=ctx) as alone:
            triage.invoke(alone)
