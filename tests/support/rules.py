"""The rules as generated with the packaged thresholds, read once, and what their expressions query."""

import functools
import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import promql_parser as promql
import pytest
import yaml

from kvpressure.bundle import Options, bundle_files, load_rules
from kvpressure.bundle.options import EXPORTER, Flavour
from kvpressure.bundle.rules import Alert, RuleFile
from kvpressure.config.thresholds import load_thresholds
from kvpressure.exposition.families import FAMILIES
from kvpressure.exposition.text import OwnProcess
from tests.support.tools import FIXTURES, need

ROOT = Path(__file__).parents[2]
TESTS = ROOT / "rules" / "tests"


@functools.cache
def options() -> Options:
    return Options(load_thresholds(), all_alerts=True)


@functools.cache
def rule_files(flavour: Flavour = EXPORTER) -> tuple[RuleFile, ...]:
    return load_rules(Options(load_thresholds(), all_alerts=True, flavour=flavour))


@functools.cache
def files() -> dict[str, str]:
    return bundle_files(options(), with_runbooks=False, with_dashboards=False)


def alerts() -> list[Alert]:
    return [alert for file in rule_files() for alert in file.alerts]


def alert_names() -> list[str]:
    return list(dict.fromkeys(alert.name for alert in alerts()))


def recorded(flavour: Flavour = EXPORTER) -> dict[str, str]:
    """Recorded series: name to expression."""
    rules = (rule for file in rule_files(flavour) for group in file.groups for rule in group["rules"])
    return {rule["record"]: rule["expr"] for rule in rules if "record" in rule}


_HPA = {"namespace", "horizontalpodautoscaler"}
_SCALED_OBJECT = {"namespace", "scaledObject"}
_VARIANT = {"namespace", "variant_name", "target_name"}
AUTOSCALERS = {
    "kube_horizontalpodautoscaler_info": _HPA | {"scaletargetref_kind", "scaletargetref_name"},
    "kube_horizontalpodautoscaler_spec_max_replicas": _HPA,
    "kube_horizontalpodautoscaler_status_current_replicas": _HPA,
    "keda_scaled_object_paused": _SCALED_OBJECT,
    "keda_scaler_active": _SCALED_OBJECT,
    "wva_current_replicas": _VARIANT,
    "wva_desired_replicas": _VARIANT,
}
"""Of kube-state-metrics, KEDA and llm-d's WVA, where people have them."""


def known_series() -> dict[str, set[str]]:
    """Every series a rule may query, with the labels that it has; Prometheus adds job and instance."""
    found: dict[str, set[str]] = {"up": set()}
    for family in FAMILIES:
        parts = ("_bucket", "_sum", "_count") if family.type == "histogram" else ("",)
        if family.observed:
            own = {*family.scope.labels, *family.labels} - {"quantile"}
            found |= {family.name + part: own for part in ("_sum", "_count")}
        extra = {"le"} if family.type == "histogram" else set()
        found |= {family.name + part: {*family.scope.labels, *family.labels, *extra} for part in parts}
    for metric in OwnProcess().collect():
        found |= {sample.name: set(sample.labels) for sample in metric.samples}
    return found | AUTOSCALERS


def known_vllm_series() -> set[str]:
    """Every sample name of any vLLM from 0.6.6 to 0.33."""
    inventory = json.loads((FIXTURES / "data" / "vllm-metric-inventory.json").read_text())
    found = {f"vllm:time_to_first_token_seconds_{part}" for part in ("bucket", "sum", "count")}
    for metrics in inventory.values():
        for name, about in metrics.items():
            found.add(name if about["type"] != "counter" else f"{name.removesuffix('_total')}_total")
            if about["type"] == "histogram":
                found |= {f"{name}_{part}" for part in ("bucket", "sum", "count")}
    return found


def walk(expr: promql.Expr) -> Iterator[promql.Expr]:
    """An expression and all below it."""
    yield expr
    for name in ("lhs", "rhs", "expr", "param", "vector_selector"):
        if isinstance(child := getattr(expr, name, None), promql.Expr):
            yield from walk(child)
    for child in getattr(expr, "args", None) or ():
        yield from walk(child)


def selectors(text: str) -> list[promql.VectorSelector]:
    return [node for node in walk(promql.parse(text)) if isinstance(node, promql.VectorSelector)]


def promtool_tests(stem: str) -> dict:
    return yaml.safe_load((TESTS / f"{stem}.yaml").read_text())


def promtools() -> list[str]:
    """Debian's promtool and the one of `make tools-go`, where they are."""
    local = ROOT / ".tools" / "promtool"
    found = [path for path in (shutil.which("promtool"), str(local) if os.access(local, os.X_OK) else None) if path]
    return found or ["promtool"]


promtool_each = pytest.mark.parametrize("promtool", promtools(), ids=lambda path: "/".join(Path(path).parts[-2:]))


def rules_of(files: Mapping[str, str], folder: Path, *asked: str) -> list[Path]:
    """Write what of a bundle's `files` has the alerts and recorded series in `asked`, and what these are made of."""
    groups = {name: yaml.load(text, yaml.CSafeLoader) for name, text in files.items() if name.startswith("prometheus/")}
    rules = {name: [rule for group in found["groups"] for rule in group["rules"]] for name, found in groups.items()}
    words, needed = set(re.findall(r"[\w:]+", " ".join(asked))), list[str]()
    while more := [
        name for name in rules.keys() - needed if words & {rule.get("alert") or rule["record"] for rule in rules[name]}
    ]:
        needed += more
        words |= {word for name in more for rule in rules[name] for word in re.findall(r"[\w:]+", rule["expr"])}
    written = [folder / name.replace("/", "-") for name in sorted(needed)]
    for path, name in zip(written, sorted(needed), strict=True):
        path.write_text(files[name])
    return written


def told(expr: str, minutes: float, value: float) -> dict[str, Any]:
    """One of promtool's checks: the value of an expression without labels, so many minutes after the first sample."""
    return {
        "expr": expr,
        "eval_time": f"{minutes * 60:.0f}s",
        "exp_samples": [{"labels": "{}", "value": value}],
    }


def evaluate(promtool: str, folder: Path, rules: Iterable[Path], test: Mapping[str, Any]) -> None:
    """Let promtool run a unit test of these rules, evaluated every 15 s; what it says is the error where it fails."""
    case = folder / "case.yaml"
    case.write_text(json.dumps({"rule_files": list(map(str, rules)), "evaluation_interval": "15s", "tests": [test]}))
    command = [need(promtool, "prometheus"), "test", "rules", str(case)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr


def rendered() -> Iterator[tuple[str, dict[str, str], dict[str, str]]]:
    """Name, labels and annotations of all that fires in rules/tests, to which test_promtool holds promtool."""
    for path in sorted(TESTS.glob("*.yaml")):
        for test in yaml.load(path.read_text(), yaml.CBaseLoader)["tests"]:
            for check in test.get("alert_rule_test", ()):
                for fired in check["exp_alerts"]:
                    yield check["alertname"], fired["exp_labels"], fired["exp_annotations"]
