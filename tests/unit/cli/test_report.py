import json
import re
import shlex
from dataclasses import replace

import pytest

from kvpressure.advice.advise import Place
from kvpressure.cli import report
from kvpressure.cli.findings import Finding, advice_json, advised, as_json, exit_code, worst_first
from kvpressure.config.thresholds import load_thresholds
from kvpressure.model.verdict import Cause, Evidence, Stage
from tests.support.advice_cases import LIMITS, NOW, PROCESS, PRODUCTION, SHAPE, advice, diagnosis
from tests.support.advised import advise
from tests.support.observed import pressed_view
from tests.support.printed import printed
from tests.support.tools import check_golden
from tests.support.views import engine_view

pytestmark = pytest.mark.recorded

CASES = {
    "kv_cache_pressure": (Cause.KV_CACHE_PRESSURE, Stage.COLLAPSED, {"admission_blocked": True, "device_oom": False}),
    "device_oom": (Cause.KV_CACHE_PRESSURE, Stage.FAILING, {"admission_blocked": True, "device_oom": True}),
    "host_oom": (Cause.KV_CACHE_PRESSURE, Stage.FAILING, {"preempting": True, "host_oom": True}),
    "building": (Cause.HEALTHY, Stage.BUILDING, {"admission_blocked": False}),
    "concurrency_bound": (Cause.CONCURRENCY_BOUND, Stage.NONE, {"admission_blocked": False}),
    "compute_bound": (Cause.COMPUTE_BOUND, Stage.NONE, {"gpu_compute_low": False}),
    "host_bound": (Cause.HOST_BOUND, Stage.NONE, {"frontend_slow": True}),
    "stuck": (Cause.STUCK, Stage.NONE, {"admission_blocked": False}),
    "unknown": (Cause.UNKNOWN, Stage.NONE, {}),
    "idle": (Cause.IDLE, Stage.NONE, {"admission_blocked": False}),
}


def finding(name: str, target: str = "llama:8000", place: Place = PRODUCTION, engine: str = "0") -> Finding:
    cause, stage, states = CASES[name]
    view = engine_view(target, "llama-3", engine, NOW, SHAPE, diagnosis(cause, stage, **states))
    small = {"prompt_tokens": {"0.5": 30.0, "0.95": 50.0}} if cause is Cause.CONCURRENCY_BOUND else {}
    return Finding(
        target, replace(view, limits=LIMITS), actions=advice(cause, stage, place=place, derived=small, **states)
    )


@pytest.mark.parametrize("name", CASES)
def test_the_advice_for_each_cause_reads_as_reviewed(name):
    check_golden(f"advice_{name}.txt", printed(report.advice_report([finding(name)])))


def test_advice_with_what_it_is_expected_to_do_reads_as_reviewed():
    """On a recording of a real vLLM."""
    view = pressed_view("traces/preemption-thrash.jsonl.xz")
    assert view.diagnosis is not None
    given = (view.diagnosis, view.derived, view.limits, PRODUCTION, load_thresholds())
    found = Finding("llama:8000", view, actions=advise(*given, observed=view.observed))
    check_golden("advice_predicted.txt", printed(report.advice_report([found])))
    overview = printed(report.triage_report([found], NOW, commands=False))
    predicted = re.findall(r"expected: (?:on (?:both|all \d+): )?tokens/s", overview)
    assert len(predicted) == sum(action.expected is not None for action in found.actions)


def test_the_advice_for_a_plain_process_reads_as_reviewed():
    check_golden("advice_process.txt", printed(report.advice_report([finding("device_oom", place=PROCESS)])))


def test_a_triage_of_several_engines_reads_as_reviewed():
    unreachable = Finding("other:8000", problem="connection refused by http://other:8000/metrics")
    several = [finding("idle", "calm:8000"), unreachable, finding("stuck"), finding("kv_cache_pressure", engine="1")]
    check_golden("triage_several.txt", printed(report.triage_report(several, NOW)))


@pytest.mark.parametrize("width", [40, 80, 120])
def test_command_lines_are_never_wrapped_or_cut_and_no_query_needs_an_exporter(width):
    found = finding("device_oom")
    lines = printed(report.triage_report([found], NOW), width).splitlines()
    stripped = {line.strip() for line in lines}
    for action in found.actions:
        assert set(action.commands) <= stripped
        assert action.checks
    assert [line for line in lines if "kvpressure_" in line] == []
    assert "- the verdict is not KV cache pressure" in " ".join(
        printed(report.triage_report([found], NOW), 120).split()
    )


@pytest.mark.parametrize("width", [60, 80, 100])
def test_everything_but_commands_keeps_to_the_width(width):
    commands = [line for action in finding("stuck").actions for line in (*action.commands, *action.checks)]
    for line in printed(report.triage_report([finding("stuck")], NOW), width).splitlines():
        assert len(line) <= width or line.strip() in commands


def test_the_overview_of_watch_has_no_commands():
    text = printed(report.triage_report([finding("device_oom")], NOW, commands=False))
    assert "Cut max-num-batched-tokens: 8,192 (declared) -> 4,096" in text
    assert "kubectl" not in text


