import json
import re
from collections import defaultdict

import pytest
from click.testing import CliRunner

from kvpressure.cli import main
from kvpressure.config.thresholds import load_thresholds
from kvpressure.engine_state import Pipeline, PipelineSettings
from kvpressure.engines.reader import PageReader
from kvpressure.model.allowance import NEW_AN_HOUR
from kvpressure.model.samples import CacheConfig, EnginePage, EngineSample, GpuReport, GpuSample, HistogramSample
from kvpressure.model.values import at
from kvpressure.model.view import EngineKey
from kvpressure.signals.context import GpuWindow
from kvpressure.signals.gpu import gpus_of
from tests.support.engines import histogram
from tests.support.snapshots import FakeTarget, gpu_report, lines
from tests.support.tools import FIXTURES

pytestmark = pytest.mark.recorded

TRACES = FIXTURES / "traces"


def pipeline(**settings) -> Pipeline:
    return Pipeline(PipelineSettings(**settings), load_thresholds())


def page(t: float, *engines: str, started: float | None = None, steps: float = 0.0, tokens: float = 0.0) -> EnginePage:
    cache = CacheConfig(capacity_tokens=1000)
    samples = tuple(
        EngineSample(
            "m", e, {"running": 1.0, "waiting": 0.0}, {"steps": steps, "generation_tokens": tokens}, cache=cache
        )
        for e in engines
    )
    return EnginePage(t, samples, started)


def gpus_named(t: float, *uuids: str) -> GpuReport:
    return GpuReport(t, tuple(GpuSample(t, uuid, "0", "nvidia") for uuid in uuids))


def test_each_rank_is_an_engine_of_its_own():
    made = pipeline()
    made.on_page(FakeTarget(), page(0.0, "0", "1"))
    assert [(view.key.rank, view.key.target) for view in made.engine_views(0.0)] == [
        ("0", "chat/vllm-0:8000"),
        ("1", "chat/vllm-0:8000"),
    ]


def test_an_engine_that_is_not_read_any_more_is_dropped_after_the_staleness_bound():
    made = pipeline(engine_stale_seconds=10)
    made.on_page(FakeTarget(), page(0.0, "0"))
    assert len(made.engine_views(10.0)) == 1
    assert made.engine_views(10.1) == ()


def test_an_engine_back_within_the_window_keeps_its_history_and_one_back_later_starts_anew():
    made = pipeline()
    made.on_page(FakeTarget(), page(0.0, "0", steps=10))
    made.expire(30.0)
    (view,) = made.on_page(FakeTarget(), page(30.0, "0", steps=20))
    assert view.derived["tokens_per_second"] == {"generation": 0.0}
    made.expire(200.0)
    (view,) = made.on_page(FakeTarget(), page(200.0, "0", steps=30))
    assert "tokens_per_second" not in view.derived


def test_a_rank_that_pages_no_longer_show_is_forgotten_and_does_not_count_as_silent():
    made = pipeline()
    made.on_page(FakeTarget(), page(0.0, "0", "1"))
    for t in range(1, 100):
        made.on_page(FakeTarget(), page(float(t), "0"))
        made.expire(float(t))
    assert made.silent_views(99.0) == ()
    known = {rank: EngineKey("chat/vllm-0:8000", "m", rank) in made._engines for rank in "01"}
    assert known == {"0": True, "1": False}


def test_a_rank_that_vanishes_from_the_page_goes_stale_alone():
    made = pipeline()
    made.on_page(FakeTarget(), page(0.0, "0", "1"))
    made.on_page(FakeTarget(), page(20.0, "0"))
    assert [view.key.rank for view in made.engine_views(20.0)] == ["0"]


def test_a_restarted_server_is_noticed_by_its_start_time():
    made = pipeline()
    made.on_page(FakeTarget(), page(0.0, "0", started=1000.0, tokens=10))
    (view,) = made.on_page(FakeTarget(), page(1.0, "0", started=5000.0, tokens=30))
    assert view.derived["tokens_per_second"] == {"generation": 30.0}


def test_too_many_engines_are_left_out_and_counted():
    made = pipeline(max_engines=2)
    made.on_page(FakeTarget(), page(0.0, "0", "1", "2", "3"))
    assert len(made.engine_views(0.0)) == 2
    assert made.caps_reached["engines"] == 2


def test_a_target_with_endlessly_many_engines_starves_no_other():
    made = pipeline(max_engines=20)
    for t in range(5):
        made.on_page(FakeTarget(name="greedy"), page(float(t), *(f"{t}-{i}" for i in range(30))))
        made.on_page(FakeTarget(name="good"), page(float(t), "0", "1"))
    good = [view for view in made.engine_views(4.0) if view.key.target == "good"]
    assert [view.key.rank for view in good] == ["0", "1"]
    assert len(made.engine_views(4.0)) == 20
    assert made.caps_reached["engines"] > 100


