"""Writes what under deploy/ is made from something else and kept; `python -m deploy.render`, or `make deploy`.

The chart is the source of deploy/manifests, for those without helm; values.yaml with its comments is the source of the
chart's README and of the descriptions in values.schema.json. What the chart takes from elsewhere is built and not
kept: `deploy.chart_files`.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import yaml
from deploy.chart_files import CHART, ROOT

MANIFESTS: Final = ROOT / "deploy" / "manifests"
README_TEMPLATE: Final = ROOT / "deploy" / "helm" / "README.md.tmpl"
KUBERNETES: Final = "1.34.0"
"""What `helm template` renders for; it knows no cluster, and a helm built without its Makefile assumes 1.20."""

_COMMENT: Final = re.compile(r"\s*#( --)? ?(.*)")
_ONLY_HELM: Final = re.compile(r"^ +(app\.kubernetes\.io/managed-by|helm\.sh/chart):.*\n|^# Source: .*\n", re.MULTILINE)
_MANIFESTS: Final = {
    "serviceaccount.yaml": "",
    "configmap.yaml": "",
    "rbac.yaml": "",
    "daemonset.yaml": "",
    "podmonitor.yaml": "prometheus-operator/",
    "networkpolicy.yaml": "network-policy/",
}
_VALUES: Final = {
    "image.repository": "kvpressure",
    "podMonitor.enabled": "true",
    "networkPolicy.enabled": "true",
    "dashboards.enabled": "false",  # their objects, like those of the rules, are what `kvpressure generate` writes
}


def find_helm() -> str | None:
    """Path of helm: the one `make tools-helm` built, or that on PATH."""
    built = ROOT / ".tools" / "helm"
    return str(built) if os.access(built, os.X_OK) else shutil.which("helm")


def values_documented() -> Iterator[tuple[str, str, Any, str]]:
    """Dotted key, type, default and description of every value, in the order of values.yaml."""
    text = (CHART / "values.yaml").read_text()
    yield from _walk("", yaml.compose(text), text.splitlines())


def _walk(prefix: str, node: Any, lines: list[str]) -> Iterator[tuple[str, str, Any, str]]:
    for key, value in node.value:
        name = prefix + key.value
        described = _described(lines, key.start_mark.line)
        if described is None and isinstance(value, yaml.MappingNode) and value.value:
            yield from _walk(f"{name}.", value, lines)
            continue
        default = yaml.safe_load(yaml.serialize(value))
        yield name, _type(default), default, described or ""


def _described(lines: list[str], row: int) -> str | None:
    """Return the comment above a key, from its `# --` on; None when there is none."""
    words: list[str] = []
    for line in reversed(lines[:row]):
        found = _COMMENT.fullmatch(line)
        if found is None:
            return None
        words.insert(0, found[2])
        if found[1]:
            return " ".join(words)
    return None


def _type(default: object) -> str:
    names = {bool: "bool", int: "int", str: "string", list: "list", dict: "object"}
    return names[type(default)]


def readme() -> str:
    """README.md of the chart: the template with a table of all values, as helm-docs makes it."""
    rows = ["| key | type | default | description |", "|---|---|---|---|"]
    for key, kind, default, text in values_documented():
        rows.append(f"| `{key}` | {kind} | {_default(default)} | {text.replace('|', chr(92) + '|')} |")
    return README_TEMPLATE.read_text().replace("<!-- values -->", "\n".join(rows))


def schema() -> str:
    """Return values.schema.json with the description of every value that values.yaml documents."""
    described = json.loads((CHART / "values.schema.json").read_text())
    for key, _, _, text in values_documented():
        at = described
        for name in key.split("."):
            at = at["properties"][name]
        reference = at.pop("$ref", None)
        if reference is not None:
            at["allOf"] = [{"$ref": reference}]
        at["description"] = text
    return json.dumps(described, indent=2, ensure_ascii=False) + "\n"


def _default(value: object) -> str:
    if isinstance(value, list) and len(value) > 3:
        return f"{len(value)} entries, see values.yaml"
    text = yaml.safe_dump(value, default_flow_style=True, width=1000, sort_keys=False)
    return f"`{text.removesuffix(chr(10)).removesuffix(chr(10) + '...')}`"


def template(helm: str, *options: str) -> str:
    """Return what `helm template` renders. Raises subprocess.CalledProcessError, with helm's words in `stderr`."""
    command = [helm, "template", "kvpressure", str(CHART), "--kube-version", KUBERNETES, "-n", "kvpressure", *options]
    result = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)  # noqa: S603 - helm, above
    return result.stdout


def manifests(helm: str) -> dict[Path, str]:
    """deploy/manifests as the chart renders it with its defaults, without what only makes sense under Helm."""
    options = [word for key, value in _VALUES.items() for word in ("--set", f"{key}={value}")]
    rendered = template(helm, *options)
    files = {}
    for file, folder in _MANIFESTS.items():
        parts = [
            part for part in rendered.split("---\n") if part.startswith(f"# Source: kvpressure/templates/{file}\n")
        ]
        objects = "---\n".join(_ONLY_HELM.sub("", part) for part in parts)
        files[MANIFESTS / folder / file] = f"# Generated from the chart by deploy/render.py.\n{objects}"
    return files


def write(files: Mapping[Path, str]) -> None:
    """Write files that differ, and say which."""
    for path, text in files.items():
        if not path.exists() or path.read_text() != text:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
            sys.stdout.write(f"wrote {path.relative_to(ROOT)}\n")


def main() -> None:
    """Write everything; manifests only where helm is."""
    write({CHART / "README.md": readme(), CHART / "values.schema.json": schema()})
    helm = find_helm()
    if helm is None:
        sys.exit("deploy/manifests was left as it is: no helm; `make tools-helm` builds one")
    write(manifests(helm))


if __name__ == "__main__":
    main()