@pytest.mark.parametrize(
    ("cause", "stage", "words"),
    [
        (Cause.KV_CACHE_PRESSURE, Stage.BUILDING, "KV cache pressure"),
        (Cause.KV_CACHE_PRESSURE, Stage.COLLAPSED, "KV cache pressure, collapsed"),
        (Cause.HEALTHY, Stage.BUILDING, "healthy, pressure building"),
        (Cause.IDLE, Stage.NONE, "idle"),
    ],
)
def test_pressure_that_is_there_is_never_played_down_as_building(cause, stage, words):
    assert report.cause_words(diagnosis(cause, stage)) == words
    view = engine_view("llama:8000", "llama-3", "0", NOW, SHAPE, diagnosis(cause, stage))
    assert report.cause_words(diagnosis(cause, stage)).lower() in report.verdict_line(Finding("x", view), NOW).lower()


def test_names_from_outside_cannot_move_the_cursor_or_be_taken_for_markup():
    hostile = finding("kv_cache_pressure", target="\x1b[2Jgone\r[bold]x[/bold]\x07")
    view = replace(hostile.view, key=hostile.view.key._replace(model_name="m\x9b31m\u202e\n[link=http://x]"))
    text = printed(report.triage_report([replace(hostile, view=view)], NOW))
    assert not {c for c in text if not c.isprintable()} - {"\n"}
    assert "?[2Jgone?[bold]x[/bold]?" in text
    assert "[link=http://x]" in text


def test_evidence_that_holds_comes_first_and_what_is_missing_is_named_once():
    seen = finding("kv_cache_pressure")
    symptoms = {
        **seen.diagnosis.symptoms,
        "kv_saturated": Evidence("kv_saturated", False, "KV used", 0.77, 0.9, "ratio"),
    }
    view = replace(seen.view, diagnosis=replace(seen.diagnosis, symptoms=symptoms))
    lines = printed(report.triage_report([replace(seen, view=view)], NOW)).splitlines()
    rows = [line.split() for line in lines if line.startswith(("admission_blocked", "kv_saturated"))]
    assert rows[0][:2] == ["admission_blocked", "YES"]
    assert rows[1][:4] == ["kv_saturated", "77%", "90%", "no"]
    assert sum("nothing told" in line for line in lines) == 1


def test_colours_are_used_on_a_terminal_and_not_with_no_color(monkeypatch):
    monkeypatch.delenv("NO_COLOR", raising=False)
    coloured = printed(report.triage_report([finding("stuck")], NOW), force_terminal=True, color_system="standard")
    assert "\x1b[1;31mSTUCK" in coloured
    monkeypatch.setenv("NO_COLOR", "1")
    plain = printed(report.triage_report([finding("stuck")], NOW), force_terminal=True, color_system="standard")
    assert "STUCK" in plain
    assert "\x1b[1;31m" not in plain


@pytest.mark.parametrize(
    ("names", "code"),
    [
        (["idle"], 0),
        (["building"], 0),
        (["kv_cache_pressure"], 1),
        (["stuck"], 1),
        (["host_bound"], 1),
        (["compute_bound"], 1),
        (["concurrency_bound"], 1),
        (["unknown"], 2),
        (["idle", "unknown"], 2),
        (["unknown", "kv_cache_pressure", "idle"], 1),
        ([], 2),
    ],
)
def test_the_worst_engine_decides_the_exit_code(names, code):
    assert exit_code([finding(name, target=name) for name in names]) == code


def test_ranks_of_one_server_get_one_advice_for_the_worst_of_them():
    ranks = [finding("idle", engine="0"), finding("kv_cache_pressure", engine="1"), finding("unknown", target="b")]
    assert [one.view.key.rank for one in advised(ranks) if one.target == "llama:8000"] == ["1"]
    assert [one.cause for one in worst_first(ranks)] == [Cause.KV_CACHE_PRESSURE, Cause.UNKNOWN, Cause.IDLE]


def test_json_has_every_symptom_with_null_for_what_is_not_known_and_no_number_json_lacks():
    seen = finding("kv_cache_pressure")
    view = replace(seen.view, derived={**SHAPE, "kv_exhaustion_seconds": float("inf")})
    text = json.dumps(as_json([replace(seen, view=view), Finding("b", problem="refused")]), allow_nan=False)
    pressed, unreachable = json.loads(text)["engines"]
    assert (pressed["cause"], pressed["stage"], pressed["confidence"]) == ("kv_cache_pressure", "collapsed", 0.8)
    assert pressed["symptoms"]["admission_blocked"]["state"] is True
    assert pressed["symptoms"]["cpu_pressed"]["state"] is None
    assert "kv_exhaustion_seconds" not in pressed["derived"]
    assert pressed["limits"]["max_num_seqs"] == {"value": 48, "source": "declared"}
    assert (unreachable["cause"], unreachable["error"], unreachable["confidence"]) == ("unknown", "refused", None)


def test_the_advice_as_json_carries_flags_and_lines_that_a_shell_can_read():
    (engine,) = advice_json([finding("device_oom")])["engines"]
    apply = next(action for action in engine["actions"] if action["key"] == "apply")
    assert apply["flags"] == {"--gpu-memory-utilization": "0.7", "--max-num-batched-tokens": "4096"}
    assert all(shlex.split(line) for line in apply["commands"])
    assert advice_json([Finding("b", problem="refused")])["engines"][0]["actions"] == []
