import json
import math
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from kvpressure.cli import main
from kvpressure.config.thresholds import load_thresholds
from kvpressure.engines.recordings import TraceLine, open_trace, read_trace
from kvpressure_planner.cli.whatif.source import recorded
from tests.support.tools import FIXTURES, ROOT, check_golden

pytestmark = pytest.mark.recorded

COLLAPSE = FIXTURES / "lab" / "kv-collapse-0.33.0.jsonl.xz"
THRASH = FIXTURES / "traces" / "preemption-thrash.jsonl.xz"
JOINS = FIXTURES / "lab" / "workingset" / "joins-0.33.0.jsonl.xz"
RAMP = FIXTURES / "traces" / "ramp-into-pressure.jsonl.xz"
LENGTHS = ("--prompt-mean", "1400", "--prompt-p95", "4000", "--answer-mean", "300", "--answer-p95", "800")
ENGINE = ("--kv-cache-tokens", "120000", "--step-seconds", "0.03", "--prefill-tokens-per-second", "16000")


def whatif(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, ["whatif", *map(str, arguments)], catch_exceptions=False)


def told(*arguments: str | Path, code: int = 0) -> dict[str, Any]:
    answer = whatif(*arguments, "--json")
    assert answer.exit_code == code, answer.output
    read: dict[str, Any] = json.loads(answer.stdout)
    return read


def tokens(row: dict[str, Any]) -> float:
    value: float = row["figures"]["tokens_per_second"]["value"]
    return value


def test_a_comparison_on_a_recording_is_the_golden_one():
    answer = whatif(
        "--trace", COLLAPSE, "--set", "max-num-seqs=16", "--set", "kv-cache-dtype=fp8", "--set", "replicas=2"
    )
    assert answer.exit_code == 0
    check_golden("whatif_kv-collapse.txt", answer.stdout)


def test_a_search_on_described_traffic_is_the_golden_one():
    load = ("--concurrency", "60", "--limit", "max-num-seqs=8", "--search", "--slo-p95-seconds", "50")
    answer = whatif(*LENGTHS, *ENGINE, *load, "--kv-cache-tokens", "60000")
    assert answer.exit_code == 0
    check_golden("whatif_search.txt", answer.stdout)


@pytest.mark.parametrize("name", ["whatif_kv-collapse.txt", "whatif_search.txt"])
def test_the_table_fits_a_terminal_of_80_columns(name: str):
    text = (FIXTURES.parent / "golden" / name).read_text()
    assert max(map(len, text.splitlines())) <= 80


def test_in_an_overload_it_says_what_arrives_and_what_each_row_answers():
    answer = whatif(*LENGTHS, *ENGINE, "--rate", "12", "--set", "replicas=2")
    text = " ".join(answer.stdout.split())
    found = re.search(r"12 requests arrive a second, more than .* \(today: ([\d.]+), replicas 2: ([\d.]+)\)", text)
    assert found is not None, text
    today, two = map(float, found.groups())
    assert two == pytest.approx(2 * today, rel=0.2)
    assert two < 12


def test_it_expects_what_the_advice_expects():
    """One calibration, one scheduler, one set of cures."""
    advised = CliRunner().invoke(
        main, ["triage", "--advice", "--trace", str(COLLAPSE), "--json"], catch_exceptions=False
    )
    (engine,) = json.loads(advised.stdout)["engines"]
    actions = {action["key"]: action["expected"] for action in engine["actions"]}
    assert [action["new"] for action in engine["actions"] if action["key"] == "add_replica"] == ["twice as many as now"]
    today, small, _, both = told("--trace", COLLAPSE, "--set", "kv-cache-dtype=fp8", "--set", "replicas=2")["rows"]
    expected = actions["kv_cache_dtype"]["tokens_per_second"]
    assert tokens(today) == pytest.approx(expected["before"], rel=0.02)
    assert small["figures"]["tokens_per_second"] == pytest.approx(
        {"value": expected["after"], "low": expected["low"], "high": expected["high"]}, rel=0.02
    )
    assert tokens(both) == pytest.approx(actions["verify"]["tokens_per_second"]["after"], rel=0.02)
    assert both["set"] == {"kv-cache-dtype": "fp8", "replicas": "2"}


