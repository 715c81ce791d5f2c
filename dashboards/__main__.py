"""`python -m dashboards`: write the templates again, from which `kvpressure generate` makes the dashboards."""

from __future__ import annotations

from pathlib import Path

from dashboards import capacity, engine, exporter, fleet, vllm_only
from dashboards.board import text_of

TEMPLATES = Path(__file__).parent / "templates"
BOARDS = (fleet.board, engine.board, capacity.board, exporter.board)
VLLM_ONLY = (vllm_only.board,)
"""Of the flavour that needs no exporter, in a folder of its own."""


def templates() -> dict[str, str]:
    """Path below the folder of templates to text."""
    made = {f"{board.uid}.json.j2": text_of(board) for board in (make() for make in BOARDS)}
    own = {f"vllm-only/{board.uid}.json.j2": text_of(board) for board in (make() for make in VLLM_ONLY)}
    return made | own


def main() -> None:
    """Write them."""
    for name, text in templates().items():
        (TEMPLATES / name).parent.mkdir(exist_ok=True)
        (TEMPLATES / name).write_text(text, "utf-8")


if __name__ == "__main__":
    main()