def test_two_over_long_names_that_start_alike_stay_two_series():
    made = pipeline(max_label_length=40)
    for end in "ab":
        made.on_page(FakeTarget(name="x" * 500 + end), page(0.0, "0"))
    names = {view.shown.target for view in made.engine_views(0.0)}
    assert {len(view.key.target) for view in made.engine_views(0.0)} == {501}
    assert {len(name) for name in names} == {40}
    assert len(names) == 2


def test_a_clock_set_back_starts_the_history_anew_instead_of_freezing_it():
    made = pipeline()
    for t in range(30):
        made.on_page(FakeTarget(), page(10_000.0 + t, "0", tokens=10.0 * t))
    assert made.engine_views(6400.0) == ()
    for t in range(5):
        made.on_page(FakeTarget(), page(6400.0 + t, "0", tokens=300.0 + t))
    (view,) = made.engine_views(6404.0)
    assert view.t == 6404.0
    assert view.derived["tokens_per_second"] == {"generation": 1.0}


def test_a_gap_longer_than_every_window_is_survived():
    made = pipeline()
    for t in (0.0, 1.0, 2.0, 9000.0, 9001.0):
        views = made.on_page(FakeTarget(), page(t, "0", steps=t))
    assert views[0].t == 9001.0


def test_a_page_that_comes_twice_is_counted_once():
    made = pipeline()
    for t in (0.0, 0.0, 1.0, 1.0, 1.0, 2.0):
        made.on_page(FakeTarget(), page(t, "0", steps=10.0 * t))
    histogram = made.engine_views(2.0)[0].derived["effective_batch_size"]
    assert histogram.count == 20


def test_other_thresholds_reach_what_is_known_of_healthy_states_already():
    made = pipeline()

    def inflation(t: int) -> float | None:
        sample = EngineSample("m", "0", {"running": 1.0, "waiting": 0.0}, {"generation_tokens": 9.0 * t}, answered(t))
        (view,) = made.on_page(FakeTarget(), EnginePage(float(t), (sample,)))
        return at(view.derived, "latency_inflation_ratio", "e2e")

    def answered(t: int) -> dict[str, HistogramSample]:
        return {"e2e": histogram((1.0, 2.0), (t, 2.0 * t, 2.0 * t), 1.5 * t)}

    assert [inflation(t) for t in range(100)][-1] == pytest.approx(1.0)
    made.set_thresholds(load_thresholds("baseline_min_seconds: 1000"))
    assert inflation(100) is None


def test_a_target_that_is_gone_is_forgotten_at_once():
    made = pipeline()
    made.on_page(FakeTarget(), page(0.0, "0"))
    made.forget(["chat/vllm-0:8000"])
    assert made.engine_views(0.0) == ()


def test_gpu_readings_that_are_stale_are_neither_shown_nor_used():
    made = pipeline()
    made.on_gpus("nvml", gpu_report(0.0))
    target = FakeTarget(gpus=("GPU-11",))
    made.on_page(target, page(5.0, "0"))
    assert "engine_gpu_memory_used_ratio" in made.engine_views(5.0)[0].derived
    made.on_page(target, page(11.0, "0"))
    assert "engine_gpu_memory_used_ratio" not in made.engine_views(11.0)[0].derived
    assert made.gpu_views(11.0) == ()


def test_an_engine_whose_gpus_are_not_known_gets_none():
    made = pipeline()
    made.on_gpus("nvml", gpu_report(0.0))
    (view,) = made.on_page(FakeTarget(gpus=None), page(0.0, "0"))
    assert "engine_gpu_info" not in view.derived


def windows(*samples: GpuSample) -> list[GpuWindow]:
    made = []
    for sample in samples:
        window = GpuWindow(60)
        window.add(sample)
        made.append(window)
    return made


def test_gpus_are_named_by_uuid_or_index_and_only_a_complete_set_counts():
    gpus = windows(GpuSample(0.0, "GPU-a", "0", "nvidia"), GpuSample(0.0, "GPU-b", "1", "nvidia"))
    assert [g.last.uuid for g in gpus_of(("1", "GPU-a"), gpus)] == ["GPU-b", "GPU-a"]
    assert gpus_of(("0", "7"), gpus) == []
    assert gpus_of((), gpus) == []


def test_all_gpus_means_the_instances_of_a_device_that_is_split():
    gpus = windows(
        GpuSample(0.0, "GPU-a", "0", "nvidia"),
        GpuSample(0.0, "MIG-a1", "0:0", "nvidia", parent_uuid="GPU-a"),
        GpuSample(0.0, "GPU-b", "1", "nvidia"),
    )
    assert [g.last.uuid for g in gpus_of(("all",), gpus)] == ["MIG-a1", "GPU-b"]


