"""`docs/internals/reliability.md`: one row per fault that a test is marked with, and how that test ended last.

`python -m tests.support.reliability` runs every marked test and writes the rows, and what fuzzing has come to (from
`tests/fuzz/results.json`); what stands around them is kept. With `--fuzzing` it writes that section alone.
"""

import ast
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.fuzz import registry, results

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "internals" / "reliability.md"
BEGIN, END = "<!-- rows: make reliability -->\n", "<!-- end of rows -->\n"
FUZZING, FUZZING_END = "<!-- fuzzing: make reliability -->\n", "<!-- end of fuzzing -->\n"


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
        lines.append(f"| {row.what} | {row.promise} | [{name}](../../{path}) | {result} |\n")
    return "".join(lines)


def fuzzing(found: Mapping[str, Any]) -> str:
    """What fuzzing has come to, as Markdown; `found` is the content of `tests/fuzz/results.json`."""
    targets, tools = found["targets"], ", ".join(f"{name} {version}" for name, version in found["tools"].items())
    inputs = sum(one["inputs"] for one in targets.values())
    hours = sum(one["cpu_seconds"] for one in targets.values()) / 3600
    seeds = ", ".join(map(str, sorted({seed for one in targets.values() for seed in one["seeds"]})))
    lines = [
        "## Fuzzing\n\n",
        f"`make fuzz` has given {inputs:,} inputs to what reads foreign text, in {hours:.2f} hours of CPU\n",
        f"(seeds {seeds};\n{tools}).\n",
        "Inputs are drawn from grammars and mutated; those that reach new code are kept and mutated again. What must\n",
        "hold of each answer stands in `tests/fuzz/targets`; everything found is replayed by `make test`.\n\n",
        "| target | what is read | inputs | CPU s | slowest ms |\n|---|---|---:|---:|---:|\n",
    ]
    for name, one in targets.items():
        figures = f"{one['inputs']:,} | {one['cpu_seconds']:.0f} | {one['slowest_milliseconds']:.0f}"
        lines.append(f"| [{name}](../../tests/fuzz/targets/{name}.py) | {registry.load(name).about} | {figures} |\n")
    lines.append("\n| found in | what was found | fixed by |\n|---|---|---|\n")
    lines += [f"| {one['target']} | {one['what']} | {one['fixed_by']} |\n" for one in found["findings"]]
    return "".join(lines)


def put(page: str, begin: str, end: str, text: str) -> str:
    """`page` with `text` between its marks `begin` and `end`, which are put at its end where it has none."""
    before, _, rest = page.partition(begin)
    return before + begin + text + end + rest.partition(end)[2]


def main() -> int:
    """Run the marked tests, slow ones too; the exit code is theirs."""
    PAGE.write_text(put(PAGE.read_text(), FUZZING, FUZZING_END, fuzzing(results.load())))
    if sys.argv[1:] == ["--fuzzing"]:
        return 0
    outcomes = Outcomes()
    code = pytest.main([*{row.test.partition("::")[0] for row in rows()}, "-q", "-m", "fault"], plugins=[outcomes])
    PAGE.write_text(put(PAGE.read_text(), BEGIN, END, table(outcomes.ended)))
    return int(code)


if __name__ == "__main__":
    sys.exit(main())