def test_changes_are_spelled_as_the_server_spells_them_in_any_way_people_write_them():
    plain, dashes, scores = (
        told("--trace", THRASH, "--set", given)["rows"][-1]
        for given in ("max-num-batched-tokens=1024", "--max-num-batched-tokens=1024", "max_num_batched_tokens=1K")
    )
    assert plain == dashes == scores


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (("max-nmu-seqs=3",), "did you mean max-num-seqs?"),
        (("tensor-parallel-size=2",), "cannot be simulated; what can: max-num-seqs, "),
        (("max-num-seqs",), "give NAME=VALUE"),
        (("max-num-seqs=",), "give NAME=VALUE"),
        (("max-num-seqs=-4",), "vLLM takes a whole number of 1 or more here"),
        (("watermark=1.5",), "vLLM takes a ratio of 0 or more and less than 1 here"),
        (("replicas=none",), "whole number"),
        (("kv-cache-dtype=bfloat16",), "such as fp8"),
        (("max-num-seqs=4", "max_num_seqs=5"), "is set twice"),
        (("max-model-len=1000000",), "vLLM would not start: one request of 1,000,000 tokens (--max-model-len)"),
        (("max-num-seqs=2048", "max-num-batched-tokens=1024"), "vLLM would not start: --max-num-batched-tokens (1024)"),
    ],
)
def test_what_cannot_be_simulated_or_served_is_refused_with_the_reason(given: tuple[str, ...], why: str):
    answer = whatif("--trace", COLLAPSE, *(part for one in given for part in ("--set", one)))
    assert answer.exit_code == 2
    assert why in " ".join(answer.stderr.split())


def test_a_cache_in_8_bits_is_refused_where_the_page_says_that_it_is_in_8_bits_already(tmp_path: Path):
    fp8 = tmp_path / "fp8.jsonl"
    with open_trace(COLLAPSE, "r") as file:
        fp8.write_text("".join(file).replace(r"cache_dtype=\"auto\"", r"cache_dtype=\"fp8\""))
    answer = whatif("--trace", fp8, "--set", "kv-cache-dtype=fp8")
    assert answer.exit_code == 2
    assert "--set kv-cache-dtype=fp8: the KV cache is fp8 already" in " ".join(answer.stderr.split())
    assert whatif("--trace", COLLAPSE, "--set", "kv-cache-dtype=fp8").exit_code == 0


def test_a_memory_share_is_changed_from_the_one_in_force():
    hidden = whatif(*LENGTHS, *ENGINE, "--rate", "1", "--set", "gpu-memory-utilization=0.9")
    assert hidden.exit_code == 2
    assert " ".join(hidden.stderr.split()).endswith("say it with --limit gpu-memory-utilization=0.9")
    given = ("--limit", "gpu-memory-utilization=0.6", "--set", "gpu-memory-utilization=0.9")
    half = told(*LENGTHS, *ENGINE, "--rate", "1", *given)["rows"][-1]
    pool = told(*LENGTHS, *ENGINE, "--rate", "1", "--set", "kv-cache-tokens=180000")["rows"][-1]
    assert half["figures"] == pool["figures"]


def test_a_recording_is_read_up_to_the_second_that_is_asked_for():
    assert told("--trace", RAMP, "--at", "100")["today"] != told("--trace", RAMP)["today"]
    after = whatif("--trace", RAMP, "--at", "100000")
    assert after.exit_code == 2
    assert f"--at 100000 is after the end of {RAMP}: its last page is of second " in after.stderr
    (view,) = recorded(RAMP, 100.0, load_thresholds())
    first = next(line for line in read_trace(RAMP) if isinstance(line, TraceLine))
    assert 98 <= view.t - first.t <= 100


def test_a_file_that_is_no_recording_is_one_error(tmp_path: Path):
    answer = whatif("--trace", ROOT / "README.md")
    assert (answer.exit_code, len(answer.stderr.splitlines())) == (2, 1)
    assert "README.md is not a recording of `kvpressure record`: none of its lines can be read" in answer.stderr
    with open_trace(RAMP, "rt") as file:
        lines = file.readlines()
    broken = tmp_path / "broken.jsonl"
    broken.write_text("".join(["no\n" * 9, *lines[-9:]]))
    said = whatif("--trace", broken).stderr.splitlines()
    assert [line.partition(": ")[0] for line in said[:4]] == [f"{broken}:{line}" for line in (1, 2, 3)] + [f"{broken}"]
    assert said[3].endswith("6 more lines cannot be read")


def test_it_says_where_the_time_comes_from_that_an_answer_may_take():
    assert told("--trace", RAMP, "--slo-p95-seconds", "9")["limit_from"] == "--slo-p95-seconds"
    described = told(*LENGTHS, *ENGINE, "--rate", "1")["limit_from"]
    assert described == "2 times the p95 with room for all; --slo-p95-seconds sets it"


