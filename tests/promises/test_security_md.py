"""SECURITY.md says what each adversary cannot do; here, that every one of these claims has a test that exists."""

import ast
import json
import re
import tomllib
from functools import cache

import pytest

from tests.support.tools import ROOT

PAGE = (ROOT / "SECURITY.md").read_text()
ADVERSARIES = (
    *("Whoever creates a pod", "An engine's page", "A publisher of KV events", "A gateway, another GPU exporter"),
    *("A log line, and who writes logs", "A client of the web server", "The answers of peers at the prompt"),
    *("A recording, trace or manifest", "The GPU child", "A settings file or file_sd entry"),
    *("An attacker who controls the exporter", "An attacker in the supply chain"),
)
NAMED = re.compile(r"`(test_\w+)`")
LARGEST_BYTES = 16_000


def sections() -> dict[str, str]:
    """Each adversary's text, by its heading."""
    threats = PAGE.partition("\n## Threats\n")[2].partition("\n## ")[0]
    parts = re.split(r"^### (.+)$", threats, flags=re.MULTILINE)[1:]
    return dict(zip(parts[::2], parts[1::2], strict=True))


def claims(section: str) -> list[tuple[str, str]]:
    """Rows of its table: what cannot be done, and the cell with the tests."""
    rows = [line.strip("|").split("|") for line in section.splitlines() if line.startswith("|")][2:]
    return [(claim.strip(), tests.strip()) for claim, tests in rows]


@cache
def collected() -> frozenset[str]:
    """Tests that pytest collects, but those that are skipped wherever they run."""
    found: set[str] = set()
    for path in (ROOT / "tests").rglob("test_*.py"):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
                marks = {ast.unparse(mark).partition("(")[0] for mark in node.decorator_list}
                if not marks & {"pytest.mark.skip", "pytest.mark.xfail", "pytest.mark.slow"}:
                    found.add(node.name)
    return frozenset(found)


def missing(cell: str) -> list[str]:
    """What is wrong with the tests that a row names; empty when it names at least one, and all exist."""
    named = NAMED.findall(cell)
    wrong = [name for name in named if name not in collected()]
    rest = NAMED.sub("", cell).replace(",", "").strip()
    return wrong + ([rest] if rest else []) + ([] if named else ["no test"])


def test_the_page_is_short_enough_to_be_read() -> None:
    assert len(PAGE.encode()) <= LARGEST_BYTES


def test_whoever_says_how_many_packages_were_audited_says_it_of_today() -> None:
    audit = json.loads((ROOT / "requirements" / "audit.json").read_text())
    assert f"{audit['audited']} of {audit['audited'] + len(audit['not_audited'])} packages were audited" in PAGE


def test_every_adversary_has_its_section_and_no_other_is_there() -> None:
    assert tuple(sections()) == ADVERSARIES


@pytest.mark.parametrize("adversary", ADVERSARIES)
def test_every_claim_of_what_an_adversary_cannot_do_has_a_test_that_exists(adversary: str) -> None:
    section = sections()[adversary]
    assert re.search(r"\bCan: \w", section), "what it can do is not said"
    found = claims(section)
    assert found
    assert {claim: wrong for claim, cell in found if (wrong := missing(cell))} == {}


@pytest.mark.parametrize(
    "cell",
    [
        "",
        "somewhere",
        "`test_that_nobody_wrote`",
        "`sections`",
    ],
)
def test_a_claim_without_a_test_would_be_noticed(cell: str) -> None:
    assert missing(cell)


def test_a_claim_with_its_test_is_fine() -> None:
    assert missing("`test_a_claim_with_its_test_is_fine`") == []


def test_the_supported_version_is_the_one_that_is_made() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert f"| {version.rpartition('.')[0]} (newest release) | yes |" in PAGE


def test_what_the_page_links_and_tells_to_type_is_there() -> None:
    assert all((ROOT / link).exists() for link in re.findall(r"\]\(([^)#:]+)\)", PAGE))
    makefiles = [ROOT / "Makefile", *(ROOT / "make").glob("*.mk")]
    targets = {name for file in makefiles for name in re.findall(r"^([a-z0-9-]+):", file.read_text(), re.MULTILINE)}
    assert set(re.findall(r"(?:`|&& )make ([a-z0-9-]+)", PAGE)) <= targets
    base = re.search(r"^ARG PYTHON_IMAGE=(\S+)", (ROOT / "deploy/docker/Dockerfile").read_text(), re.MULTILINE)
    assert base
    assert f"The base image is `{base[1]}`" in PAGE
