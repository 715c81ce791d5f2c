"""Writes the texts of alerts that rules/tests expect as the rules have them now: `python -m tests.support.rule_texts`.

promtool wants every annotation of every alert, to the letter, so a sentence that changes is in dozens of places. Only
texts are written again, and only where the alert that fired has the labels that were expected: whether it fires, and
for whom, stays what the tests say. Read the diff.
"""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import yaml

from kvpressure.bundle.write import dump
from tests.support import built
from tests.support.rules import TESTS
from tests.support.tools import need

_CHECK: Final = re.compile(r"^ +alertname: (\w+), time: (\w+),")
_TEST: Final = re.compile(r"^ +name: (.+),$")
_UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_PAIRS: Final = re.compile(r'(\w+)=("(?:[^"\\]|\\.)*")')


class _Loader(yaml.SafeLoader):
    """Reads `0x140`, promtool's "0, 140 times", as the text that it is there: to YAML it is a number."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:int"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver("tag:yaml.org,2002:int", re.compile(r"[-+]?[0-9]+$"), list("-+0123456789"))


def pairs(line: str) -> dict[str, str]:
    """Labels or annotations as promtool prints them."""
    inside = line[line.index("{") + 1 : line.rindex("}")]
    return {name: json.loads(_json(text)) for name, text in _PAIRS.findall(inside)}


def _json(text: str) -> str:
    """Go's quoted string as JSON's; the two differ in what a terminal would act on, which no text of ours holds."""
    return text.replace("\\x", "\\u00")


def _seconds(duration: str) -> int:
    """promtool prints 100m as 1h40m."""
    return sum(int(count) * _UNITS[unit] for count, unit in re.findall(r"(\d+)([smhd])", duration))


def _key(test: dict[str, Any], check: dict[str, Any]) -> tuple[str, str, int]:
    return test["name"], check["alertname"], _seconds(check["eval_time"])


def fired(output: str) -> dict[tuple[str, str, int], list[tuple[dict[str, str], dict[str, str]]]]:
    """What promtool got where it expected something else: (test, alert, time) to labels and annotations."""
    found: dict[tuple[str, str, int], list[tuple[dict[str, str], dict[str, str]]]] = {}
    test, got = "", False
    key: tuple[str, str, int] | None = None
    labels: dict[str, str] = {}
    for line in output.splitlines():
        if name := _TEST.match(line):
            test = name[1]
        elif check := _CHECK.match(line):
            key, got = (test, check[1], _seconds(check[2])), False
        elif line.strip() == "got:[":
            got = True
        elif got and line.strip().startswith("Labels:"):
            labels = pairs(line)
        elif got and key and line.strip().startswith("Annotations:"):
            found.setdefault(key, []).append((labels, pairs(line)))
    return found


def rewrite(path: Path, output: str) -> bool:
    """Put the texts that promtool got into the file at `path`; whether that changed anything."""
    text, got = path.read_text(), fired(output)
    head = "".join(line for line in text.splitlines(keepends=True)[:5] if line.startswith("#"))
    document: dict[str, Any] = yaml.load(text, _Loader)
    for test in document["tests"]:
        for check in test.get("alert_rule_test", ()):
            for labels, texts in got.get(_key(test, check), ()):
                for expected in check["exp_alerts"]:
                    if expected["exp_labels"] | {"alertname": check["alertname"]} == labels:
                        expected["exp_annotations"] = texts
    new = head + dump(document)
    path.write_text(new)
    return new != text


def main() -> int:
    """Every file of rules/tests, or those whose stems are arguments."""
    promtool = need("promtool", "prometheus")
    flavours = ((TESTS, built.rule_tests), (TESTS.parent / "vllm-only" / "tests", built.vllm_only_tests))
    for path, cases in ((path, cases) for folder, cases in flavours for path in sorted(folder.glob("*.yaml"))):
        if not sys.argv[1:] or path.stem in sys.argv[1:]:
            case = cases() / path.name
            done = subprocess.run([promtool, "test", "rules", case], capture_output=True, text=True, check=False)
            output = done.stdout + done.stderr
            if done.returncode and rewrite(path, output):
                sys.stdout.write(f"{path.name} has new texts\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
