"""Who is asked for one token, and with what."""

from __future__ import annotations

from pathlib import Path

from kvpressure.config.settings import CanarySettings, Settings
from kvpressure.config.settings.load import Loaded
from kvpressure.config.target import Target
from kvpressure.config.thresholds import load_thresholds
from kvpressure.daemon.canaries import _canary_target, canary_times
from kvpressure.model.view import EngineKey
from kvpressure.signals.canary import CanaryTimes, CanaryWanted

WANTED = CanaryWanted(EngineKey("t", "m", "3"), "vllm", several=False)


def test_times_are_those_of_settings_and_thresholds_and_none_unless_switched_on():
    thresholds = load_thresholds("{stuck_frozen_min_seconds: 40, stuck_unanswered_min_seconds: 20}")
    assert canary_times(Loaded(Settings(), thresholds)) is None
    engines = {"canary": {"enabled": True, "idle_seconds": 15, "interval_seconds": 90}}
    on = Loaded(Settings.model_validate({"engines": engines}), thresholds)
    assert canary_times(on) == CanaryTimes(40.0, 15.0, 90.0, 20.0)


def test_switching_it_on_names_no_engines():
    assert Settings.model_validate({"engines": {"canary": {"enabled": True}}}).single_machine


def test_a_pod_that_was_found_never_gets_the_key():
    settings = CanarySettings(enabled=True, api_key_file=Path("/key"))
    named = Target("t", "http://10.0.0.5:8000", namespace="chat", pod="llama-0")
    found = Target("t", "http://10.0.0.5:8000", namespace="chat", pod="llama-0", container="vllm")
    assert _canary_target(WANTED, named, settings).api_key_file == Path("/key")
    assert _canary_target(WANTED, found, settings).api_key_file is None


def test_only_one_of_several_ranks_is_named():
    target = Target("t", "http://10.0.0.5:8000")
    several = CanaryWanted(WANTED.key, "vllm", several=True)
    assert _canary_target(WANTED, target, CanarySettings()).rank is None
    assert _canary_target(several, target, CanarySettings()).rank == "3"
