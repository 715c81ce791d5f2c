"""`kvpressure audit`: checks manifests, Helm values or a live cluster for safe limits.

The table is written here and not by rich, which measures and wraps every cell several times: an audit may have
thousands of rows, and only their last column needs wrapping.
"""

from __future__ import annotations

import gc
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

import click
from rich._wrap import divide_line
from rich.console import Console, ConsoleOptions, RenderResult
from rich.segment import Segment
from rich.style import Style

from kvpressure import __version__
from kvpressure.cli.console import WIDTH, console, phases
from kvpressure.cli.options import thresholds_of
from kvpressure.cli.say import CliError, fail, say, say_json
from kvpressure.config.files import read_text
from kvpressure.config.strict_yaml import ConfigError
from kvpressure.model.errors import SourceError
from kvpressure.net.open_files import open_regular
from kvpressure.printable import clean
from kvpressure_planner.audit import Knowledge, Manifests, Problem, Report, as_json, as_sarif, audit, playbook, read
from kvpressure_planner.audit.checks import CHECKS
from kvpressure_planner.audit.engine import Engine
from kvpressure_planner.audit.manifests import MAX_CHARS
from kvpressure_planner.audit.model import LEVELS, STATUSES, Finding, Place
from kvpressure_planner.cli.model_file import known_gpu, known_model, read_config

_SUFFIXES: Final = frozenset(
    (
        *(".yaml", ".yml", ".json", ".service", ".container"),
        *(".hcl", ".nomad", ".tf", ".sh", ".bash", ".slurm", ".sbatch"),
    )
)
_MAX_FILES: Final = 10_000
_FILE: Final = click.Path(dir_okay=False, path_type=Path)
_CHECK: Final = click.Choice([check.name for check in (*CHECKS, *playbook.CHECKS)])
_SKIP: Final = f"Leave a check out; may be repeated. Checks: {', '.join(_CHECK.choices)}."
_CONFIGS: Final = "A model's config.json, by the name it is served as."
_ENV_FILE: Final = "The variables of compose files, as docker compose takes it. No .env is read by itself."
_FAIL_ON: Final = "The lowest level of a failed check that ends with exit code 1."

Line = tuple[tuple[str, str], ...]
"""Pieces of text with their styles, "" for plain."""

_STYLES: Final = {"pass": "green", "fail": "bold red", "unknown": "yellow", "note": "cyan"}
_GAP: Final = "  "
_MIN_REASON: Final = 20
"""Minimum width of the last column."""


@click.command()
@click.argument("paths", nargs=-1, metavar="[FILE|DIR|-]...", type=click.Path(allow_dash=True))
@click.option("--cluster", is_flag=True, help="Read a live cluster, with your kubectl.")
@click.option("-n", "--namespace", multiple=True, help="With --cluster: this namespace; may be repeated.")
@click.option("-A", "--all-namespaces", is_flag=True, help="With --cluster: every namespace.")
@click.option("--context", help="Passed to kubectl.")
@click.option("--thresholds", type=_FILE, help="Your overrides of thresholds.yaml, or playbook: its fixed limits.")
@click.option("--skip", multiple=True, type=_CHECK, metavar="CHECK", help=_SKIP)
@click.option("--gpu", type=known_gpu, metavar="NAME", help="The GPU of engines whose manifests name none, as in plan.")
@click.option("--model-config", "configs", multiple=True, metavar="NAME=FILE", help=_CONFIGS)
@click.option("--env-file", type=_FILE, help=_ENV_FILE)
@click.option("--fail-on", type=click.Choice(LEVELS), default="warning", show_default=True, help=_FAIL_ON)
@click.option("--json", "as_json_object", is_flag=True, help="One JSON object.")
@click.option("--sarif", is_flag=True, help="SARIF 2.1.0, for code review.")
def command(paths: tuple[str, ...], **options: Any) -> None:
    """Check that engines declare safe limits: manifests, Helm values, scripts, a directory of them, or a cluster.

    Give everything that belongs together: ConfigMaps that hold configuration files, autoscalers, monitors and rules are
    read too, and what none of them describes is not judged. `-` is standard input, such as of helm template.

    Limits are computed as `kvpressure plan` does where model, GPU and lengths are known: from the manifests, the
    annotations that docs/audit.md lists, --gpu and --model-config.

    The exit code is 0 when nothing failed of the level that --fail-on names or above (unknown does not count), 1 when
    something did, and 2 when no engine was found.
    """
    _check_usage(paths, options)
    given = _from_cluster(options) if options["cluster"] else Manifests(())
    files = _config_files(options["configs"])
    knowledge = Knowledge(_models(files), options["gpu"], files)
    by_playbook = options["thresholds"] == Path("playbook")
    try:
        thresholds = thresholds_of(None if by_playbook else options["thresholds"])
    except ConfigError as error:
        raise click.BadParameter(str(error), param_hint="--thresholds") from error
    variables = _environment(options["env_file"]) if options["env_file"] else {}
    gc.disable()  # manifests are never garbage, and a collection would walk them all
    try:
        with phases() as show:
            for path in paths:
                given += _from_path(path, show, variables)
            result = audit(
                given, thresholds, options["skip"], knowledge, partial(show, "checking"), by_playbook=by_playbook
            )
    finally:
        gc.enable()
    _print(result, options)
    sys.exit(result.exit_code(options["fail_on"]))


