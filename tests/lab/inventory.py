"""Which metrics a vLLM wheel can export, read from its source: `python -m tests.lab.inventory` compares and tells.

`--write` puts what the newest pinned wheel has into tests/fixtures/data/vllm-metric-inventory.json. Nothing of vLLM is
imported: a name is any string that is one, whatever it is used for, so a new way to declare metrics cannot hide any.
Its type is what it is declared with: a class of prometheus_client, an attribute that holds one, the metadata of an
offload tier, or a list of names that counters are made of.
"""

import argparse
import ast
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tests.lab.fetch import NEWEST

WHEELS: Final = Path(__file__).parents[2] / ".cache" / "lab"
INVENTORY: Final = Path(__file__).parents[1] / "fixtures" / "data" / "vllm-metric-inventory.json"
ROOMS: Final = ("v1", "distributed", "entrypoints", "parser")
"""Folders of the wheel whose code runs in a server; the rest has operators of torch named `vllm::...` and clients."""
TYPES: Final = ("counter", "gauge", "histogram")
_NAME: Final = re.compile(r"vllm:[a-z][a-z0-9_]*[a-z0-9]")

Declared = dict[str, dict[str, str]]


def declared(vllm: Path) -> Declared:
    """Metrics in the source of the package at `vllm`, by name without a counter's suffix unless it is in the name."""
    trees = [ast.parse(path.read_text()) for room in ROOMS for path in sorted((vllm / room).rglob("*.py"))]
    constants = {key: name for tree in trees for key, name in _constants(tree)}
    found: Declared = {name: {} for tree in trees for name in _names(tree)}
    for tree in trees:
        for name, facts in _declarations(tree, constants):
            found[name] = facts
    return dict(sorted(found.items()))


def _names(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and _NAME.fullmatch(node.value):
            yield node.value


def _constants(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Names of metrics that have a name in the source, the class before it where there is one."""
    for owner in (tree, *(node for node in tree.body if isinstance(node, ast.ClassDef))):
        for node in owner.body:
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                value = node.value.value if isinstance(node.value, ast.Constant) else None
                if isinstance(value, str) and _NAME.fullmatch(value):
                    before = f"{owner.name}." if isinstance(owner, ast.ClassDef) else ""
                    yield before + node.targets[0].id, value


def _declarations(tree: ast.AST, constants: dict[str, str]) -> Iterator[tuple[str, dict[str, str]]]:
    for name, made in _pairs(tree):
        if (text := _text(name, constants)) and (kind := _kind(made.func)):
            yield text, _facts(kind, {word.arg: word.value for word in made.keywords})
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            kind = node.targets[0].id.removesuffix("_specs")
            if kind in TYPES:
                yield from ((text, {"type": kind}) for text in _names(node.value))
            elif node.targets[0].id == "name" and (text := _text(node.value, constants)):
                yield text, {"type": "gauge", "mode": "mostrecent"}  # log_metrics_info: the only one named before


def _pairs(tree: ast.AST) -> Iterator[tuple[ast.expr | None, ast.Call]]:
    """What may be a metric's name, and the call that may declare it: its argument, its key, what it is put under."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            named = next((word.value for word in node.keywords if word.arg == "name"), None)
            yield named or (node.args[0] if node.args else None), node
        elif isinstance(node, ast.Dict):
            yield from ((key, value) for key, value in _zipped(node) if isinstance(value, ast.Call))
        elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
            yield from ((target.slice, node.value) for target in node.targets if isinstance(target, ast.Subscript))


def _zipped(node: ast.Dict) -> Iterator[tuple[ast.expr | None, ast.expr]]:
    return zip(node.keys, node.values, strict=True)


def _kind(made: ast.expr) -> str:
    """Which type of metric a call makes, "" where it makes none."""
    word = made.attr if isinstance(made, ast.Attribute) else made.id if isinstance(made, ast.Name) else ""
    plain = word.removeprefix("_").removesuffix("_cls").removeprefix("Offloading").removesuffix("Metadata").lower()
    return plain if plain in TYPES else ""


def _facts(kind: str, given: dict[str | None, ast.expr]) -> dict[str, str]:
    """What a test needs to make such a metric: its type, and how a gauge's processes are merged."""
    mode = given.get("multiprocess_mode")
    told = mode.value if isinstance(mode, ast.Constant) and isinstance(mode.value, str) else "mostrecent"
    facts = {"type": kind}
    if kind == "gauge":
        facts["mode"] = told
    elif kind == "histogram" and "buckets" in given:
        facts["buckets"] = ast.unparse(given["buckets"])
    return facts


def _text(node: ast.expr | None, constants: dict[str, str]) -> str:
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) and _NAME.fullmatch(node.value) else ""
    return constants.get(ast.unparse(node), "") if isinstance(node, (ast.Name, ast.Attribute)) else ""


def main() -> int:
    """Compare, and write where asked to; 1 where they differ or there is no wheel."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true")
    vllm = WHEELS / f"wheel-{NEWEST}" / "vllm"
    write = parser.parse_args().write
    if not vllm.is_dir():
        print(f"no wheel of {NEWEST} in {WHEELS}: `make lab` fetches it")
        return 1
    known = json.loads(INVENTORY.read_text())
    now, before = declared(vllm), known.get(NEWEST, {})
    for sign, names in (("+", now.keys() - before.keys()), ("-", before.keys() - now.keys())):
        for name in sorted(names):
            print(sign, name, now.get(name, before.get(name)))
    if write:
        INVENTORY.write_text(json.dumps(known | {NEWEST: now}, indent=0) + "\n")
    return int(now != before and not write)


if __name__ == "__main__":
    sys.exit(main())
