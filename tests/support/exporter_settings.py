"""Settings of an exporter that is run as a process, and what to ask of it."""

import urllib.request
from collections.abc import Mapping
from pathlib import Path

from tests.stubs.build import libraries
from tests.support.ended import Exporter

QUIET = {name: {"enabled": "false"} for name in ("kubernetes", "pod_resources", "logs")} | {"host": {"enabled": False}}


def listens(run: Exporter) -> bool:
    return "event=listening" in run.output()


def gpus(folder: Path, scenario: Mapping[str, object]) -> tuple[dict[str, object], dict[str, str]]:
    """Settings and environment of a stubbed NVIDIA driver."""
    path = folder / "gpus.txt"
    path.write_text("".join(f"{key} {value}\n" for key, value in scenario.items()))
    env = {"STUB_SCENARIO": str(path), "LD_LIBRARY_PATH": str(libraries())}
    return {"gpu": {"vendors": ["nvidia"], "interval_seconds": 0.5}}, env


def fetched(url: str) -> str:
    """The page, "" while there is none."""
    try:
        with urllib.request.urlopen(url, timeout=10) as response:
            return str(response.read().decode())
    except OSError:
        return ""