def _config_files(given: tuple[str, ...]) -> dict[str, str]:
    """Return the files of configurations by the served name of a model. Raises click.BadParameter."""
    files: dict[str, str] = {}
    for pair in given:
        name, equals, path = pair.rpartition("=")
        if not equals or not name:
            raise click.BadParameter(f"{pair!r} is not NAME=FILE", param_hint="--model-config")
        files[name] = path
    return files


def _models(files: Mapping[str, str]) -> Callable[[str], Mapping[str, Any] | None]:
    """Return a lookup of configurations by the served name of a model: those given, then the packaged ones."""
    try:
        own = {name: read_config(Path(path)) for name, path in files.items()}
    except CliError as error:
        raise click.BadParameter(str(error), param_hint="--model-config") from error
    return lambda served: own.get(served) or known_model(served)


def _check_usage(paths: tuple[str, ...], options: dict[str, Any]) -> None:
    if not paths and not options["cluster"]:
        raise click.UsageError("give files or directories, - for standard input, or --cluster")
    if options["as_json_object"] and options["sarif"]:
        raise click.UsageError("give --json or --sarif, not both")
    if options["namespace"] and options["all_namespaces"]:
        raise click.UsageError("give --namespace or --all-namespaces, not both")
    for name in ("namespace", "all_namespaces", "context"):
        if options[name] and not options["cluster"]:
            raise click.UsageError(f"--{name.replace('_', '-')} is for --cluster")


def _print(result: Report, options: dict[str, Any]) -> None:
    if options["as_json_object"] or options["sarif"]:
        say_json(as_sarif(result, __version__) if options["sarif"] else as_json(result))
    elif result.engines:
        show_audit(result)
    for problem in result.problems:
        say(problem, err=True)
    if not result.engines:
        where = "the cluster" if options["cluster"] else "these files"
        say(
            f"no engine found: nothing in {where} that could be read starts one; docs/audit.md lists what can", err=True
        )


def _from_path(path: str, show: Callable[[str, int, int], None], variables: Mapping[str, str]) -> Manifests:
    if path == "-":
        return _parsed(sys.stdin.buffer.read(MAX_CHARS * 4 + 1), "stdin", variables)
    given = Manifests(())
    files = list(_files(Path(path)))
    for done, file in enumerate(files):
        show("reading", done, len(files))
        try:
            # A tree may come from anybody: no link in it is followed, and nothing is read that is no file.
            with open_regular(file, follow=False) as opened:
                given += _parsed(opened.read(MAX_CHARS * 4 + 1), str(file), variables)
        except OSError as error:
            given += _problem(f"cannot be read: {error.strerror or error}", str(file))
    return given


def _files(path: Path) -> Iterator[Path]:
    """Yield the file itself, or all files below a directory that may start something, without hidden ones."""
    if not path.is_dir():
        yield path
        return
    count = 0
    for folder, inner, files in os.walk(path):
        inner[:] = sorted(name for name in inner if not name.startswith("."))
        for name in sorted(files):
            if not name.startswith(".") and Path(name).suffix.lower() in _SUFFIXES and count < _MAX_FILES:
                count += 1
                yield Path(folder, name)


def _environment(path: Path) -> dict[str, str]:
    """Return the variables of an environment file."""
    try:
        text = read_text(path)
    except ConfigError as error:
        raise click.BadParameter(str(error), param_hint="--env-file") from error
    pairs = (line.strip().removeprefix("export ").partition("=") for line in text.splitlines())
    return {
        name.strip(): value.strip().strip("'\"") for name, equals, value in pairs if equals and not name.startswith("#")
    }


def _parsed(data: bytes, name: str, variables: Mapping[str, str]) -> Manifests:
    try:
        return read(data.decode("utf-8-sig"), name, variables)
    except UnicodeDecodeError as error:
        return _problem("is not UTF-8", name, data.count(b"\n", 0, error.start) + 1)


def _problem(message: str, name: str, line: int | None = None) -> Manifests:
    return Manifests((), (Problem(message, Place(name, line)),))


