import dataclasses
from pathlib import Path

import pytest
import yaml

from kvpressure.config.strict_yaml import ConfigError
from kvpressure.config.thresholds import ASCENDING, UNITS, load_thresholds, packaged_text
from tests.support.expectations import expected, fixtures


def problems(override: str | None = None, *, base: str | None = None) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load_thresholds(override, override_name="mine.yaml", base=base)
    return [str(problem) for problem in caught.value.problems]


@pytest.mark.parametrize("path", fixtures("thresholds"), ids=lambda path: path.stem)
def test_a_bad_override_is_reported_whole_with_the_line_of_every_problem(path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        load_thresholds(path.read_text(), override_name=str(path))
    assert sorted(map(str, caught.value.problems)) == sorted(expected(path))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("gpu_memory_high_warn_ratio", 0.85),
        ("gpu_memory_high_critical_ratio", 0.90),
        ("gpu_compute_low_max_ratio", 0.60),
        ("gpu_compute_high_min_ratio", 0.80),
        ("score_idle_ramp_start_ratio", 0.40),
        ("score_idle_ramp_end_ratio", 0.70),
        ("batch_collapse_max_sequences", 2),
        ("admission_blocked_min_ratio", 0.5),
        ("kv_saturated_min_ratio", 0.90),
        ("preempting_min_ratio", 0.01),
        ("latency_inflated_min_factor", 2),
        ("baseline_half_life_seconds", 1800),
    ],
)
def test_the_numbers_of_the_diagnosis_are_the_defaults(name: str, value: float) -> None:
    assert load_thresholds().values[name] == value


def test_every_entry_says_why_and_where_from_and_ends_in_its_unit() -> None:
    thresholds = load_thresholds()
    assert thresholds.entries.keys() == thresholds.values.keys()
    for name, entry in thresholds.entries.items():
        assert len(entry.why) > 20, name
        assert entry.source, name
        assert entry.unit in UNITS, name
        assert name.endswith((entry.unit, "_r2")), name


def test_an_override_gives_one_value_as_a_number_or_with_its_unit() -> None:
    thresholds = load_thresholds(
        "kv_saturated_min_ratio: 0.95\nlatency_inflated_min_factor: {value: 3, unit: factor}\n"
    )
    changed = {name for name, value in thresholds.values.items() if value != load_thresholds().values[name]}
    assert changed == {"kv_saturated_min_ratio", "latency_inflated_min_factor"}
    assert (thresholds.symptoms.kv_saturated_min_ratio, thresholds.symptoms.latency_inflated_min_factor) == (0.95, 3.0)


def test_the_hash_follows_the_values_and_nothing_else() -> None:
    default = load_thresholds()
    assert load_thresholds("").hash == default.hash
    assert load_thresholds("# a comment\nkv_saturated_min_ratio: 0.9\n").hash == default.hash
    assert load_thresholds(base=packaged_text().replace("source: judgement", "source: ours")).hash == default.hash
    assert load_thresholds("kv_saturated_min_ratio: 0.91").hash != default.hash
    assert len(default.hash) == 16


def test_moving_both_ends_of_a_pair_together_is_no_contradiction() -> None:
    moved = load_thresholds("gpu_memory_high_critical_ratio: 0.97\ngpu_memory_high_warn_ratio: 0.95\n")
    assert moved.gpu.memory_high_warn_ratio == 0.95


def test_a_pair_broken_from_below_is_reported_in_the_override_not_in_the_packaged_file() -> None:
    message = "gpu_memory_high_warn_ratio (0.85) must be below gpu_memory_high_critical_ratio (0.8)"
    assert problems("gpu_memory_high_critical_ratio: 0.8") == [
        f"mine.yaml:1: gpu_memory_high_critical_ratio: {message}"
    ]


def test_every_pair_names_known_thresholds_of_one_unit() -> None:
    thresholds = load_thresholds()
    for low, high in ASCENDING:
        assert thresholds.entries[low].unit == thresholds.entries[high].unit


def test_thresholds_are_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        load_thresholds().symptoms.kv_saturated_min_ratio = 1.0  # type: ignore[misc]


def test_the_packaged_file_must_name_every_threshold_with_unit_why_and_source() -> None:
    entries = yaml.safe_load(packaged_text())
    del entries["kv_saturated_min_ratio"]
    del entries["preempting_min_ratio"]["unit"]
    entries["kv_growth_min_r2"]["why"] = ""
    entries["baseline_half_life_seconds"] = 1800
    text = [problem.split(": ", 1)[1] for problem in problems(base=yaml.safe_dump(entries, sort_keys=False))]
    assert sorted(text) == [
        "baseline_half_life_seconds: must be a mapping with value, unit, why and source",
        "kv_growth_min_r2.why: must say in words",
        "kv_saturated_min_ratio: is missing",
        "preempting_min_ratio.unit: must be ratio, got nothing",
    ]


def test_problems_of_both_files_come_together() -> None:
    base = packaged_text().replace("value: 0.01", "value: 3", 1)
    found = problems("zebra: 1", base=base)
    assert len(found) == 2
    assert found[0] == "mine.yaml:1: zebra: unknown threshold"
    assert "preempting_min_ratio.value: must be from 0 to 1, got 3" in found[1]


def test_every_threshold_has_a_known_unit_and_its_name_ends_in_it() -> None:
    thresholds = load_thresholds()
    assert {entry.unit for entry in thresholds.entries.values()} == set(UNITS)
    odd = {name for name in thresholds.values if name.rpartition("_")[2] != thresholds.entries[name].unit}
    assert odd == {"kv_growth_min_r2"}
