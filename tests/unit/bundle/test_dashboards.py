"""Templates to files: thresholds reach every line and colour, and the files are what Grafana and Kubernetes read."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from dashboards.looks import limit, shown

from dashboards import __main__ as command
from kvpressure.bundle import Options, bundle_files
from kvpressure.bundle import dashboards as making
from kvpressure.bundle.dashboards import config_map, dashboard_files, dashboards
from kvpressure.cli import main
from kvpressure.config.strict_yaml import ConfigError
from kvpressure.config.thresholds import load_thresholds
from tests.dashboards.boards import UIDS, panels

pytestmark = pytest.mark.exhaustive

MEBIBYTE = 2**20


def options(override: str | None = None, **changes: Any) -> Options:
    return Options(load_thresholds(override), **changes)


def steps(board: dict[str, Any], title: str) -> list[list[float | None]]:
    found = (panel for panel in panels(board) if panel["title"] == title)
    return [[step["value"] for step in panel["fieldConfig"]["defaults"]["thresholds"]["steps"]] for panel in found]


def templates_below(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}


# --- what is built


def test_the_command_writes_what_the_builders_make_and_only_what_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "TEMPLATES", tmp_path)
    (tmp_path / "a-board-that-went.json.j2").write_text("{}")
    assert command.main() == len(UIDS) + 2
    own = {"vllm-only/kvpressure-vllm-only.json.j2"}
    assert templates_below(tmp_path).keys() == {f"{uid}.json.j2" for uid in UIDS} | own
    assert templates_below(tmp_path) == command.templates()
    assert command.main() == 0
    (tmp_path / f"{UIDS[0]}.json.j2").write_text("{}")
    assert command.main() == 1
    assert templates_below(tmp_path) == command.templates()


def test_without_what_is_built_a_bundle_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(making, "_DATA", tmp_path / "nowhere")
    result = CliRunner().invoke(main, ["generate", "--out", str(tmp_path / "out")])
    assert (result.exit_code, "make dashboards" in result.stderr) == (2, True)
    assert CliRunner().invoke(main, ["generate", "--out", str(tmp_path / "out"), "--no-dashboards"]).exit_code == 0


# --- thresholds


def test_every_threshold_a_dashboard_shows_follows_an_override() -> None:
    """Each of them, one at a time: the dashboards that name it change, and only they."""
    templates = {name.removesuffix(".json.j2"): text for name, text in command.templates().items() if "/" not in name}
    named = {uid: set(re.findall(r"limits\.(\w+)", text)) for uid, text in templates.items()}
    before = dashboards(options())
    usual = load_thresholds()
    assert len(set().union(*named.values())) >= 15
    for name in sorted(set().union(*named.values())):
        value = usual.values[name] + (0.013 if usual.values[name] < 1 else 3)
        after = dashboards(options(f"{name}: {value}\n"))
        changed = {uid for uid in UIDS if after[uid] != before[uid]}
        assert changed == {uid for uid in UIDS if name in named[uid]}, name


def test_an_override_moves_the_line_the_colour_and_the_words() -> None:
    board = json.loads(dashboards(options("kv_saturated_min_ratio: 0.95\n"))["kvpressure-engine"])
    assert steps(board, "KV cache used") == steps(board, "KV cache in use") == [[None, 0.95]]
    (number,) = [panel for panel in panels(board) if panel["title"] == "KV cache used"]
    assert "Saturated from 95 % on" in number["description"]


def test_the_generate_command_takes_the_override_to_the_dashboards(tmp_path: Path) -> None:
    own = tmp_path / "own.yaml"
    own.write_text("latency_inflated_min_factor: 3.5\n")
    flags = ["generate", "--out", str(tmp_path / "out"), "--thresholds", str(own)]
    assert CliRunner().invoke(main, flags).exit_code == 0
    board = json.loads((tmp_path / "out/grafana/dashboards/kvpressure-engine.json").read_text())
    assert steps(board, "Latency against the healthy baseline") == [[None, 3.5]]
    listed = json.loads((tmp_path / "out/bundle.json").read_text())["files"]
    assert "grafana/dashboards/kvpressure-engine.json" in listed
    assert CliRunner().invoke(main, [*flags, "--no-dashboards"]).exit_code == 0
    assert not (tmp_path / "out/grafana").exists()


@pytest.mark.parametrize("text", ["[[ limits.nothing_like_it ]]", "from [[ limits.nothing_like_it | percent ]] on"])
def test_a_threshold_that_is_missing_fails_generation_with_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    template = json.dumps({"panels": [{"description": text}]})
    monkeypatch.setattr(making, "_templates", lambda _: iter([("mine", template)]))
    with pytest.raises(ConfigError, match=r"dashboards/mine\.json\.j2.*nothing_like_it"):
        bundle_files(options())
    result = CliRunner().invoke(main, ["generate", "--out", str(tmp_path / "out")])
    assert (result.exit_code, "nothing_like_it" in result.stderr) == (2, True)
    assert not (tmp_path / "out").exists()


def test_a_builder_that_names_a_missing_threshold_is_told_its_name() -> None:
    for use in (limit, shown):
        with pytest.raises(LookupError, match=r"'nothing_like_it', which thresholds\.yaml does not have"):
            use("nothing_like_it")


def test_nothing_is_left_to_fill_in() -> None:
    for name, text in dashboard_files(options()).items():
        assert not re.search(r"\[\[|\]\]|\{\{ *\$labels|limits\.\w", text), name


# --- other options


def test_the_selector_reaches_every_query_and_every_variable() -> None:
    selector = 'job="gpu",cluster=~"a|b"'
    for uid, text in dashboards(options(selector=selector)).items():
        assert 'job=\\"kvpressure\\"' not in text, uid
        assert json.dumps(selector)[1:-1] in text, uid


def test_runbooks_lie_where_the_option_says() -> None:
    own = dashboards(options())["kvpressure-engine"]
    assert "http://${instance}/runbooks/KVPressureCacheTooSmall?target=" in own
    other = dashboards(options(runbook_url="https://books.example/r/"))["kvpressure-engine"]
    assert "https://books.example/r/KVPressureCacheTooSmall?target=" in other
    assert "${instance}/runbooks" not in other


# --- what Grafana and Kubernetes read


def test_config_maps_are_what_the_sidecar_picks_up_and_small_enough_for_kubernetes() -> None:
    files = dashboard_files(options(labels={"release": "prom"}))
    for uid in UIDS:
        text = files[f"kubernetes/dashboard-{uid}.yaml"]
        made = yaml.safe_load(text)
        assert (made["apiVersion"], made["kind"]) == ("v1", "ConfigMap")
        assert made["metadata"]["labels"]["grafana_dashboard"] == "1"
        assert made["metadata"]["labels"]["release"] == "prom"
        assert re.fullmatch(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?", made["metadata"]["name"])
        assert all(re.fullmatch(r"[-._a-zA-Z0-9]+", key) for key in made["data"])
        assert json.loads(made["data"][f"{uid}.json"]) == json.loads(files[f"grafana/dashboards/{uid}.json"])
        assert len(text.encode()) < MEBIBYTE
        # `kubectl apply` keeps a copy in an annotation, and annotations may have 256 KiB together.
        assert len(json.dumps(made).encode()) < 256 * 1024


def test_a_config_map_carries_the_hash_of_its_thresholds() -> None:
    changed = options("kv_saturated_min_ratio: 0.95\n")
    made = config_map("u", "{}", changed)
    assert made["metadata"]["annotations"]["kvpressure/thresholds-hash"] == changed.thresholds.hash


def test_provisioning_names_a_folder_of_files_that_nobody_edits_in_the_browser() -> None:
    made = yaml.safe_load(dashboard_files(options())["grafana/provisioning/dashboards/kvpressure.yaml"])
    assert made["apiVersion"] == 1
    (provider,) = made["providers"]
    assert provider["type"] == "file"
    assert provider["allowUiUpdates"] is False
    assert Path(provider["options"]["path"]).is_absolute()
