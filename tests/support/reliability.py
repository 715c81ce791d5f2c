"""`docs/reliability.md`: one row per fault that a test is marked with, and how the test ended when it was last run.

`python -m tests.support.reliability` runs every marked test and writes the rows; what stands around them is kept.
"""

from __future__ import annotations

import ast
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "reliability.md"
BEGIN, END = "<!-- rows: make reliability -->\n", "<!-- end of rows -->\n"


@dataclass(frozen=True, slots=True, order=True)
class Row:
    """A promise: `what` goes wrong, what happens then, and the test that shows it as `path::name`."""

    what: str
    promise: str
    test: str


def rows() -> list[Row]:
    """Every marked test, read from the tests' source, faults that are alike together."""
    return sorted(row for path in sorted(ROOT.glob("tests/**/test_*.py")) for row in _of_file(path))


def _of_file(path: Path) -> Iterator[Row]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            for decorator in node.decorator_list:
                if isinstance(decorator, ast.Call) and ast.unparse(decorator.func) == "pytest.mark.fault":
                    what, promise = (ast.literal_eval(argument) for argument in decorator.args)
                    yield Row(what, promise, f"{path.relative_to(ROOT)}::{node.name}")


class Outcomes:
    """A pytest plugin that counts how the cases of each test ended, by `path::name`."""

    def __init__(self) -> None:
        self.ended: dict[str, Counter[str]] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count a case once: its call, or whatever kept it from being called."""
        if report.when == "call" or report.outcome != "passed":
            self.ended.setdefault(report.nodeid.partition("[")[0], Counter())[report.outcome] += 1


def table(outcomes: dict[str, Counter[str]]) -> str:
    """The rows as Markdown."""
    lines = ["| what goes wrong | what is promised | test | result |\n", "|---|---|---|---|\n"]
    for row in rows():
        counts = outcomes.get(row.test, Counter({"not run": 1}))
        result = ", ".join(word if n == 1 else f"{n} {word}" for word, n in sorted(counts.items()))
        path, _, name = row.test.partition("::")
        lines.append(f"| {row.what} | {row.promise} | [{name}](../{path}) | {result} |\n")
    return "".join(lines)


def main() -> int:
    """Run the marked tests, slow ones too; the exit code is theirs."""
    outcomes = Outcomes()
    code = pytest.main([*{row.test.partition("::")[0] for row in rows()}, "-q", "-m", "fault"], plugins=[outcomes])
    before, _, rest = PAGE.read_text().partition(BEGIN)
    PAGE.write_text(before + BEGIN + table(outcomes.ended) + END + rest.partition(END)[2])
    return int(code)


if __name__ == "__main__":
    sys.exit(main())