def test_rejected_gpu_readings_are_counted_by_source_and_reason():
    made = pipeline()
    for t in range(3):
        made.on_gpus("nvml", GpuReport(float(t), (), rejected={"utilization_range": 2}))
    assert made.rejected == {"nvml": {"utilization_range": 6}}


@pytest.mark.fault(
    "a page changes its labels with each poll, or a GPU exporter's page its UUIDs, to fill the operator's Prometheus",
    "256 new label sets an hour are exported of each; the rest is held back, counted and said on /targets; an engine "
    "that was there before stays, and other targets lose nothing",
)
def test_labels_that_change_with_each_poll_are_held_back_after_some():
    made, exported = pipeline(), set()
    for t in range(40):
        names = [f"{t}-{number}" for number in range(99)]
        made.on_page(FakeTarget(), page(float(t), "0", *names))
        made.on_page(FakeTarget(name="good"), page(float(t), "0"))
        made.on_gpus("gpu_exporter", gpus_named(float(t), *[f"GPU-{name}" for name in names]))
        made.on_gpus("nvml", gpus_named(float(t), "GPU-a"))
        made.expire(float(t))
        exported |= {view.key for view in made.engine_views(float(t))}
        exported |= {view.sample.uuid for view in made.gpu_views(float(t))}
    assert len(exported) <= 2 * NEW_AN_HOUR + 3 + 2 * 40 // 10
    assert {"0"} <= {view.key.rank for view in made.engine_views(39.0) if view.t == 39.0}
    assert "good" in {view.key.target for view in made.engine_views(39.0)}
    assert "GPU-a" in {view.sample.uuid for view in made.gpu_views(39.0)}
    assert [problem.split(":")[0] for problem in made.problems] == ["gpu_exporter", "target chat/vllm-0"]
    assert made.caps_reached["new_label_sets"] > 7000


def test_a_restart_a_rolling_update_and_a_repartition_by_mig_fit():
    made = pipeline()
    for t, ranks in ((0.0, range(64)), (100.0, range(64)), (200.0, range(64, 128))):
        made.on_page(FakeTarget(), page(t, *map(str, ranks)))
        made.on_gpus("nvml", gpus_named(t, *[f"MIG-{t}-{number}" for number in range(56)]))
        made.expire(t)
    assert made.problems == ()


# The recordings


def replay(name: str) -> dict[str, list[dict]]:
    result = CliRunner().invoke(main, ["replay", "--json", str(TRACES / f"{name}.jsonl.xz")])
    assert (result.exit_code, result.stderr) == (0, "")
    rows = defaultdict(list)
    for line in result.stdout.splitlines():
        row = json.loads(line)
        rows[row["engine"]].append(row)
    return rows


def test_the_collapse_shows_a_batch_of_two_and_blocked_admission():
    rows = replay("long-context-collapse")["0"]
    start = rows[0]["t"]
    late = [row for row in rows if row["t"] - start >= 30]
    assert len(rows) == 63
    assert all(1.9 <= row["derived"]["effective_batch_size_quantile"]["0.95"] <= 3 for row in late)
    assert all(row["derived"]["admission_blocked_ratio"] >= 0.7 for row in late)
    assert {row["label"] for row in rows} == {"kv_cache_pressure"}


@pytest.mark.parametrize("name", ["sequence-cap-queue", "idle", "light-load", "full-batch"])
def test_without_kv_pressure_admission_is_never_blocked(name):
    assert {row["derived"]["admission_blocked_ratio"] for row in replay(name)["0"]} == {0.0}


def test_the_thrash_shows_its_preemptions():
    last = replay("preemption-thrash")["0"][-1]["derived"]
    assert 3 <= last["preemptions_per_second"] <= 5
    assert last["preempted_request_ratio"] > 0.5
    assert last["admission_blocked_ratio"] > 0.7


def test_on_the_merged_page_of_two_ranks_the_batch_is_not_halved_by_over_counted_steps():
    rows = replay("two-ranks")
    assert set(rows) == {"0", "1"}
    for engine in rows.values():
        healthy = engine[40]["derived"]
        assert healthy["effective_batch_size_quantile"]["0.5"] == pytest.approx(healthy["requests_running"], rel=0.2)


def test_an_old_version_without_the_newer_metrics_is_read_too():
    last = replay("v0.12-preemption")["0"][-1]["derived"]
    assert last["kv_capacity_tokens"] == 127 * 32
    assert 2 <= last["effective_batch_size_quantile"]["0.95"] <= 4
    assert last["admission_blocked_ratio"] > 0.7


