"""`results.json`: how many inputs each target has had, and what was found. Findings are written there by hand."""

from __future__ import annotations

import json
import platform
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tests.fuzz import registry, state

RESULTS = Path(__file__).parent / "results.json"
_TOOLS = ("prometheus-client", "PyYAML", "pydantic", "protobuf")


def load() -> dict[str, Any]:
    """What was published last."""
    found: dict[str, Any] = json.loads(RESULTS.read_text())
    return found


def publish(folder: Path = state.FOLDER, results: Path = RESULTS) -> None:
    """Write the totals of this checkout's runs; a target that never ran here keeps what was written before."""
    before: dict[str, Any] = json.loads(results.read_text()) if results.exists() else {}
    targets: dict[str, Any] = {n: one for n, one in before.get("targets", {}).items() if n in registry.names()}
    for name in registry.names():
        if (folder / name / "state.json").exists():
            targets[name] = _of(json.loads((folder / name / "state.json").read_text()))
    tools = {"python": platform.python_version()} | {name: version(name) for name in _TOOLS}
    written = {"tools": tools, "targets": dict(sorted(targets.items())), "findings": before.get("findings", [])}
    results.write_text(json.dumps(written, indent=1) + "\n")


def _of(one: dict[str, Any]) -> dict[str, Any]:
    return {
        "seed": one["seed"],
        "inputs": one["inputs"],
        "cpu_seconds": round(one["cpu_seconds"], 1),
        "slowest_milliseconds": round(1e3 * one["slowest_seconds"], 1),
        "peak_mib": round(one["peak_mib"]),
        "steps": one["steps"],
    }
