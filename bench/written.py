"""Pages under docs/internals/accuracy: written by people, but for what stands between two marks of a program."""

from __future__ import annotations

from pathlib import Path
from typing import Final

ACCURACY: Final = Path(__file__).parents[1] / "docs" / "internals" / "accuracy"


def mark(program: str) -> str:
    """Return the line before and after what `python -m PROGRAM --write-docs` writes."""
    return f"<!-- python -m {program} --write-docs -->"


def between(text: str, program: str, inside: str) -> str:
    """Return the page's text with `inside` between the program's marks. ValueError where these are not two."""
    before, _, after = text.split(mark(program))
    return f"{before}{mark(program)}\n{inside.strip()}\n{mark(program)}{after}"


def write_part(page: str, program: str, inside: str) -> None:
    """Write that part of a page, by the page's file name."""
    path = ACCURACY / page
    path.write_text(between(path.read_text(), program, inside))
