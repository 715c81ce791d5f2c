"""`kvpressure audit`: the prevention checklist against manifests, Helm values or a live cluster."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

import click

from kvpressure import __version__
from kvpressure.cli.audit_report import show_audit
from kvpressure.cli.model_file import ConfigFileError, known_gpu, known_model, read_config
from kvpressure.cli.options import thresholds_of
from kvpressure.cli.progress import Bar
from kvpressure.cli.say import fail, say, say_json
from kvpressure.config.files import NotAFileError, read_text, require_regular
from kvpressure.config.strict_yaml import ConfigError
from kvpressure.tools.audit import Knowledge, Manifests, Problem, audit, read
from kvpressure.tools.audit.as_json import as_json
from kvpressure.tools.audit.checks import CHECKS
from kvpressure.tools.audit.manifests import MAX_CHARS
from kvpressure.tools.audit.model import LEVELS, Place, Report
from kvpressure.tools.audit.sarif import as_sarif

_SUFFIXES: Final = frozenset((".yaml", ".yml", ".json"))
_MAX_FILES: Final = 10_000


@click.command()
@click.argument("paths", nargs=-1, metavar="[FILE|DIR|-]...", type=click.Path(allow_dash=True))
@click.option("--cluster", is_flag=True, help="Read a live cluster, with your kubeconfig.")
@click.option("-n", "--namespace", multiple=True, help="With --cluster: this namespace; may be repeated.")
@click.option("-A", "--all-namespaces", is_flag=True, help="With --cluster: every namespace.")
@click.option("--kubeconfig", type=click.Path(dir_okay=False), help="Instead of $KUBECONFIG or ~/.kube/config.")
@click.option("--context", help="Instead of the kubeconfig's current context.")
@click.option(
    "--thresholds", type=click.Path(dir_okay=False, path_type=Path), help="Your overrides of thresholds.yaml."
)
@click.option(
    "--skip", multiple=True, type=click.Choice([check.name for check in CHECKS]), help="Leave a check out; repeatable."
)
@click.option("--gpu", type=known_gpu, metavar="NAME", help="The GPU of engines whose manifests name none, as in plan.")
@click.option(
    "--model-config",
    "configs",
    multiple=True,
    metavar="NAME=FILE",
    help="A model's config.json, by the name it is served as.",
)
@click.option(
    "--fail-on",
    type=click.Choice(LEVELS),
    default="warning",
    show_default=True,
    help="The lowest level of a failed check that ends with exit code 1.",
)
@click.option("--json", "as_json_object", is_flag=True, help="One JSON object.")
@click.option("--sarif", is_flag=True, help="SARIF 2.1.0, for code review.")
def command(paths: tuple[str, ...], **options: Any) -> None:
    """Check that engines declare safe limits: manifests, Helm values, a directory of them, or a cluster.

    Give everything that belongs together: ConfigMaps that hold configuration files, autoscalers, monitors and rules are
    read too. `-` is standard input, such as the output of helm template.

    Limits are computed as `kvpressure plan` does where model, GPU and lengths are known: from the manifests, the
    annotations that docs/audit.md lists, --gpu and --model-config.

    The exit code is 0 when nothing failed of the level that --fail-on names or above (unknown does not count), 1 when
    something did, and 2 when no engine was found.
    """
    _check_usage(paths, options)
    given = _from_cluster(options) if options["cluster"] else Manifests(())
    knowledge = Knowledge(_models(options["configs"]), options["gpu"])
    try:
        thresholds = thresholds_of(options["thresholds"])
    except ConfigError as error:
        raise click.BadParameter(str(error), param_hint="--thresholds") from error
    with _everything_kept(), Bar() as bar:
        for path in paths:
            given += _from_path(path, bar)
        result = audit(given, thresholds, options["skip"], knowledge, partial(bar.show, "checking"))
    _print(result, options)
    sys.exit(result.exit_code(options["fail_on"]))


@contextmanager
def _everything_kept() -> Iterator[None]:
    """No garbage collection: what is read of a cluster is kept to the end, and looked through again and again."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _models(given: tuple[str, ...]) -> Callable[[str], Mapping[str, Any] | None]:
    """Return configurations by the name a model is served under: those given, then those that come with the package."""
    own: dict[str, Mapping[str, Any]] = {}
    for one in given:
        name, equals, path = one.rpartition("=")
        if not equals or not name:
            raise click.BadParameter(f"{one!r} is not NAME=FILE", param_hint="--model-config")
        try:
            own[name] = read_config(Path(path))
        except ConfigFileError as error:
            raise click.BadParameter(str(error), param_hint="--model-config") from error
    return lambda served: own.get(served) or known_model(served)


