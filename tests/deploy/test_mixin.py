"""The mixin, rendered by go-jsonnet, is what `kvpressure generate` writes with the same choices."""

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from deploy.mixin_files import mixin_files

from kvpressure.bundle import Options, bundle_files
from kvpressure.config.thresholds import load_thresholds
from tests.support.tools import built

ALL = "{ alerts: m.prometheusAlerts, rules: m.prometheusRules, dashboards: m.grafanaDashboards, config: m._config }"
GIVEN = {"selector": 'job="gpu",cluster="b"', "runbookUrl": "https://w/r", "dashboardUrl": "https://g/"}


@pytest.fixture(scope="module")
def mixin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("mixin")
    for name, text in mixin_files(load_thresholds()).items():
        (folder / name).write_text(text)
    return folder


def jsonnet(folder: Path, config: dict[str, Any]) -> subprocess.CompletedProcess[str]:
    program = f"local m = (import 'mixin.libsonnet') + {{ _config+:: {json.dumps(config)} }}; {ALL}"
    return subprocess.run(
        [built("jsonnet"), "-J", str(folder), "-e", program], capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize(
    ("config", "options"),
    [
        ({}, {}),
        (GIVEN, {"selector": GIVEN["selector"], "runbook_url": "https://w/r", "dashboard_url": "https://g/"}),
        ({"scrapeIntervalSeconds": 30, "allAlerts": True}, {"scrape_seconds": 30, "all_alerts": True}),
    ],
)
def test_it_renders_what_generate_writes(mixin: Path, config: dict[str, Any], options: dict[str, Any]) -> None:
    done = jsonnet(mixin, config)
    assert (done.returncode, done.stderr) == (0, "")
    rendered = json.loads(done.stdout)
    files = bundle_files(Options(load_thresholds(), **options), with_runbooks=False)
    for kind in ("alerts", "recording"):
        groups = yaml.safe_load(files[f"kubernetes/prometheusrule-{kind}.yaml"])["spec"]["groups"]
        assert rendered["alerts" if kind == "alerts" else "rules"]["groups"] == groups
    below = "grafana/dashboards/"
    boards = {name.removeprefix(below): json.loads(text) for name, text in files.items() if name.startswith(below)}
    assert len(boards) == 4
    assert rendered["dashboards"] == boards


def test_the_commands_of_its_readme_write_files(mixin: Path, tmp_path: Path) -> None:
    shutil.copytree(mixin, tmp_path / "mixin")
    first, second = re.findall(r"^```\n(.*?)^```", (mixin / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    path = f"{Path(built('jsonnet')).parent}:{os.environ['PATH']}"
    for block in (first.replace("make mixin", ": mixin"), second):
        done = subprocess.run(
            ["bash", "-ec", block], cwd=tmp_path, env={"PATH": path}, capture_output=True, check=False
        )
        assert (done.returncode, done.stderr) == (0, b"")
    assert {*tmp_path.glob("*.yaml"), *tmp_path.glob("*.json")} == {
        *(tmp_path / name for name in ("alerts.yaml", "rules.yaml")),
        *(tmp_path / f"kvpressure-{name}.json" for name in ("capacity", "engine", "exporter", "fleet")),
    }
    assert 'job=\\"gpu\\"' in (tmp_path / "alerts.yaml").read_text()


def test_other_thresholds_are_refused_with_the_command_that_builds_them(mixin: Path) -> None:
    done = jsonnet(mixin, {"thresholds": {"kv_saturated_min_ratio": 0.5}})
    assert done.returncode != 0
    assert "make mixin THRESHOLDS=thresholds.yaml" in done.stderr