def test_of_several_engines_the_busiest_is_taken_or_the_one_that_is_named():
    ranks = FIXTURES / "traces" / "two-ranks.jsonl.xz"
    assert told("--trace", ranks, "--at", "90", "--engine", "1", code=0)["title"].endswith("engine 1")
    missing = whatif("--trace", ranks, "--engine", "7")
    assert (missing.exit_code, missing.stderr) == (2, "there is no engine 7; there are: 0, 1\n")


def test_what_cannot_be_predicted_is_said_and_not_guessed():
    idle = whatif("--trace", FIXTURES / "traces" / "idle.jsonl.xz")
    assert idle.exit_code == 2
    assert idle.stderr == "nothing can be predicted: no tokens were generated\n"


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ((), "give an engine (ADDRESS or KIND/NAME), --trace FILE, or traffic"),
        (("http://a:1", "--trace", str(THRASH)), "not both"),
        (("--rate", "3"), "missing: --prompt-mean, --prompt-p95, --answer-mean, --answer-p95"),
        ((*LENGTHS, *ENGINE), "missing: --rate or --concurrency"),
        ((*LENGTHS, *ENGINE, "--rate", "3", "--concurrency", "4"), "not both"),
        ((*LENGTHS, "--rate", "3"), "missing --kv-cache-tokens, --step-seconds, --prefill-tokens-per-second"),
        (("--trace", str(THRASH), "--search"), "--search needs --slo-p95-seconds"),
        (("http://a:1", "--at", "3"), "give --trace FILE"),
        (("--trace", str(THRASH), "--picture", "load.gif"), "must end in .svg or .png"),
        ((*LENGTHS, *ENGINE, "--rate", "1", "--prompt-mean", "9000"), "below the mean"),
    ],
)
def test_what_is_missing_or_contradicts_itself_is_named(arguments: tuple[str, ...], why: str):
    answer = whatif(*arguments)
    assert answer.exit_code == 2
    assert why in " ".join(answer.stderr.split())


def test_other_traffic_is_put_on_a_measured_engine():
    own = told("--trace", THRASH)
    other = told(
        "--trace",
        THRASH,
        *LENGTHS[:-8],
        "--prompt-mean",
        "50",
        "--prompt-p95",
        "100",
        "--answer-mean",
        "60",
        "--answer-p95",
        "100",
        "--rate",
        "4",
    )
    assert other["today"]["step_seconds"] == own["today"]["step_seconds"]
    assert (other["today"]["requests_per_second"], other["today"]["clients"]) == (4.0, None)
    assert other["rows"][0]["figures"]["latency_p95"]["value"] < own["rows"][0]["figures"]["latency_p95"]["value"]


def test_a_search_says_in_json_and_by_its_exit_code_whether_the_objective_is_kept():
    engine = (*LENGTHS, *ENGINE, "--concurrency", "60", "--kv-cache-tokens", "40000", "--search", "--slo-p95-seconds")
    kept = told(*engine, "60")
    assert kept["limit_seconds"] == 60.0
    assert kept["search"]["kept"] is True
    assert kept["search"]["best"]["figures"]["latency_p95"]["value"] <= 60.0
    assert kept["rows"][-1] == kept["search"]["best"]
    missed = told(*engine, "15", code=1)
    assert missed["search"]["kept"] is False
    assert missed["search"]["more"]["figures"]["latency_p95"]["value"] <= 15.0


def test_a_cap_beyond_the_knee_says_where_that_is():
    load = (*LENGTHS, *ENGINE, "--concurrency", "300", "--kv-cache-tokens", "900000", "--limit", "max-num-seqs=8")
    knee = told(*load)["today"]["knee_requests"]
    beyond, within = (
        " ".join(whatif(*load, "--set", f"max-num-seqs={round(knee * factor)}").stdout.split()) for factor in (1.5, 0.5)
    )
    assert f"Above about {math.ceil(knee)} running requests, 10 % more give less than 5 % more tokens/s" in beyond
    assert "running on" not in within


def test_a_terminal_shows_how_far_the_search_is_and_a_pipe_nothing():
    engine = (*LENGTHS, *ENGINE, "--concurrency", "20", "--search", "--slo-p95-seconds", "60")
    runner = CliRunner()
    shown = runner.invoke(main, ["whatif", *engine], env={"FORCE_COLOR": "1"}, catch_exceptions=False)
    assert shown.exit_code == 0
    assert " sets" in shown.stderr
    assert runner.invoke(main, ["whatif", *engine], catch_exceptions=False).stderr == ""


