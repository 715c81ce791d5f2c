"""What alerts say, as promtool renders them for the cases of rules/tests: short, known, and with a command to paste."""

import re

import pytest

from kvpressure.bundle import Options, load_rules
from kvpressure.config.thresholds import load_thresholds
from tests.support.rules import rendered

FOLD = 200
"""Characters of summary and facts together: what a locked phone, or Slack above "see more", shows."""

FORBIDDEN = re.compile(
    r"unknown|<no value>|<error|NaN|[+-]Inf|\bURL\b|\bpage\b|\bDIR\b|  |%!|\{\{|triage (demo|chat)\b"
)


EVERY = list(rendered())
COMMANDS = sorted({(labels.get("pod", ""), told["description"].partition("\nRun: ")[2]) for _, labels, told in EVERY})


def test_every_alert_is_rendered_in_some_case_with_each_of_its_severities() -> None:
    files = load_rules(Options(load_thresholds(), all_alerts=True))
    known = {(alert.name, alert.severity) for file in files for alert in file.alerts}
    assert known - {(name, labels["severity"]) for name, labels, _ in EVERY} == set()


def test_what_comes_before_the_command_fits_above_the_fold() -> None:
    lengths = {
        text: len(text)
        for _, _, told in EVERY
        if len(text := f"{told['summary']}\n{told['description'].partition(chr(10))[0]}") > FOLD
    }
    assert lengths == {}


@pytest.mark.parametrize("key", ["summary", "description"])
def test_nothing_is_said_of_what_is_not_known(key: str) -> None:
    assert [told[key] for _, _, told in EVERY if FORBIDDEN.search(told[key])] == []


def test_the_first_step_is_told_before_the_command() -> None:
    steps = {name for name, _, told in EVERY if re.search(r"First: \S.*\nRun: \S", told["description"])}
    assert steps >= {alert.name for file in load_rules(Options(load_thresholds())) for alert in file.alerts} - {
        "KVPressureEngineRestarting"  # how it ended is the step: raise the memory limit, or read the log
    }


def test_a_command_for_a_bare_host_has_nothing_of_kubernetes() -> None:
    for _, labels, told in EVERY:
        if labels.get("component") in {"engine", "container", "gpu", "limits"} and not labels.get("pod"):
            assert "kubectl" not in told["description"], told


@pytest.mark.parametrize(("pod", "command"), COMMANDS)
def test_triage_is_given_a_pod_or_an_address(pod: str, command: str) -> None:
    if found := re.search(r"kvpressure triage (.*)", command):
        assert re.fullmatch(r"-n \S+ pod/\S+|(https?://)?[\w.\[\]-]*:[0-9]+|https?://\S+", found[1]), command
        assert not pod or f"pod/{pod}" in found[1]
