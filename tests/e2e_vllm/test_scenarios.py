"""The tables of scenarios are words that others must understand: misspelt ones show after minutes, or never."""

import random

import pytest

from kvpressure.model.verdict import DETAILS, Cause
from tests.e2e_vllm.load import Load
from tests.e2e_vllm.scenario import Event, Phase, Scenario
from tests.e2e_vllm.scenarios import SCENARIOS
from tests.support.rules import alerts

WHOLE_RUN_SECONDS = 2400.0
BOOT_SECONDS = 60.0
"""With Prometheus and the exporter."""

PHASES = [pytest.param(phase, id=f"{one.name}-{phase.name}") for one in SCENARIOS for phase in one.phases]


def seconds_of(scenario: Scenario) -> float:
    boots = 1 + sum(one.event is Event.RESTART for one in scenario.phases)
    return BOOT_SECONDS * boots + sum(one.lead_seconds + one.seconds for one in scenario.phases)


@pytest.mark.parametrize("phase", PHASES)
def test_verdicts_and_alerts_are_words_of_the_exporter(phase: Phase):
    assert phase.causes <= {cause.value for cause in Cause}
    assert phase.details <= {word for cause in phase.causes for word in DETAILS[Cause(cause)]}
    assert phase.fires in {"", *(alert.name for alert in alerts())}


@pytest.mark.parametrize("phase", PHASES)
def test_a_phase_lasts_longer_than_what_it_waits_for(phase: Phase):
    assert phase.seconds > phase.verdict_seconds
    assert phase.fires_within_seconds is None or phase.seconds >= phase.fires_within_seconds


def test_names_tell_scenarios_and_phases_apart():
    names = [scenario.name for scenario in SCENARIOS]
    phases = [phase.name for scenario in SCENARIOS for phase in scenario.phases if phase.name != "light"]
    assert len(set(names)) == len(names)
    assert len(set(phases)) == len(phases)


def test_a_whole_run_fits_forty_minutes():
    assert sum(seconds_of(scenario) for scenario in SCENARIOS) <= WHOLE_RUN_SECONDS


def test_a_load_asks_for_what_it_says():
    rng = random.Random(1)
    path, body = Load(1, 10, 20, exact=True).request(rng)
    assert (path, len(body["prompt"].split()), body["max_tokens"]) == ("/v1/completions", 10, 20)
    _, body = Load(1, 10, 20, json=True).request(rng)
    assert body["response_format"]["type"] == "json_schema"
    assert "ignore_eos" not in body, "an answer in JSON ends where the schema does"
    path, body = Load(1, 10, embeds=True).request(rng)
    assert (path, set(body)) == ("/v1/embeddings", {"model", "input"})
    adapters = {Load(1, 1, 1, models=("red", "green")).request(rng)[1]["model"] for _ in range(50)}
    assert adapters == {"red", "green"}
