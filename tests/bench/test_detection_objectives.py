"""What late first tokens and absent metrics are judged by."""

from __future__ import annotations

import json
import re

from bench.detection import others
from bench.detection.episodes import long_scenario, seeds
from bench.detection.others import MAY, MUST, NOT
from bench.detection.prometheus import STEP_SECONDS
from bench.simulator.service import SimulatedServer
from bench.written import ACCURACY, mark
from kvpressure.config.thresholds import load_thresholds

LIMITS = load_thresholds()


def said(late_every: int, steps: int = 80) -> list[frozenset[str]]:
    known = [(float(t), t % late_every == 0) for t in range(int(steps * STEP_SECONDS))]
    return list(others._burns(known, steps, LIMITS))


def test_a_share_of_late_first_tokens_burns_the_objective_from_the_alerts_own_factors_on() -> None:
    assert said(5)[-1] == MUST, "20 %"
    assert said(20)[-1] == MAY, "5 %: more than half of what the slow burn asks for"
    assert said(200)[-1] == NOT


def test_who_still_waits_is_late_and_who_gave_up_before_is_not() -> None:
    about, seed = next((about, seed) for about, seed in seeds() if about == "kv_cache_pressure")
    scenario = long_scenario(about, seed)
    server = others._Asked(scenario, seed)
    server.advance(server.start + scenario.seconds)
    waits = [one for one in server.asked if one.first_token is None and not one.last_token]
    known = others._known(server, ())
    late = [at for at, is_late in known if is_late]
    waited = [one.arrived + others.OBJECTIVE_SECONDS for one in waits]
    assert {at for at in waited if at <= server.clock} <= set(late)
    assert len(known) <= len(server.asked)


def test_the_judged_server_is_the_simulated_one() -> None:
    about, seed = next(seeds())
    scenario = long_scenario(about, seed)
    pages = [kind(scenario, seed) for kind in (SimulatedServer, others._Asked)]
    assert pages[0].page(pages[0].start + 300) == pages[1].page(pages[1].start + 300)


def test_outages_are_told_after_five_minutes_and_what_is_none_is_never_told() -> None:
    found = [others.outage(seed) for seed in others.SEEDS]
    told = {one.name.rpartition("-")[0]: any(second.accepted == MUST for second in one.truth) for one in found}
    assert told == {
        "dies": True,
        "without metrics": True,
        **dict.fromkeys(("restarts", "scaled down", "prometheus stops", "replaced", "flaps"), False),
    }


def test_the_published_figures_are_those_of_the_last_run() -> None:
    rows = json.loads(others.SIMULATED_RESULTS.read_text())
    _, text, _ = (ACCURACY / "vllm-only.md").read_text().split(mark("bench.detection.others simulated"))
    for row in rows:
        assert f"{row['found']}/{row['episodes']} found, {row['false_episodes']} false" in text
    assert set(re.findall(r"`(KVPressureVLLM\w+)`", text)) == {others.BURN, others.ABSENT}
