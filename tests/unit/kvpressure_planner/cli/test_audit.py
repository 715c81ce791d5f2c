import io
import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from kvpressure.cli import main
from kvpressure.cli.console import CleanConsole
from kvpressure.config.thresholds import load_thresholds
from kvpressure.printable import clean
from kvpressure_planner.audit import Manifests, audit, read
from kvpressure_planner.audit.checks import CHECKS
from kvpressure_planner.audit.manifests import from_objects
from kvpressure_planner.cli.audit import lines
from tests.stubs.kubectl import Cluster
from tests.support.tools import FIXTURES, check_golden

MANIFESTS = FIXTURES / "manifests"


@pytest.fixture(autouse=True)
def beside_the_manifests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(MANIFESTS)


def run(*arguments: str, stdin: str | bytes | None = None) -> Result:
    return CliRunner().invoke(main, ["audit", *arguments], input=stdin, catch_exceptions=False)


@pytest.mark.parametrize("name", ["deployment-bare", "shell-and-configmap", "production-stack-values"])
def test_the_table_is_the_golden_one(name: str) -> None:
    answer = run(f"{name}.yaml")
    assert answer.exit_code == 1
    check_golden(f"audit_{name}.txt", answer.stdout)


@pytest.mark.parametrize("width", [100, 79])
def test_the_tables_are_those_that_rich_would_print(width: int, tmp_path: Path) -> None:
    container = {"name": "a漢" * 30, "image": "vllm/vllm-openai", "args": ["--max-num-seqs", "9" * 300]}
    odd = {"kind": "Pod", "metadata": {"name": "漢字 " * 40}, "spec": {"containers": [container]}}
    (tmp_path / "odd.json").write_text(json.dumps(odd))
    paths = [*sorted(MANIFESTS.iterdir()), tmp_path / "odd.json"]
    given = sum((read(path.read_text(), path.name) for path in paths), Manifests(()))
    result = audit(given, load_thresholds())
    assert len(result.engines) >= 10
    notes = {clean(f"  {note}") for engine in result.engines for note in engine.reading.notes}
    printed = ["".join(text for text, _ in line).rstrip() for line in lines(result, width)]
    printed = [line for line in printed if line not in notes]
    for engine in result.engines:
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
        for name in ("status", "check"):
            table.add_column(name, no_wrap=True)
        table.add_column("line", no_wrap=True, justify="right")
        table.add_column("found", overflow="fold")
        for one in engine.findings:
            elsewhere = "" if one.place.file == engine.place.file else "*"
            number = "" if one.place.line is None else f"{one.place.line}{elsewhere}"
            shown = "note" if (one.status, one.level) == ("fail", "note") else one.status
            table.add_row(shown, one.check, number, Text(clean(one.reason)))
        out = CleanConsole(file=io.StringIO(), width=width, highlight=False, emoji=False, markup=False)
        heading = f"{engine.title}{f' in namespace {engine.namespace}' if engine.namespace else ''}"
        out.print(Text(clean(f"{heading}, container {engine.container} ({engine.place})")))
        out.print(Padding(table, (0, 0, 0, 2)))
        expected = [line.rstrip() for line in out.file.getvalue().splitlines()]
        begin = printed.index(expected[0])
        assert printed[begin : begin + len(expected)] == expected
        del printed[:begin]


