"""What `triage` prints without an option: a verdict, three facts and one step for each engine."""

from dataclasses import replace

import pytest

from kvpressure.advice.advise import Place
from kvpressure.cli.findings import Finding
from kvpressure.cli.report import brief_report, facts_of
from kvpressure.config.thresholds import load_thresholds
from kvpressure.model.action import AFTER, step_without_gpu
from tests.support.advice_cases import NOW, PRODUCTION
from tests.support.advised import advise
from tests.support.observed import pressed_view
from tests.support.printed import printed

pytestmark = pytest.mark.recorded


def found(place: Place = PRODUCTION) -> Finding:
    view = pressed_view("traces/preemption-thrash.jsonl.xz")
    assert view.diagnosis is not None
    actions = advise(view.diagnosis, view.derived, view.limits, place, load_thresholds(), observed=view.observed)
    return Finding("llama:8000", view, actions=actions)


def test_an_engine_has_a_verdict_three_facts_and_the_first_step_with_its_commands() -> None:
    finding = found()
    lines = printed(brief_report([finding], NOW), 400).splitlines()
    assert lines[1].startswith("KV CACHE PRESSURE")
    assert [line.startswith("  - ") for line in lines[2:6]] == [True, True, True, False]
    (step,) = (line for line in lines if line.startswith("Do: "))
    assert finding.actions[0].title in step
    other = step_without_gpu(finding.actions)
    shown = [action for action in finding.actions[1:] if action.title in "\n".join(lines)]
    assert shown == ([] if other is None else [other])
    assert set(finding.actions[0].commands) <= {line.strip() for line in lines}
    assert "kvpressure_" not in "\n".join(lines)
    assert lines[-2] == f"--full: all evidence, {len(finding.actions) - 1} more steps"


def test_beside_replicas_the_best_step_without_a_gpu_stands_or_why_there_is_none() -> None:
    finding = found()
    first, other = finding.actions[0], step_without_gpu(finding.actions)
    assert first.needs_gpu
    lines = printed(brief_report([finding], NOW), 400).splitlines()
    (line,) = (line for line in lines if line.startswith("Without a GPU"))
    assert (other.title if other is not None else "nothing that was tried helps") in line
    alone = replace(finding, actions=(replace(first, unpredicted="too few polls", expected=None),))
    assert "Without a GPU: not predicted: too few polls." in printed(brief_report([alone], NOW), 400)
    cap = replace(finding, actions=tuple(one for one in finding.actions if not one.needs_gpu))
    assert "Without a GPU" not in printed(brief_report([cap], NOW), 400)


def test_what_the_grounds_say_is_said_once() -> None:
    finding = found()
    grounds = finding.diagnosis.grounds.rstrip(".").casefold()
    assert any(one.state and one.text.casefold() == grounds for one in finding.diagnosis.symptoms.values())
    facts = [fact.casefold() for fact in facts_of(finding)]
    assert sum(grounds in fact for fact in facts) == 1
    assert len(facts) > 3


def test_commands_with_placeholders_are_left_to_the_whole_report() -> None:
    finding = found(Place())
    steps = tuple(action for action in finding.actions if action.placeholders)
    text = printed(brief_report([replace(finding, actions=steps)], NOW))
    assert "NAMESPACE" not in text
    assert "for its commands: --full" in text


def test_further_lines_of_a_paragraph_stay_below_its_text() -> None:
    lines = printed(brief_report([found()], NOW), 60).splitlines()
    facts = lines[lines.index(next(line for line in lines if line.startswith("  - "))) :]
    facts = facts[: facts.index(next(line for line in facts if line.startswith("Do: ")))]
    assert len(facts) > 3
    assert all(line.startswith(("  - ", "    ")) for line in facts)


def test_a_step_for_later_says_so() -> None:
    finding = found()
    later = tuple(action for action in finding.actions if action.when == AFTER)
    assert "Do after the incident: " in printed(brief_report([replace(finding, actions=later)], NOW))


def test_a_target_that_cannot_be_read_has_its_reason_alone() -> None:
    finding = Finding("llama:8000", problem="connection refused")
    assert printed(brief_report([finding], NOW)).split() == ["llama:8000", "no", "verdict:", "connection", "refused"]
    assert list(facts_of(finding)) == []


def test_what_an_engine_names_stays_on_its_line() -> None:
    finding = found()
    assert finding.view is not None
    assert finding.diagnosis is not None
    view = replace(finding.view, diagnosis=replace(finding.diagnosis, grounds="a\nb\x1b[31m"))
    assert "a\nb" not in printed(brief_report([replace(finding, view=view)], NOW))
