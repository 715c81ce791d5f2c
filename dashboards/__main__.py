"""`python -m dashboards`: write the templates from which `kvpressure generate` makes the dashboards."""

from __future__ import annotations

import os
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


def main() -> int:
    """Bring TEMPLATES up to date and return how many files that changed; readers never see half a file."""
    made = {TEMPLATES / name: text for name, text in templates().items()}
    stale = [path for path in TEMPLATES.rglob("*.json.j2") if path not in made]
    changed = {path: text for path, text in made.items() if not path.exists() or path.read_text("utf-8") != text}
    for path in stale:
        path.unlink()
    for path, text in changed.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        written = path.with_name(f".{path.name}.{os.getpid()}")
        written.write_text(text, "utf-8")
        written.replace(path)
    return len(changed) + len(stale)


if __name__ == "__main__":
    main()