def test_a_terminal_gets_the_same_lines_in_colours(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = run("kserve.yaml", "shell-and-configmap.yaml").stdout
    out = CleanConsole(file=io.StringIO(), width=100, force_terminal=True, color_system="standard", highlight=False)
    monkeypatch.setattr("kvpressure_planner.cli.audit.console", lambda: out)
    run("kserve.yaml", "shell-and-configmap.yaml")
    printed = out.file.getvalue()
    assert "\x1b[1;31mfail\x1b[0m" in printed
    assert re.sub(r"\x1b\[[\d;]*m", "", printed) == plain


def test_the_last_line_of_a_flag_is_found_among_the_lines_of_its_own_object() -> None:
    text = (
        (MANIFESTS / "deployment-bare.yaml").read_text() + "\n---\n" + (MANIFESTS / "deployment-good.yaml").read_text()
    )
    item = [one for one in read(text, "both").items if one.kind == "Deployment"][-1]
    template = ("spec", "template", "spec")
    line = item.find(re.compile("max.num.seqs"), template)
    assert line is not None
    assert "--max_num_seqs=64" in text.splitlines()[line - 1]
    assert item.find(re.compile("PodMonitor"), template) is None
    assert item.find(re.compile("max.num.seqs"), ("spec", "nothing")) is None


def test_many_pods_are_looked_through_once_and_not_for_each_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[str] = []
    kind = type("Counted", (str,), {"__hash__": lambda self: looked.append(self) or str.__hash__(self)})
    pod = yaml.safe_load((MANIFESTS / "deployment-bare.yaml").read_text())["spec"]["template"]

    def audited(count: int) -> int:
        looked.clear()
        objects = [{**pod, "kind": "Pod", "metadata": {"name": f"p{number}"}} for number in range(count)]
        given = from_objects(objects, "cluster")
        items = tuple(replace(item, kind=kind(item.kind)) for item in given.items)
        assert len(audit(Manifests(items), load_thresholds()).engines) == count
        return len(looked)

    assert audited(60) <= 2.2 * audited(30)


def test_progress_is_told_for_each_engine_and_shown_on_a_terminal_alone(capsys: pytest.CaptureFixture[str]) -> None:
    told: list[tuple[int, int]] = []
    given = read((MANIFESTS / "deployment-bare.yaml").read_text(), "a")
    audit(given, load_thresholds(), progress=lambda done, total: told.append((done, total)))
    assert told == [(1, 1)]
    assert "checking" not in run("deployment-bare.yaml").stderr


def test_the_table_fits_a_terminal_of_100_columns_but_for_what_is_pasted() -> None:
    lines = run("kserve.yaml", "list-and-pods.json").stdout.splitlines()
    assert max(len(line) for line in lines if not line.startswith("     ")) <= 100
    assert "\x1b" not in "".join(lines)


def test_everything_passing_ends_with_nought() -> None:
    answer = run("deployment-good.yaml")
    assert answer.exit_code == 0
    assert answer.stdout.endswith("1 engine: 16 pass, 0 fail, 0 unknown\n")


def test_json_has_the_shape_that_is_documented() -> None:
    answer = run("deployment-good.yaml", "broken-and-good.yaml", "--json")
    record = json.loads(answer.stdout)
    assert list(record) == ["version", "engines", "checks", "problems", "summary"]
    engine = record["engines"][0]
    assert {key: engine[key] for key in ("kind", "namespace", "name", "container", "file", "line")} == {
        "kind": "Deployment",
        "namespace": "prod",
        "name": "llama",
        "container": "vllm",
        "file": "deployment-good.yaml",
        "line": 23,
    }
    assert engine["limits"]["max_num_seqs"] == {"value": 64.0, "where": "--max_num_seqs=64"}
    assert [check["check"] for check in engine["checks"]] == [check.name for check in CHECKS]
    assert list(engine["checks"][0]) == ["check", "status", "level", "reason", "file", "line", "fix"]
    assert [problem["line"] for problem in record["problems"]] == [4, 18]
    assert record["summary"] == {"pass": 20, "fail": 8, "unknown": 4}


def test_a_broken_file_is_told_and_hides_no_findings() -> None:
    answer = run("broken-and-good.yaml")
    assert answer.exit_code == 1
    assert "Pod/survivor" in answer.stdout
    assert "broken-and-good.yaml:4: is not YAML" in answer.stderr


@pytest.mark.parametrize(
    ("arguments", "stdin", "message"),
    [
        (["no-engine.yaml"], None, "no engine found"),
        (["missing.yaml"], None, "missing.yaml: cannot be read: No such file or directory"),
        (["-"], "a: [\n", "stdin:2: is not YAML"),
        (["-"], b"a: 1\nb: \xff\n", "stdin:2: is not UTF-8"),
        (["-"], "", "no engine found: nothing in these files that could be read starts one; docs/audit.md"),
    ],
)
def test_nothing_to_judge_ends_with_two_and_says_why(
    arguments: list[str], stdin: str | bytes | None, message: str
) -> None:
    answer = run(*arguments, stdin=stdin)
    assert answer.exit_code == 2
    assert message in answer.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["x", "--json", "--sarif"],
        ["x", "-A"],
        ["x", "-n", "a"],
        ["--cluster", "-A", "-n", "a"],
        ["x", "--skip", "no"],
    ],
)
def test_usage_errors_end_with_two(arguments: list[str]) -> None:
    assert run(*arguments).exit_code == 2


def test_a_gpu_that_is_not_known_is_answered_with_the_ones_that_are() -> None:
    answer = run("deployment-good.yaml", "--gpu", "H1000")
    assert answer.exit_code == 2
    assert "did you mean H100 or H200" in answer.stderr
    assert "--gpu-memory" not in answer.stderr, "which audit has not"


