"""The lints of promtool and of pint: over every series that a page may have, and over all generated rules."""

import re
import subprocess
from pathlib import Path

import pytest
from prometheus_client.metrics_core import Metric

from kvpressure.bundle import Options, bundle_files, write_bundle
from kvpressure.bundle.options import EXPORTER, VLLM_ONLY, Flavour
from kvpressure.config.thresholds import load_thresholds
from kvpressure.exposition import Snapshot
from kvpressure.exposition.families import FAMILIES
from kvpressure.exposition.text import OwnProcess, render
from kvpressure.model.family import Family
from tests.support.rules import promtool_each
from tests.support.tools import ROOT, built, need

UNITS = re.compile(
    r"(ratio|seconds|bytes|tokens|requests|requests_(running|waiting)|(tokens|bytes)_per_request|replicas|targets|"
    r"connections|info|batch_size(_quantile)?)"
)
"""What the name of a gauge, of a histogram or of quantiles ends in, but for states."""

STATES = re.compile(
    r"(symptom|bottleneck|role|replica_state|node_memory_pressure|recommended_action|engine_up|source_up|"
    r"target_(listed|answering|status)|gpu_utilization_valid|config_last_reload_successful|limit_declared)"
)
"""0 or 1, or 1 for the label that holds."""

ANY_UNIT = ("limit_value", "limit_recommended")
"""Each label has its own."""

RATES = re.compile(r"\b(?:rate|increase|irate)\((kvpressure_\w+)")


class EveryFamily:
    """Collects one series of each family."""

    def collect(self) -> list[Metric]:
        """Return the families, each with a sample."""
        return list(map(_filled, FAMILIES))


def _filled(family: Family) -> Metric:
    metric = Metric(family.name.removesuffix("_total"), family.help, family.type)
    labels = dict.fromkeys((*family.scope.labels, *family.labels), "0.5")
    parts = {"histogram": ("_bucket", "_sum", "_count")}.get(family.type, ("",))
    if family.observed:
        bare = {name: value for name, value in labels.items() if name != "quantile"}
        for part in ("_sum", "_count"):
            metric.add_sample(family.name + part, bare, 1.0)
    for part in parts:
        metric.add_sample(family.name + part, labels | ({"le": "+Inf"} if part == "_bucket" else {}), 1.0)
    return metric


def lint(promtool: str, page: bytes) -> tuple[int, str]:
    command = [need(promtool, "prometheus"), "check", "metrics"]
    done = subprocess.run(command, input=page, capture_output=True, check=False, timeout=30)
    return done.returncode, (done.stdout + done.stderr).decode()


@promtool_each
def test_promtool_has_nothing_to_say_of_any_series(promtool: str) -> None:
    page = render(Snapshot(0.0, (), (), ()), openmetrics=False, own=(EveryFamily(), OwnProcess()))
    assert page.count(b"# TYPE kvpressure_") == len(FAMILIES)
    assert lint(promtool, page) == (0, "")


@promtool_each
def test_promtool_would_say_if_a_quantile_were_a_gauge(promtool: str) -> None:
    page = b'# HELP a_seconds A.\n# TYPE a_seconds gauge\na_seconds{quantile="0.5"} 1\n'
    code, said = lint(promtool, page)
    assert code != 0
    assert 'non-summary metrics should not have "quantile" label' in said


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.key)
def test_a_name_ends_in_its_unit(family: Family) -> None:
    """promtool does not ask for it: https://prometheus.io/docs/practices/naming/."""
    if family.type in ("gauge", "summary", "histogram") and not STATES.fullmatch(family.key):
        assert family.key in ANY_UNIT or re.search(f"(^|_){UNITS.pattern}$", family.key)
    assert "_per_second" not in family.key
    assert (family.type == "summary") == ("quantile" in family.labels)


@pytest.mark.parametrize("every", [15, 30, 60])
@pytest.mark.parametrize("flavour", [EXPORTER, VLLM_ONLY], ids=lambda flavour: flavour.name)
def test_pint_has_nothing_to_say_of_the_rules(flavour: Flavour, every: int, tmp_path: Path) -> None:
    write_bundle(
        tmp_path, bundle_files(Options(load_thresholds(), flavour=flavour, all_alerts=True, scrape_seconds=every))
    )
    rules = tmp_path / "prometheus"
    assert len(list(rules.glob("*/*.yaml"))) >= 5
    assert pint(rules) == (0, [])


def test_pint_would_say_if_a_rule_were_wrong(tmp_path: Path) -> None:
    wrong = """groups: [{name: a, rules: [{alert: A, expr: 'up{job=~"a"}'}]}]"""
    (tmp_path / "wrong.yaml").write_text(wrong)
    code, problems = pint(tmp_path)
    assert code != 0
    assert any("promql/regexp" in line for line in problems)
    assert any("alerts/comparison" in line for line in problems)


def pint(rules: Path) -> tuple[int, list[str]]:
    options = ["--no-color", "--offline", f"--config={ROOT / 'rules' / '.pint.hcl'}", "--log-level=error"]
    command = [built("pint"), *options, "lint", "--min-severity=warning", "--fail-on=warning", rules]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    return done.returncode, (done.stdout + done.stderr).splitlines()


def test_rates_are_of_what_only_grows(tmp_path: Path) -> None:
    """Of counters and histograms, in rules, boards and runbooks: pint would ask a Prometheus, and is run without."""
    grow = {family.name for family in FAMILIES if family.type in ("counter", "histogram")}
    write_bundle(tmp_path, bundle_files(Options(load_thresholds(), all_alerts=True)))
    texts = (path.read_text() for path in tmp_path.rglob("*") if path.suffix in (".yaml", ".json", ".md"))
    asked = {series for text in texts for series in RATES.findall(text)}
    assert len(asked) > 10
    assert {re.sub(r"_(bucket|sum|count)$", "", series) for series in asked} <= grow