def _from_cluster(options: dict[str, Any]) -> Manifests:
    from kvpressure_planner.cli.audit.cluster import read_cluster  # noqa: PLC0415 - slow to import, only needed here

    namespaces = ("*",) if options["all_namespaces"] else options["namespace"]
    try:
        return read_cluster(options["context"], namespaces)
    except SourceError as error:
        fail(error)


def show_audit(result: Report) -> None:
    """Print every engine with its checks in their order, and the counts."""
    out = console()
    if out.is_terminal:
        out.print(_Lines(result), crop=False)
    else:
        say(*("".join(text for text, _ in line).rstrip() for line in lines(result, WIDTH)))


def lines(result: Report, width: int) -> Iterator[Line]:
    """Yield the lines of an audit, at most `width` columns wide, but for fixes to paste."""
    for engine in result.engines:
        namespace = f" in namespace {engine.namespace}" if engine.namespace else ""
        title = f"{engine.title}{namespace}, container {engine.container} ({engine.place})"
        yield from _wrapped(clean(title), width, "bold")
        for note in engine.reading.notes:
            yield from _wrapped(clean(f"  {note}"), width, "yellow")
        yield from _table(engine, width)
        for finding in engine.findings:
            if finding.place.line is not None and finding.place.file != engine.place.file:
                yield from _wrapped(clean(f"  * {finding.check}: {finding.place}"), width, "dim")
        yield from _fixes(engine, width)
        yield ()
    engines = f"{len(result.engines)} engine{'' if len(result.engines) == 1 else 's'}"
    said: dict[tuple[str, str], list[str]] = {}
    for finding in result.of_all:
        said.setdefault((finding.status, finding.reason), []).append(finding.check)
    for (status, reason), checks in said.items():
        yield from _wrapped(clean(f"{status}  {', '.join(checks)}: {reason}"), width, _STYLES[status])
    counts = Counter(_shown(finding) for finding in result.findings())
    words = [*STATUSES, *(["note"] if counts["note"] else [])]
    yield from _wrapped(f"{engines}: {', '.join(f'{counts[word]} {word}' for word in words)}", width)


def _shown(finding: Finding) -> str:
    """Return the status, "note" for a failed check of that level."""
    return "note" if finding.status == "fail" and finding.level == "note" else finding.status


class _Lines:
    """The lines for a terminal."""

    def __init__(self, result: Report) -> None:
        self._result = result

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        styles: dict[str, Style | None] = {"": None}
        for line in lines(self._result, options.max_width):
            for text, style in line:
                if style not in styles:
                    styles[style] = console.get_style(style)
                yield Segment(text, styles[style])
            yield Segment.line()


def _table(engine: Engine, width: int) -> Iterator[Line]:
    numbers = [_line_number(finding, engine) for finding in engine.findings]
    status = max(len(word) for word in ("status", *map(_shown, engine.findings)))
    check = max(len(word) for word in ("check", *(finding.check for finding in engine.findings)))
    number = max(len(word) for word in ("line", *numbers))
    begin = len(_GAP) + status + check + number + 3 * len(_GAP)
    yield ((f"{_GAP}{'status':<{status}}{_GAP}{'check':<{check}}{_GAP}{'line':>{number}}{_GAP}found", "dim"),)
    for finding, line in zip(engine.findings, numbers, strict=True):
        reason = _wrapped(clean(finding.reason), max(width - begin, _MIN_REASON))
        shown = _shown(finding)
        before = f"{'':{status - len(shown)}}{_GAP}{finding.check:<{check}}{_GAP}{line:>{number}}{_GAP}"
        first = next(reason, ())
        yield (_GAP, ""), (shown, _STYLES[shown]), (before, ""), *first
        for more in reason:
            yield (" " * begin, ""), *more


def _line_number(finding: Finding, engine: Engine) -> str:
    """Return the line number, with a star where it is of another file than the engine's."""
    if finding.place.line is None:
        return ""
    elsewhere = "" if finding.place.file == engine.place.file else "*"
    return f"{finding.place.line}{elsewhere}"


def _fixes(engine: Engine, width: int) -> Iterator[Line]:
    fixed = [finding for finding in engine.findings if finding.status == "fail" and finding.fix]
    fixed.sort(key=lambda finding: finding.level == "note")
    title = ""
    for finding in fixed:
        if title != (title := "  Note" if finding.level == "note" else "  Fix"):
            yield ((title, "bold"),)
        yield from _wrapped(clean(f"   {finding.check}, {finding.place}"), width, "dim")
        for line in finding.fix.splitlines():
            yield ((clean(f"     {line}"), "cyan"),)


def _wrapped(text: str, width: int, style: str = "") -> Iterator[Line]:
    """Yield the text in lines of at most `width` columns, wrapped as rich does."""
    ends = [] if len(text) <= width and text.isascii() else divide_line(text, width)
    for start, end in zip([0, *ends], [*ends, None], strict=True):
        yield ((text[start:end].rstrip(), style),)
