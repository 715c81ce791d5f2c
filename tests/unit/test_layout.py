"""Tests mirror what they test: a module's tests are found by its path, and what tests share by looking in one place."""

import ast
from collections.abc import Iterator
from pathlib import Path

import kvpressure
from tests.support.tools import ROOT

TESTS = ROOT / "tests"
UNIT = TESTS / "unit"
EXPORTER = Path(kvpressure.__file__).parents[1]
OTHERS = ("kvpressure_planner", "kvpressure_incidents")
"""Packages with a folder of their own in tests/unit, beside those of the rooms of `kvpressure`."""

OF_TESTS_ALONE = ("unit", "faults", "promises", "e2e", "deploy", "rules", "bench")
"""Folders of tests. The others under tests/ are tools with tests of their own, or what tests stand on."""


def package_of(folder: Path) -> Path:
    """The package that a folder of tests/unit is about."""
    inside = folder.relative_to(UNIT)
    return EXPORTER / inside if inside.parts[0] in OTHERS else EXPORTER / "kvpressure" / inside


def modules_of(folder: Path) -> set[str]:
    """Names that tests in a folder of tests/unit may begin with: its package, and the modules and packages in it."""
    package = package_of(folder)
    inside = {path.stem for path in package.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    return inside - {"__init__"} | {package.name}


def imported(path: Path) -> Iterator[str]:
    """What a module imports, wherever in it, as dotted names."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{name.name}" for name in node.names)


def test_every_folder_of_unit_tests_has_its_package():
    folders = {path.parent for path in UNIT.rglob("test_*.py")} - {UNIT}
    assert [str(folder) for folder in folders if not (package_of(folder) / "__init__.py").exists()] == []


def test_every_file_of_unit_tests_begins_with_the_name_of_its_module():
    strays = [
        str(path.relative_to(ROOT))
        for path in UNIT.rglob("test_*.py")
        if path.parent != UNIT
        and not any(f"{path.stem}_".startswith(f"test_{name}_") for name in modules_of(path.parent))
    ]
    assert strays == [], "name it after the module it is about, or put it with the promises"


def test_beside_the_packages_lies_nothing_but_this():
    assert {path.name for path in UNIT.glob("*.py")} == {"__init__.py", Path(__file__).name}


def test_no_module_imports_a_module_of_tests():
    wrong = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in (*TESTS.rglob("*.py"), *(ROOT / "bench").rglob("*.py"), *(ROOT / "dashboards").rglob("*.py"))
        for name in imported(path)
        if name.startswith("tests.") and any(part.startswith("test_") for part in name.split("."))
    ]
    assert wrong == [], "what two of them need goes to tests/support"


def test_folders_of_tests_hold_nothing_but_tests():
    helpers = [
        str(path.relative_to(ROOT))
        for name in OF_TESTS_ALONE
        for path in (TESTS / name).rglob("*.py")
        if not path.name.startswith("test_") and path.name not in ("__init__.py", "conftest.py")
    ]
    assert helpers == [], "helpers live in tests/support"


def test_every_folder_of_tests_is_a_package():
    folders = {path.parent for path in TESTS.rglob("test_*.py")}
    assert [str(folder) for folder in folders if not (folder / "__init__.py").exists()] == []
