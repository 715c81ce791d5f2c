"""`results.json`: how many inputs each target has had, and what was found. Findings are written there by hand."""

import json
import platform
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tests.fuzz import registry, state

RESULTS = Path(__file__).parent / "results.json"
_TOOLS = ("prometheus-client", "PyYAML", "protobuf")


def load() -> dict[str, Any]:
    """What was published last."""
    found: dict[str, Any] = json.loads(RESULTS.read_text())
    return found


def publish(folder: Path = state.FOLDER, results: Path = RESULTS) -> None:
    """Add what was run since it was last published, with whatever seeds, to the totals: no run ever takes any away."""
    before: dict[str, Any] = json.loads(results.read_text()) if results.exists() else {}
    targets: dict[str, Any] = {n: one for n, one in before.get("targets", {}).items() if n in registry.names()}
    for name in registry.names():
        if (new := state.unpublished(name, folder)) is not None:
            targets[name] = _sum(targets.get(name), new)
    tools = {"python": platform.python_version()} | {name: version(name) for name in _TOOLS}
    written = {"tools": tools, "targets": dict(sorted(targets.items())), "findings": before.get("findings", [])}
    results.write_text(json.dumps(written, indent=1) + "\n")


def _sum(before: dict[str, Any] | None, new: state.State) -> dict[str, Any]:
    nothing = dict.fromkeys(("inputs", "cpu_seconds", "slowest_milliseconds", "peak_mib", "steps"), 0)
    had = before or {"seeds": [], **nothing}
    return {
        "seeds": sorted({*had["seeds"], new.seed}),
        "inputs": had["inputs"] + new.inputs,
        "cpu_seconds": round(had["cpu_seconds"] + new.cpu_seconds, 1),
        "slowest_milliseconds": max(had["slowest_milliseconds"], round(1e3 * new.slowest_seconds, 1)),
        "peak_mib": max(had["peak_mib"], round(new.peak_mib)),
        "steps": max(had["steps"], new.steps),
    }
