"""`python -m tests.lab.sglang.inventory`: the names and types that SGLang's metrics collectors declare, as a fixture.

They are read from the source of the wheel, without running it: which of them a page has depends on how the server was
started (LoRA, speculation, prefill and decode apart). tests/promises/test_sglang.py compares the table with them.
"""

import ast
import json
from pathlib import Path
from typing import Final

from tests.lab.fetch import SGLANG, fetch

FIXTURE: Final = Path(__file__).parents[2] / "fixtures" / "sglang" / "inventory.json"
_COLLECTORS: Final = "srt/observability/metrics_collector.py"
_TYPES: Final = frozenset({"Counter", "Gauge", "Histogram", "Summary"})
_PREFIX: Final = "sglang:"


def declared(source: str) -> dict[str, str]:
    """Return the type of every metric by its name without prefix, sorted."""
    found = {}
    for node in ast.walk(ast.parse(source)):
        kind = getattr(node.func, "id", "") if isinstance(node, ast.Call) else ""
        if not isinstance(node, ast.Call) or kind not in _TYPES:
            continue
        given = [word.value for word in node.keywords if word.arg == "name"] + node.args[:1]
        names = [one.value for one in given if isinstance(one, ast.Constant) and isinstance(one.value, str)]
        found |= {name.removeprefix(_PREFIX): kind.lower() for name in names if name.startswith(_PREFIX)}
    return dict(sorted(found.items()))


def main() -> None:
    """Write it."""
    inventory = json.loads(FIXTURE.read_text())
    inventory[SGLANG.version] = declared((fetch(SGLANG.version) / _COLLECTORS).read_text())
    FIXTURE.write_text(json.dumps(inventory, indent=2) + "\n")
    print(f"{len(inventory[SGLANG.version])} metrics of SGLang {SGLANG.version}")


if __name__ == "__main__":
    main()
