"""`docs/metrics.md`, generated from the family table: `python -m kvpressure.exposition.docs > docs/metrics.md`."""

from __future__ import annotations

import sys

from kvpressure.exposition.families import FAMILIES, Scope

_TITLES = {
    Scope.ENGINE: "Engines",
    Scope.GPU: "GPUs",
    Scope.SOURCE: "Sources",
    Scope.CONTAINER: "Containers of engines",
    Scope.EXPORTER: "The exporter itself",
}

_INTRO = """# Metrics

Generated from `exporter/kvpressure/exposition/families.py` by `make docs`; do not edit.

Base units, ratios 0 to 1. A series whose input is not known is absent, never 0. "The window" is `window_seconds`
(60 s by default), "the traffic shape window" is `shape_window_seconds` (600 s).
"""


def metrics_markdown() -> str:
    """The whole page."""
    parts = [_INTRO]
    for scope, title in _TITLES.items():
        parts.append(f"\n## {title}\n")
        if scope.labels:
            parts.append(f"\nEvery series carries {', '.join(f'`{label}`' for label in scope.labels)}.\n")
        parts.append("\n| series | type | labels of its own | meaning |\n|---|---|---|---|\n")
        for family in FAMILIES:
            if family.scope is scope:
                own = ", ".join(f"`{label}`" for label in family.labels)
                parts.append(f"| `{family.name}` | {family.type} | {own} | {family.help} |\n")
    return "".join(parts)


if __name__ == "__main__":
    sys.stdout.write(metrics_markdown())