def _check_usage(paths: tuple[str, ...], options: dict[str, Any]) -> None:
    if not paths and not options["cluster"]:
        raise click.UsageError("give files or directories, - for standard input, or --cluster")
    if options["as_json_object"] and options["sarif"]:
        raise click.UsageError("give --json or --sarif, not both")
    if options["namespace"] and options["all_namespaces"]:
        raise click.UsageError("give --namespace or --all-namespaces, not both")
    for name in ("namespace", "all_namespaces", "kubeconfig", "context"):
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
        say("no engine found in what could be read", err=True)


def _from_path(path: str, bar: Bar) -> Manifests:
    if path == "-":
        return _parsed(sys.stdin.buffer.read(MAX_CHARS * 4 + 1), "stdin")
    given = Manifests(())
    files = list(_files(Path(path)))
    for done, file in enumerate(files):
        bar.show("reading", done, len(files))
        try:
            require_regular(file)
            with file.open("rb") as opened:
                given += _parsed(opened.read(MAX_CHARS * 4 + 1), str(file), _environment(file))
        except NotAFileError as error:
            given += _problem(f"cannot be read: {error.strerror}; standard input is given as -", str(file))
        except OSError as error:
            given += _problem(f"cannot be read: {error.strerror or error}", str(file))
    return given


def _files(path: Path) -> Iterator[Path]:
    """Return the file itself, or all manifests below a directory; hidden ones are left alone."""
    if not path.is_dir():
        yield path
        return
    found = (file for file in sorted(path.rglob("*")) if file.suffix.lower() in _SUFFIXES and file.is_file())
    visible = (file for file in found if not any(part.startswith(".") for part in file.relative_to(path).parts))
    for count, file in enumerate(visible):
        if count >= _MAX_FILES:
            return
        yield file


def _environment(file: Path) -> dict[str, str]:
    """Return what compose would take from the .env beside a file; nothing where there is none that can be read."""
    path = file.parent / ".env"
    try:
        require_regular(path)
        text = read_text(path)
    except (OSError, ConfigError):
        return {}
    pairs = (line.strip().removeprefix("export ").partition("=") for line in text.splitlines())
    return {
        name.strip(): value.strip().strip("'\"") for name, equals, value in pairs if equals and not name.startswith("#")
    }


def _parsed(data: bytes, name: str, environment: Mapping[str, str] | None = None) -> Manifests:
    try:
        return read(data.decode("utf-8-sig"), name, environment)
    except UnicodeDecodeError as error:
        return _problem("is not UTF-8", name, data.count(b"\n", 0, error.start) + 1)


def _problem(message: str, name: str, line: int | None = None) -> Manifests:
    return Manifests((), (Problem(message, Place(name, line)),))


def _from_cluster(options: dict[str, Any]) -> Manifests:
    # The client takes time to import, and only this needs it.
    from kvpressure.cli.audit_cluster import ClusterError, read_cluster  # noqa: PLC0415

    namespaces = ("*",) if options["all_namespaces"] else options["namespace"]
    try:
        return read_cluster(options["kubeconfig"], options["context"], namespaces)
    except ClusterError as error:
        fail(error)