@pytest.mark.parametrize("trace", sorted(path.name for path in TRACES.glob("*.xz")))
def test_scaling_every_counters_start_value_changes_no_derived_value(trace):
    """The exporter may be started at any time of a server's life."""
    name = trace.removesuffix(".jsonl.xz")
    plain, shifted = pipeline(), pipeline()
    one, two = PageReader(), PageReader()
    for line in lines(name)[:40]:
        before = plain.on_page(FakeTarget(), one.read(line.page, line.t))
        read = two.read(line.page, line.t)
        moved = tuple(
            EngineSample(
                e.model_name, e.engine, e.gauges, {k: v + 1e6 for k, v in e.counters.items()}, e.histograms, e.cache
            )
            for e in read.engines
        )
        after = shifted.on_page(FakeTarget(), EnginePage(read.t, moved, read.started, read.multiprocess))
        for a, b in zip(before, after, strict=True):
            for path in (("preemptions_per_second",), ("tokens_per_second", "generation"), ("kv_free_tokens",)):
                assert at(a.derived, *path) == pytest.approx(at(b.derived, *path))


def test_replay_names_bad_lines_and_goes_on(tmp_path):
    good = json.dumps({"t": 1.0, "page": lines("idle")[0].page.decode()})
    path = tmp_path / "trace.jsonl"
    path.write_text(f'{good}\nnot json\n{{"t": 2}}\n{{"t": 3, "page": "<html>"}}\n{good.replace("1.0", "4.0", 1)}\n')
    result = CliRunner().invoke(main, ["replay", "--json", str(path)])
    assert result.exit_code == 0
    assert len(result.stdout.splitlines()) == 2
    assert [line.split(":")[1] for line in result.stderr.splitlines()] == ["2", "3", "4"]


def test_a_recordings_gpus_reach_the_score(tmp_path):
    path = tmp_path / "with-gpu.jsonl"
    gpu = {"uuid": "GPU-1", "memory_used_bytes": 95, "memory_total_bytes": 100, "utilization_ratio": 0.1, "other": 1}
    with path.open("w") as file:
        for line in lines("long-context-collapse")[:10]:
            file.write(json.dumps({"t": line.t, "page": line.page.decode(), "gpus": [gpu], "extra": None}) + "\n")
    result = CliRunner().invoke(main, ["replay", "--json", str(path)])
    last = json.loads(result.stdout.splitlines()[-1])["derived"]
    assert last["memory_high_compute_low_ratio"] == 1.0
    assert last["engine_gpu_info"] == {"GPU-1": 1.0}


@pytest.mark.parametrize(
    "gpu",
    [
        {"uuid": None},
        {"memory_used_bytes": 1},
        "text",
        {"uuid": "G", "memory_used_bytes": float("nan"), "memory_total_bytes": 10},
        {"uuid": "G", "memory_used_bytes": 20, "memory_total_bytes": 10, "utilization_ratio": 17},
        {"uuid": "G", "memory_used_bytes": "much", "utilization_ratio": None},
    ],
)
def test_a_recordings_gpus_are_believed_no_more_than_a_drivers(tmp_path, gpu):
    path = tmp_path / "odd.jsonl"
    page = lines("long-context-collapse")[0].page.decode()
    path.write_text("".join(json.dumps({"t": t, "page": page, "gpus": [gpu]}) + "\n" for t in range(3)))
    result = CliRunner().invoke(main, ["replay", "--json", str(path)])
    assert result.exit_code == 0
    for line in result.stdout.splitlines():
        row = json.loads(line, parse_constant=pytest.fail)["derived"]
        assert "requests_running" in row
        assert not {"engine_gpu_memory_used_ratio", "engine_gpu_utilization_ratio"} & row.keys()


def test_two_recordings_in_one_file_are_both_shown(tmp_path):
    path = tmp_path / "two.jsonl"
    page = lines("idle")[0].page.decode()
    path.write_text("".join(json.dumps({"t": t, "page": page}) + "\n" for t in (1000, 1001, 10, 11)))
    result = CliRunner().invoke(main, ["replay", "--json", str(path)])
    assert [json.loads(line)["t"] for line in result.stdout.splitlines()] == [1000, 1001, 10, 11]


def test_the_table_for_people_says_what_the_recording_was_and_draws_its_causes():
    result = CliRunner().invoke(main, ["replay", str(TRACES / "idle.jsonl.xz"), str(TRACES / "two-ranks.jsonl.xz")])
    assert "idle (tiny)" in result.output
    assert result.output.count("  idle\n") == 18
    drawn = [line for line in result.output.splitlines() if set(line.strip()[3:]) <= set("?.-#= ") and "#" in line]
    assert len(drawn) == 2  # one line per rank
    for line in drawn:
        assert re.search(r"\?+-+#+-+", line), line
    assert "# kv_cache_pressure" in result.output
