"""`python -m dashboards`: write the templates, and what the packaged thresholds make of them, again."""

from __future__ import annotations

from pathlib import Path

from dashboards import capacity, engine, exporter, fleet
from dashboards.board import text_of
from kvpressure.bundle import Options
from kvpressure.bundle.dashboards import DASHBOARDS, dashboard_files
from kvpressure.config.thresholds import load_thresholds

HERE = Path(__file__).parent
ROOT = HERE.parent
BOARDS = (fleet.board, engine.board, capacity.board, exporter.board)


def templates() -> dict[str, str]:
    """File name to text."""
    return {f"{board.uid}.json.j2": text_of(board) for board in (make() for make in BOARDS)}


def generated() -> dict[Path, str]:
    """Path to text of everything that is committed of the templates filled in."""
    found = {}
    for name, text in dashboard_files(Options(load_thresholds())).items():
        below = name.removeprefix(f"{DASHBOARDS}/")
        if below != name:
            found[HERE / "generated" / below] = text
        else:
            found[ROOT / "deploy" / "grafana" / name.removeprefix("grafana/")] = text
    return found


def main() -> None:
    """Write them."""
    _write({HERE / "templates" / name: text for name, text in templates().items()})
    _write(generated())


def _write(files: dict[Path, str]) -> None:
    folders = {path.parent for path in files}
    for folder in folders:
        folder.mkdir(parents=True, exist_ok=True)
    for path, text in files.items():
        path.write_text(text, "utf-8")


if __name__ == "__main__":
    main()