def test_a_directory_is_searched_and_hidden_files_are_left_alone(tmp_path: Path) -> None:
    for name in ("b/x.yaml", ".git/y.yaml", "a.yml", "notes.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy("deployment-good.yaml", tmp_path / name)
    record = json.loads(run(str(tmp_path), "--json").stdout)
    assert [Path(engine["file"]).name for engine in record["engines"]] == ["a.yml", "x.yaml"]


def test_checks_can_be_left_out_and_thresholds_overridden(tmp_path: Path) -> None:
    overrides = tmp_path / "t.yaml"
    overrides.write_text("advice_memory_target_max_ratio: 0.69\nadvice_memory_target_ratio: 0.65\n")
    answer = run("deployment-good.yaml", "--skip", "load-test", "--thresholds", str(overrides), "--json")
    checks = {check["check"]: check["status"] for check in json.loads(answer.stdout)["engines"][0]["checks"]}
    assert "load-test" not in checks
    assert checks["memory-target"] == "fail"


def test_thresholds_that_cannot_be_used_are_told(tmp_path: Path) -> None:
    answer = run("deployment-good.yaml", "--thresholds", str(tmp_path / "none.yaml"))
    assert answer.exit_code == 2
    assert "none.yaml" in answer.stderr


def test_text_of_a_manifest_moves_no_cursor() -> None:
    text = Path("deployment-bare.yaml").read_text().replace("name: llama", 'name: "ll\\u001b[2Jama"')
    assert "\x1b" not in run("-", stdin=text).stdout


# --- a live cluster


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    """A cluster with the objects of a fixture, in namespace prod; no kind of the Prometheus operator's is missing."""
    made = Cluster(tmp_path)
    made.on_path(monkeypatch)
    resources = {
        "Deployment": "deployments.apps",
        "PodMonitor": "podmonitors.monitoring.coreos.com",
        "PrometheusRule": "prometheusrules.monitoring.coreos.com",
    }
    for document in yaml.safe_load_all(Path("deployment-good.yaml").read_text()):
        if document["kind"] in resources:
            document["metadata"]["namespace"] = "prod"
            made.add(resources[document["kind"]], document)
    made.absent = {"rayservices.ray.io"}
    made.write()
    return made


def test_a_cluster_is_judged_like_its_manifests(cluster: Cluster) -> None:
    answer = run("--cluster", "-A", "--json")
    assert answer.exit_code == 0, answer.output
    record = json.loads(answer.stdout)
    assert record["summary"] == {"pass": 16, "fail": 0, "unknown": 0}
    assert (record["engines"][0]["file"], record["engines"][0]["line"]) == ("cluster", None)
    asked = cluster.asked()
    assert "get deployments.apps all-namespaces output request-timeout" in asked
    assert not [words for words in asked if "secret" in words]
    assert not cluster.alive()


def test_only_the_namespaces_asked_for_are_read(cluster: Cluster) -> None:
    run("--cluster")
    assert "get deployments.apps output request-timeout" in cluster.asked()  # the context's own
    before = len(cluster.asked())
    run("--cluster", "-n", "a", "-n", "b")
    read = [words for words in cluster.asked()[before:] if words.startswith("get deployments.apps")]
    assert read == ["get deployments.apps namespace output request-timeout"] * 2


def test_what_may_not_be_listed_is_named_with_the_permission_and_leaves_the_rest(cluster: Cluster) -> None:
    cluster.forbidden.add("list podmonitors.monitoring.coreos.com")
    cluster.write()
    answer = run("--cluster", "-A")
    assert "you may not list them (RBAC: list podmonitors.monitoring.coreos.com)" in answer.stderr
    assert "monitoring" not in answer.stdout
    assert "rayservices" not in answer.stderr  # not installed


@pytest.mark.parametrize(
    ("complaint", "arguments"),
    [
        ("The connection to the server 127.0.0.1:1 was refused - did you specify the right host or port?", ()),
        ("error: You must be logged in to the server (Unauthorized)", ()),
        ('error: context "there" does not exist', ("--context", "there")),
    ],
)
def test_a_cluster_that_cannot_be_read_ends_with_two_and_kubectls_words(
    cluster: Cluster, complaint: str, arguments: tuple[str, ...]
) -> None:
    cluster.complaint = complaint
    cluster.write()
    answer = run("--cluster", *arguments)
    assert answer.exit_code == 2
    assert complaint in answer.stderr


def test_without_kubectl_it_ends_with_two_and_what_to_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    answer = run("--cluster")
    assert answer.exit_code == 2
    assert answer.stderr.startswith("there is no kubectl on PATH")
    assert answer.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("skipped", "codes"),
    [
        ((), {"note": 1, "warning": 1, "error": 1}),
        (("error",), {"note": 1, "warning": 1, "error": 0}),
        (("error", "warning"), {"note": 1, "warning": 0, "error": 0}),
        (("error", "warning", "note"), {"note": 0, "warning": 0, "error": 0}),
    ],
)
def test_fail_on_names_the_lowest_level_that_counts_and_hides_nothing(
    skipped: tuple[str, ...], codes: dict[str, int]
) -> None:
    skip = [word for check in CHECKS if check.level in skipped for word in ("--skip", check.name)]
    answers = {level: run("deployment-bare.yaml", *skip, "--fail-on", level) for level in codes}
    assert {level: answer.exit_code for level, answer in answers.items()} == codes
    assert len({answer.stdout for answer in answers.values()}) == 1
    assert run("deployment-bare.yaml", *skip).exit_code == codes["warning"]
    assert run("no-engine.yaml", "--fail-on", "error").exit_code == 2


@pytest.mark.parametrize(("name", "first"), [("serve.sh", ""), ("serve", "#!/usr/bin/env bash\n")])
def test_a_script_is_read_by_its_ending_or_its_first_line(name: str, first: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(f"{first}exec vllm serve x --max-num-seqs=64\n")
    found = json.loads(run(str(tmp_path / name), "--json").stdout)
    assert [engine["limits"]["max_num_seqs"]["value"] for engine in found["engines"]] == [64]
