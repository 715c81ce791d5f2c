"""promtool on the generated rules and on the unit tests under rules/tests, with every promtool that is installed."""

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support import built
from tests.support.rules import TESTS, promtool_each
from tests.support.tools import ROOT, need

CASES = [
    (tests, path.stem)
    for tests, folder in ((built.rule_tests, TESTS), (built.vllm_only_tests, ROOT / "rules" / "vllm-only" / "tests"))
    for path in sorted(folder.glob("*.yaml"))
]
each_bundle = pytest.mark.parametrize("bundle", [built.bundle, built.vllm_only], ids=["exporter", "vllm-only"])


def run(*command: object) -> str:
    result = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False, timeout=300)
    output = result.stdout + result.stderr
    assert result.returncode == 0, output
    return output


@promtool_each
@each_bundle
def test_promtool_finds_nothing_to_say_about_the_rules(promtool: str, bundle: Callable[[], Path]) -> None:
    rules = sorted(bundle().glob("prometheus/*/*.yaml"))
    assert len(rules) > (20 if bundle is built.bundle else 5)
    output = run(need(promtool, "prometheus"), "check", "rules", "--lint=all", "--lint-fatal", *rules)
    assert output.count("SUCCESS") == len(rules), output


@promtool_each
@pytest.mark.parametrize(("tests", "case"), CASES, ids=[case for _, case in CASES])
def test_the_unit_tests_of_the_rules_pass(promtool: str, tests: Callable[[], Path], case: str) -> None:
    assert "SUCCESS" in run(need(promtool, "prometheus"), "test", "rules", tests() / f"{case}.yaml")


@each_bundle
def test_amtool_accepts_the_alertmanager_example(bundle: Callable[[], Path]) -> None:
    config = bundle() / "alertmanager" / "alertmanager.yaml"
    assert "SUCCESS" in run(need("amtool", "prometheus-alertmanager"), "check-config", config)


@pytest.mark.parametrize(
    ("labels", "receiver"),
    [
        (("severity=critical", "component=engine"), "kvpressure-page"),
        (("severity=warning", "component=exporter"), "kvpressure-tickets"),
        (("severity=info", "component=engine"), "kvpressure-nobody"),
    ],
)
def test_an_alert_goes_where_its_severity_says(labels: tuple[str, ...], receiver: str) -> None:
    config = built.bundle() / "alertmanager" / "alertmanager.yaml"
    amtool = need("amtool", "prometheus-alertmanager")
    run(amtool, "config", "routes", "test", f"--config.file={config}", f"--verify.receivers={receiver}", *labels)


def test_a_wrong_receiver_would_be_noticed() -> None:
    with pytest.raises(AssertionError, match="kvpressure-page"):
        test_an_alert_goes_where_its_severity_says(("severity=critical",), "kvpressure-nobody")


def test_a_broken_rule_would_be_noticed(tmp_path: Path) -> None:
    broken = tmp_path / "broken.yaml"
    broken.write_text((built.bundle() / "prometheus/alerts/engine-stuck.yaml").read_text().replace("> 0.5", ">> 0.5"))
    with pytest.raises(AssertionError, match="parse"):
        run(need("promtool", "prometheus"), "check", "rules", broken)
