"""Prose for people stays within 120 characters a line; tables and commands cannot be broken."""

from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MAX_LENGTH = 120
GENERATED = {"docs/alerts.md", "docs/metrics.md", "docs/configuration.md"}
PAGES = [
    *(ROOT / name for name in ("README.md", "SECURITY.md", "CONTRIBUTING.md", "CHANGELOG.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]
PROSE = [page for page in PAGES if page.relative_to(ROOT).as_posix() not in GENERATED]


def prose(text: str) -> Iterator[str]:
    """Lines that are neither of a table nor of a block of code."""
    fenced = False
    for line in text.splitlines():
        if line.lstrip().startswith("```"):
            fenced = not fenced
        elif not fenced and not line.lstrip().startswith(("|", "![", "    ")):
            yield line


@pytest.mark.parametrize("page", PROSE, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_prose_stays_within_the_line(page: Path):
    assert [line for line in prose(page.read_text()) if len(line) > MAX_LENGTH and " " in line.strip()] == []