@pytest.mark.parametrize(("name", "begins"), [("load.svg", b"<?xml"), ("load.PNG", b"\x89PNG")])
def test_the_picture_shows_both_over_load(name: str, begins: bytes, tmp_path: Path):
    path = tmp_path / name
    answer = told("--trace", COLLAPSE, "--set", "kv-cache-dtype=fp8", "--picture", path)
    assert path.read_bytes().startswith(begins)
    curves = answer["over_load"]
    assert [point["load"] for point in curves["today"]] == [point["load"] for point in curves["changed"]]
    assert max(point["tokens_per_second"] for point in curves["changed"]) > 1.5 * max(
        point["tokens_per_second"] for point in curves["today"]
    )
    if name.endswith("svg"):
        text = path.read_text()
        for words in ("tokens per second", "p95 of a request, seconds", "clients", "kv-cache-dtype fp8", "today"):
            assert f">{words}<" in text
        again = tmp_path / "again.svg"
        whatif("--trace", COLLAPSE, "--set", "kv-cache-dtype=fp8", "--picture", again)
        assert again.read_bytes() == path.read_bytes()


def test_a_model_name_is_no_formula_in_the_picture_and_no_markup(tmp_path: Path):
    hostile, path = tmp_path / "hostile.jsonl", tmp_path / "load.svg"
    lines = []
    for line in read_trace(COLLAPSE):
        assert isinstance(line, TraceLine)
        page = line.page.decode().replace('model_name="lab"', 'model_name="$\\\\frac{<script>$"')
        lines.append(json.dumps({"t": line.t, "page": page}))
    hostile.write_text("\n".join(lines))
    assert whatif("--trace", hostile, "--picture", path).exit_code == 0
    assert "<script>" not in path.read_text()
    assert "&lt;script&gt;" in path.read_text()


def test_without_the_library_the_picture_is_refused_with_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    answer = whatif("--trace", COLLAPSE, "--picture", tmp_path / "load.svg")
    assert answer.exit_code == 2
    assert "pip install 'kvpressure[picture]'" in answer.stderr


def test_a_picture_that_cannot_be_written_says_where_and_why(tmp_path: Path):
    answer = whatif("--trace", COLLAPSE, "--picture", tmp_path / "no" / "load.png")
    assert (answer.exit_code, "cannot be written: No such file" in answer.stderr) == (2, True)


def test_an_engine_that_evicts_contexts_is_simulated_with_its_sessions():
    changes = ("--set", "kv-cache-dtype=fp8", "--set", "kv-offloading-size=2", "--set", "sessions=20")
    found = told("--trace", JOINS, "--at", "400", *changes)
    assert found["without_sessions"] is None
    assert found["sessions"]["count"] == pytest.approx(36, rel=0.2)
    today, small, tier, fewer, _ = (row["figures"] for row in found["rows"])
    for better in (small, tier, fewer):
        assert better["hit_ratio"]["value"] > today["hit_ratio"]["value"] + 0.3
        assert better["first_token_seconds"]["value"] < today["first_token_seconds"]["value"]
    assert fewer["tokens_per_second"]["value"] < today["tokens_per_second"]["value"]


def test_the_table_of_sessions_has_hits_and_time_to_first_token():
    shown = whatif("--trace", JOINS, "--at", "400", "--set", "kv-offloading-size=2").stdout
    assert "sessions that come back after" in shown
    assert "hits" in shown
    assert "TTFT s" in shown
    assert "loaded at 20 GB/s" in shown
    assert max(map(len, shown.splitlines())) <= 80


def test_where_the_page_does_not_tell_of_its_sessions_it_is_said_why():
    answer = whatif("--trace", JOINS)
    assert answer.exit_code == 2
    assert "KV events would" in answer.output


@pytest.mark.parametrize("change", ["sessions=4", "sticky-replicas=2"])
def test_changes_of_sessions_need_sessions(change: str):
    answer = whatif("--trace", COLLAPSE, "--set", change)
    assert answer.exit_code == 2
    assert "none are simulated here" in answer.output


def test_a_tier_needs_to_know_what_a_token_takes():
    answer = whatif(*LENGTHS, *ENGINE, "--rate", "1", "--set", "kv-offloading-size=4")
    assert answer.exit_code == 2
    assert "how many bytes a token takes is not known" in answer.output
