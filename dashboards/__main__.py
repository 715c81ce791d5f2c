"""`python -m dashboards`: write the templates again, from which `kvpressure generate` makes the dashboards."""

from __future__ import annotations

from pathlib import Path

from dashboards import capacity, engine, exporter, fleet
from dashboards.board import text_of

TEMPLATES = Path(__file__).parent / "templates"
BOARDS = (fleet.board, engine.board, capacity.board, exporter.board)


def templates() -> dict[str, str]:
    """File name to text."""
    return {f"{board.uid}.json.j2": text_of(board) for board in (make() for make in BOARDS)}


def main() -> None:
    """Write them."""
    for name, text in templates().items():
        (TEMPLATES / name).write_text(text, "utf-8")


if __name__ == "__main__":
    main()
