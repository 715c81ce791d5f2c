"""Rules that are loaded as the documentation says: copies in git, and snippets with which Prometheus starts."""

import json
import re
import shutil
import subprocess
import urllib.request
from pathlib import Path

import pytest
import yaml
from deploy.ready_rules import READY, ready_files

from kvpressure.bundle import Options, load_rules
from kvpressure.bundle.options import VLLM_ONLY
from kvpressure.config.thresholds import load_thresholds
from tests.support import built
from tests.support.processes import free_port
from tests.support.prometheus import wait_until_ready
from tests.support.rules import ROOT
from tests.support.tools import need

PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
SNIPPETS = [
    (path.relative_to(ROOT), text)
    for path in PAGES
    for text in re.findall(r"^ *```yaml\n(.*?)^ *```", path.read_text(), re.MULTILINE | re.DOTALL)
    if "rule_files" in text
]
"""Every snippet of the documentation that names rule files, beside the page that it is on."""


def test_the_copies_in_git_are_what_the_generator_writes() -> None:
    found = {str(path.relative_to(READY)): path.read_text() for path in READY.rglob("*") if path.is_file()}
    assert found == ready_files(), "make rules"


def test_the_documentation_says_how_to_load_the_copies_and_a_bundle() -> None:
    files = [name for _, text in SNIPPETS for name in yaml.safe_load(text)["rule_files"]]
    assert any("ready" in name for name in files)
    assert any("bundle" in name for name in files)


@pytest.mark.parametrize(("page", "snippet"), SNIPPETS, ids=[f"{page} {n}" for n, (page, _) in enumerate(SNIPPETS)])
def test_a_prometheus_starts_with_the_snippet_and_has_all_rules(page: Path, snippet: str, tmp_path: Path) -> None:
    without_exporter = "vllm-only" in str(page)
    shutil.copytree(built.vllm_only() if without_exporter else built.bundle(), tmp_path / "bundle")
    shutil.copytree(READY, tmp_path / "ready")
    (tmp_path / "prometheus.yml").write_text(snippet)
    port, log = free_port(), tmp_path / "log"
    words = [
        need("prometheus", "prometheus"),
        f"--config.file={tmp_path}/prometheus.yml",
        f"--storage.tsdb.path={tmp_path}/data",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    with log.open("w") as output, subprocess.Popen(words, stdout=output, stderr=output) as process:
        try:
            wait_until_ready(f"http://127.0.0.1:{port}", process, log)
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/v1/rules", timeout=10) as answer:
                groups = json.load(answer)["data"]["groups"]
        finally:
            process.terminate()
    given = Options(load_thresholds(), selector="", flavour=VLLM_ONLY) if without_exporter else None
    least = sum(len(file.groups) for file in load_rules(given)) if given else 20
    assert len(groups) >= least
