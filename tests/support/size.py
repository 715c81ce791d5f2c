"""`make size`: the measures of the project's size, counted from the source. Lines are all lines of a file."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import click

from kvpressure.cli import installed, main
from tests.support.tools import ROOT

EXPORTER = ROOT / "exporter"
RUN = "kvpressure.cli.run"
SHORT, LONG = 60, 600


def module_path(name: str) -> Path | None:
    """The file of a module of ours, None for any other."""
    plain = EXPORTER.joinpath(*name.split("."))
    found = (path for path in (plain.with_suffix(".py"), plain / "__init__.py") if path.is_file())
    return next(found, None)


def imports(path: Path) -> Iterator[str]:
    """What a file imports, inside functions too, but not for type checkers alone; rooms found at run time whole."""
    tree = ast.parse(path.read_text())
    unseen = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for statement in node.body
        for inner in ast.walk(statement)
    }
    for node in ast.walk(tree):
        if id(node) in unseen:
            continue
        if isinstance(node, ast.Import):
            yield from (one.name for one in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{one.name}" for one in node.names)
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("exported", "import_module", "find_spec"):
            first = node.args[0] if node.args else None
            if isinstance(first, ast.Constant) and isinstance(first.value, str):
                room = EXPORTER.joinpath(*first.value.split("."))
                yield from (_name(one) for one in room.rglob("*.py"))
                yield first.value


def closure(name: str = RUN) -> frozenset[Path]:
    """All files of ours that loading a module may load."""
    left, found = [name], set[Path]()
    while left:
        one = left.pop()
        while one:  # a package's __init__ is loaded with each of its modules
            path = module_path(one)
            if path is not None and path not in found:
                found.add(path)
                left += imports(path)
            one = one.rpartition(".")[0]
    return frozenset(found)


def _name(path: Path) -> str:
    return ".".join(path.relative_to(EXPORTER).with_suffix("").parts).removesuffix(".__init__")


def lines(paths: Iterable[Path]) -> int:
    """The lines of these files together."""
    return sum(len(path.read_text(errors="replace").splitlines()) for path in paths)


def words(paths: Iterable[Path]) -> int:
    """The words of these files together."""
    return sum(len(path.read_text().split()) for path in paths)


def options() -> int:
    """The options of all commands, as click has them, without --help."""
    context = click.Context(main)
    commands = [command for name in installed() if (command := main.get_command(context, name)) is not None]
    return sum(isinstance(each, click.Option) for command in commands for each in command.params)


def measures() -> dict[str, tuple[int, str]]:
    """Each measure's value now, and its bar."""
    package, docs = [*EXPORTER.rglob("*.py")], ROOT / "docs"
    sizes = [lines([path]) for path in package if not path.parts[-1].startswith("__")]
    reference = (docs / "configuration.md").read_text().splitlines()
    records = [path for path in (docs / "internals" / "decisions").glob("*.md") if re.match(r"\d", path.name)]
    return {
        "lines that `kvpressure run` loads": (lines(closure()), "36,000"),
        "package, lines": (lines(package), "52,000"),
        "tests, lines": (lines((ROOT / "tests").rglob("*.py")), "66,000"),
        "benches, lines": (lines((ROOT / "bench").rglob("*.py")), "10,000"),
        "SECURITY.md, bytes": ((ROOT / "SECURITY.md").stat().st_size, "16,384"),
        "CHANGELOG.md, bytes": ((ROOT / "CHANGELOG.md").stat().st_size, "one paragraph"),
        "decision records": (len(records), "40"),
        "words of docs/*.md": (words(docs.glob("*.md")), "30,000"),
        "words of runbooks": (words((docs / "runbooks").glob("*.md")), "9,000"),
        "settings": (sum(row.startswith("| `") for row in reference), "95"),
        "options of the command line": (options(), "150"),
        f"files under {SHORT} lines": (sum(size < SHORT for size in sizes), "25"),
        f"files over {LONG} lines": (sum(size > LONG for size in sizes), "0"),
    }


if __name__ == "__main__":
    for name, (value, bar) in measures().items():
        print(f"{name:36} {value:>8,}  at most {bar}")  # noqa: T201
