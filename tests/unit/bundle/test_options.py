"""`kvpressure generate --flavour`: whose series a bundle reads, and what options mean for each."""

import json
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result

from kvpressure.bundle import Options, bundle_files
from kvpressure.bundle.options import EXPORTER, FLAVOURS, selector_of
from kvpressure.cli import main
from kvpressure.config.thresholds import load_thresholds


def generate(out: Path, *flags: str) -> Result:
    return CliRunner().invoke(main, ["generate", "--out", str(out), *flags])


def test_without_a_flavour_the_bundle_is_the_exporters(tmp_path: Path) -> None:
    assert Options(load_thresholds()).flavour is EXPORTER
    assert generate(tmp_path / "a").exit_code == 0
    assert generate(tmp_path / "b", "--flavour", "exporter").exit_code == 0
    one, other = (sorted(path.rglob("*.yaml")) for path in (tmp_path / "a", tmp_path / "b"))
    assert [path.read_text() for path in one] == [path.read_text() for path in other]


def test_the_flavour_without_an_exporter_writes_a_bundle_of_its_own(tmp_path: Path) -> None:
    result = generate(tmp_path / "out", "--flavour", "vllm-only", "--label", "release=prom")
    assert (result.exit_code, result.stderr) == (0, "")
    made = json.loads((tmp_path / "out" / "bundle.json").read_text())
    assert (made["flavour"], made["selector"]) == ("vllm-only", "")
    names = set(made["files"])
    assert {"prometheus/recording/vllm-engine.yaml", "prometheus/alerts/vllm-cache-too-small.yaml"} <= names
    assert {"alerts.md", "alertmanager/alertmanager.yaml", "runbooks/KVPressureCacheTooSmall.md"} <= names
    assert "grafana/dashboards/kvpressure-vllm-only.json" in names
    rules = [path.read_text() for path in (tmp_path / "out" / "prometheus").rglob("*.yaml")]
    assert "kvpressure_" not in "".join(rules), "a series of the exporter"
    made = yaml.safe_load((tmp_path / "out" / "kubernetes" / "prometheusrule-alerts.yaml").read_text())
    assert made["metadata"]["name"] == "kvpressure-vllm-only-alerts"
    assert made["metadata"]["labels"]["release"] == "prom"


def test_bundles_of_both_flavours_live_side_by_side() -> None:
    objects: list[tuple[str, str]] = []
    for flavour in FLAVOURS.values():
        files = bundle_files(Options(load_thresholds(), flavour=flavour, selector=flavour.selector))
        made = (yaml.safe_load(text) for name, text in files.items() if name.startswith("kubernetes/"))
        objects += [(one["kind"], one["metadata"]["name"]) for one in made]
    assert len(objects) == len(set(objects))


def test_thresholds_and_the_page_of_alerts_follow_the_flavour(tmp_path: Path) -> None:
    own = tmp_path / "own.yaml"
    own.write_text("alert_queue_wait_min_seconds: 90\n")
    assert generate(tmp_path / "out", "--flavour", "vllm-only", "--thresholds", str(own)).exit_code == 0
    assert ">= 90 *" in (tmp_path / "out/prometheus/alerts/vllm-queue-grows.yaml").read_text()
    page = (tmp_path / "out" / "alerts.md").read_text()
    assert page.startswith("# Alerts on vLLM's own series")
    assert "`alert_queue_wait_min_seconds` | 90 seconds" in page
    assert "runbooks/KVPressureVLLMNoProgress.md" in page


@pytest.mark.parametrize(
    ("given", "flavour", "selector"),
    [(None, "exporter", 'job="kvpressure"'), (None, "vllm-only", ""), ('job="x"', "vllm-only", 'job="x"')],
)
def test_a_selector_that_nobody_gives_is_the_flavours(given: str | None, flavour: str, selector: str) -> None:
    assert selector_of(flavour, given) == (FLAVOURS[flavour], selector)


def test_help_and_completion_name_the_flavours() -> None:
    shown = CliRunner().invoke(main, ["generate", "--help"]).output
    assert "[exporter|vllm-only]" in shown
    words = {"COMP_WORDS": "kvpressure generate --flavour ", "COMP_CWORD": "3", "_KVPRESSURE_COMPLETE": "bash_complete"}
    done = CliRunner().invoke(main, [], env=words, prog_name="kvpressure")
    assert done.output.split() == ["plain,exporter", "plain,vllm-only"]
