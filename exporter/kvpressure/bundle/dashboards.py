"""The Grafana dashboards of a bundle: templates filled in, ready for provisioning and for a sidecar.

A template is Grafana's own JSON, written by the builders under `dashboards/` when a wheel or a bundle is built.
In its texts `[[ limits.NAME ]]` is a threshold and `[[ selector ]]` finds the exporters' series; a text that is nothing
but a threshold becomes a number.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from importlib import resources
from typing import Any, Final

from kvpressure.bundle.options import Options
from kvpressure.bundle.templates import render
from kvpressure.bundle.write import dump
from kvpressure.config.strict_yaml import ConfigError, Problem

FOLDER: Final = "KV pressure"
"""Grafana's folder that the dashboards are shown in."""

DASHBOARDS: Final = "grafana/dashboards"
PROVIDER: Final = "grafana/provisioning/dashboards/kvpressure.yaml"
_PATH: Final = "/var/lib/grafana/dashboards/kvpressure"
_SUFFIX: Final = ".json.j2"
_DATA: Final = resources.files("kvpressure.bundle") / "data" / "dashboards"
_NUMBER: Final = re.compile(r"\[\[ limits\.\w+ \]\]")
EXPORTER_RUNBOOKS: Final = "http://${instance}/runbooks"
"""The exporter serves the runbooks itself; a dashboard has its address as a variable."""


def dashboards(options: Options) -> dict[str, str]:
    """Return Grafana's JSON by uid. Raises ConfigError, with its name, for a threshold that does not exist."""
    more = {"runbooks": (options.runbook_url or EXPORTER_RUNBOOKS).rstrip("/")}
    boards = {}
    for uid, text in _templates(options):
        filled = _filled(json.loads(text), f"dashboards/{uid}{_SUFFIX}", options, more)
        boards[uid] = json.dumps(filled, indent=1, ensure_ascii=False) + "\n"
    return boards


def dashboard_files(options: Options) -> dict[str, str]:
    """Return the dashboards' files of a bundle: path to content."""
    boards = dashboards(options)
    files = {f"{DASHBOARDS}/{uid}.json": text for uid, text in boards.items()}
    # Grafana reads this one under `provisioning/dashboards`.
    folder = {"path": _PATH, "foldersFromFilesStructure": False}
    provider = {"name": "kvpressure", "folder": FOLDER, "type": "file", "allowUiUpdates": False, "options": folder}
    files[PROVIDER] = dump({"apiVersion": 1, "providers": [provider]})
    files |= {f"kubernetes/dashboard-{uid}.yaml": dump(config_map(uid, text, options)) for uid, text in boards.items()}
    return files


def config_map(uid: str, text: str, options: Options) -> dict[str, Any]:
    """Return a ConfigMap that Grafana's sidecar picks up by its label, into the folder that its annotation names."""
    labels = {"grafana_dashboard": "1", "app.kubernetes.io/name": "kvpressure", **options.labels}
    annotations = {"grafana_folder": FOLDER, "kvpressure/thresholds-hash": options.thresholds.hash}
    # Compact: the copy of an object that `kubectl apply` keeps in an annotation may have 256 KiB at most.
    compact = json.dumps(json.loads(text), separators=(",", ":"), ensure_ascii=False)
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": f"{uid}-dashboard", "labels": labels, "annotations": annotations},
        "data": {f"{uid}.json": compact},
    }


def _filled(value: Any, path: str, options: Options, more: dict[str, str]) -> Any:
    if isinstance(value, dict):
        return {key: _filled(inner, path, options, more) for key, inner in value.items()}
    if isinstance(value, list):
        return [_filled(inner, path, options, more) for inner in value]
    if not isinstance(value, str) or "[[" not in value:
        return value
    text = render(path, value, options, more)
    return float(text) if _NUMBER.fullmatch(value) else text


def _templates(options: Options) -> Iterator[tuple[str, str]]:
    folder = _DATA / options.flavour.folder
    if not folder.is_dir():
        missing = "are not built in this checkout: run `make dashboards`, or leave them out with --no-dashboards"
        raise ConfigError([Problem("generate", None, "dashboards", missing)])
    for file in sorted(folder.iterdir(), key=lambda file: file.name):
        if file.name.endswith(_SUFFIX):
            yield file.name.removesuffix(_SUFFIX), file.read_text("utf-8")
