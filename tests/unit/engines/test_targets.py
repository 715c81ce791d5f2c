import json
import os
from pathlib import Path

import pytest

from kvpressure.config.settings import ConfigError, load_settings
from kvpressure.config.target import Target
from kvpressure.engines.file_sd import parse_targets
from kvpressure.engines.targets import Changes, TargetSet
from kvpressure.net.files import FileWatch
from tests.support.expectations import expected, fixtures


@pytest.fixture(autouse=True)
def _empty_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def target_set(text: str) -> TargetSet:
    Path("kvpressure.yaml").write_text(text)
    return TargetSet(load_settings({}, {}))


def file_sd(*patterns: str, more: str = "") -> TargetSet:
    return target_set(f"engines: {{file_sd: [{{files: [{', '.join(patterns)}], refresh_seconds: 5}}]}}\n{more}")


def write(path: str, *addresses: str, **labels: str) -> None:
    Path(path).write_text(json.dumps([{"targets": addresses, "labels": labels}]))


def names(targets: tuple[Target, ...]) -> list[str]:
    return [target.name for target in targets]


def next_look(targets: TargetSet) -> float:
    return min((group.due for group in targets._groups), default=float("inf"))


def settle(targets: TargetSet, now: float) -> Changes:
    """Two looks: the first sees a change, the second confirms it."""
    first = targets.refresh(now)
    assert not first
    return targets.refresh(next_look(targets))


@pytest.mark.parametrize("path", fixtures("file_sd"), ids=lambda path: path.stem)
def test_a_bad_target_file_is_reported_whole_with_the_line_of_every_problem(path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_targets(path.read_text(), str(path))
    assert sorted(map(str, caught.value.problems)) == sorted(expected(path))
    assert "hunter2" not in str(caught.value)


def test_a_single_machine_has_the_local_vllm_and_every_gpu() -> None:
    targets = target_set("")
    assert names(targets.refresh(0).added) == ["localhost:8000"]
    [target] = targets.targets
    assert (target.url, target.path, target.gpus) == ("http://localhost:8000", "/metrics", ("all",))
    assert next_look(targets) == float("inf")


def test_no_engines_configured_on_purpose_are_no_targets() -> None:
    assert not target_set("engines: {targets: []}").refresh(0)


def test_a_target_without_authentication_takes_that_of_poll_and_never_a_mixture() -> None:
    targets = target_set("""
poll:
  bearer_token_file: general
  tls: {ca_file: ca.pem}
engines:
  targets:
    - {url: "https://a:1"}
    - {url: "https://b:1", basic_auth: {username: u, password_file: p}, tls: {server_name: b}}
""")
    first, second = targets.refresh(0).added
    assert first.bearer_token_file == Path.cwd() / "general"
    assert first.tls.ca_file == Path.cwd() / "ca.pem"
    assert second.bearer_token_file is None
    assert second.basic_auth.password_file == Path.cwd() / "p"
    assert second.tls.ca_file is None


def test_prometheus_files_are_read_in_json_and_yaml_with_the_labels_that_mean_something() -> None:
    write(
        "a.json", "10.0.0.5:8443", __scheme__="https", __metrics_path__="/m", namespace="chat", pod="llama-0",
        kvpressure_gpus="0,1", kvpressure_kv_bytes_per_token="131072", team="ignored",
    )  # fmt: skip
    Path("b.yaml").write_text(
        "- targets: ['gpu-1:8000', 'gpu-2']\n- {targets: ['[::1]:1'], labels: {kvpressure_name: six}}\n"
    )
    first, second, third, fourth = file_sd("a.json", "b.yaml").refresh(0).added
    assert (first.name, first.url, first.path) == ("chat/llama-0:8443", "https://10.0.0.5:8443", "/m")
    assert (first.namespace, first.pod, first.gpus) == ("chat", "llama-0", ("0", "1"))
    assert first.kv_bytes_per_token == 131072
    assert (second.name, second.url, second.gpus) == ("gpu-1:8000", "http://gpu-1:8000", None)
    assert (third.name, third.url) == ("gpu-2:80", "http://gpu-2")
    assert (fourth.name, fourth.url) == ("six", "http://[::1]:1")


def test_kv_events_are_read_where_the_settings_say_so_at_the_port_of_a_label() -> None:
    write("a.json", "10.0.0.5:8000", kvpressure_kv_events_port="6001")
    write("b.json", "10.0.0.6:8000")

    def ports(entry: str) -> list[object]:
        targets = target_set(f"engines: {{file_sd: [{{files: [a.json, b.json]{entry}}}]}}").refresh(0).added
        return [found and (found.port, found.replay_port) for found in (target.kv_events for target in targets)]

    assert ports("") == [None, None], "a file says where, the settings whether"
    assert ports(", kv_events: {port: 7000, replay_port: 7001}") == [(6001, 7001), (7000, 7001)]
    for wrong in ("0", "65536", "x", "-1"):
        with pytest.raises(ConfigError, match="must be a port from 1 to 65535"):
            parse_targets(f'[{{"targets": ["a:1"], "labels": {{"kvpressure_kv_events_port": "{wrong}"}}}}]', "f.json")


def test_json_as_other_tools_write_it_is_read() -> None:
    text = '[\n\t{"labels":{"__metrics_path__":"\\/m","pod":"gr\\u00fcn"},"targets":["a:1"]}\n]\n'
    [target] = parse_targets(text, "f.json")
    assert (target.path, target.pod) == ("/m", "grün")


def test_a_changed_file_changes_its_targets_at_the_second_look() -> None:
    write("a.json", "a:1", "b:1")
    targets = file_sd("a.json")
    assert names(targets.refresh(0).added) == ["a:1", "b:1"]
    assert next_look(targets) == 5
    write("a.json", "b:1", "c:1", pod="x")
    assert not targets.refresh(5)
    assert next_look(targets) == 6
    changes = targets.refresh(6)
    assert (names(changes.added), names(changes.removed), names(changes.changed)) == (["c:1"], ["a:1"], ["b:1"])
    assert names(targets.targets) == ["b:1", "c:1"]


def test_nothing_is_looked_at_before_it_is_due() -> None:
    write("a.json", "a:1")
    targets = file_sd("a.json")
    targets.refresh(0)
    write("a.json", "a:1", "b:1")
    assert not targets.refresh(4.9)
    assert next_look(targets) == 5


def test_a_broken_file_keeps_its_last_good_targets_and_says_what_is_wrong() -> None:
    write("a.json", "a:1")
    targets = file_sd("a.json")
    targets.refresh(0)
    Path("a.json").write_text("[{")
    assert not settle(targets, 5)
    assert names(targets.targets) == ["a:1"]
    [health] = targets.health
    assert (health.source, health.target, health.up, health.reason) == (
        "file_sd",
        str(Path("a.json").absolute()),
        False,
        "invalid",
    )
    assert "a.json:2: is not YAML" in health.error
    assert (health.last_success, health.errors) == (0, {"invalid": 1})
    write("a.json", "a:1", "b:1")
    assert names(settle(targets, 20).added) == ["b:1"]
    assert [health.up for health in targets.health] == [True]


def test_a_healthy_file_stays_healthy_at_every_look() -> None:
    write("a.json", "a:1")
    targets = file_sd("a.json")
    targets.refresh(0)
    targets.refresh(5)
    assert [(health.up, health.t, health.last_success) for health in targets.health] == [(True, 5, 5)]


def test_globs_find_new_files_and_forget_removed_ones() -> None:
    write("a.json", "a:1")
    targets = file_sd("'*.json'")
    targets.refresh(0)
    write("b.json", "b:1")
    assert names(targets.refresh(5).added) == ["b:1"]
    Path("a.json").unlink()
    assert names(settle(targets, 10).removed) == ["a:1"]
    assert [Path(health.target).name for health in targets.health] == ["b.json"]


def test_a_file_gone_for_a_moment_keeps_its_targets() -> None:
    write("a.json", "a:1")
    targets = file_sd("'*.json'")
    targets.refresh(0)
    Path("a.json").rename("a.bak")
    assert not targets.refresh(5)
    Path("a.bak").rename("a.json")
    assert not targets.refresh(6)
    assert not targets.refresh(11)
    assert names(targets.targets) == ["a:1"]


def test_a_named_file_that_is_missing_is_down_until_it_appears_and_again_when_it_goes() -> None:
    targets = file_sd("a.json")
    assert not targets.refresh(0)
    assert [(health.up, health.reason) for health in targets.health] == [(False, "missing")]
    write("a.json", "a:1")
    assert names(settle(targets, 5).added) == ["a:1"]
    Path("a.json").unlink()
    assert names(settle(targets, 20).removed) == ["a:1"]
    assert [(health.up, health.reason) for health in targets.health] == [(False, "missing")]


def test_fixed_targets_win_over_files_and_what_is_left_out_is_counted() -> None:
    write("a.json", "a:1", "a:1", "c:1")
    Path("b.yaml").write_text("- {targets: ['d:1'], labels: {kvpressure_name: 'c:1'}}\n")
    targets = target_set("""
engines:
  targets: [{url: "http://a:1", name: fixed}]
  file_sd: [{files: [a.json, b.yaml]}]
""")
    assert names(targets.refresh(0).added) == ["fixed", "c:1"]
    assert targets.rejected == {"duplicate_page": 2, "duplicate_name": 1}


def test_a_pipe_among_the_files_is_an_error_and_nobody_waits_for_it() -> None:
    os.mkfifo("p.json")
    targets = file_sd("'*.json'")
    assert not targets.refresh(0)
    assert ["is not a regular file" in health.error for health in targets.health] == [True]


def test_too_many_targets_are_capped_and_counted() -> None:
    write("a.json", *(f"a:{port}" for port in range(1, 11)))
    targets = file_sd("a.json", more="limits: {max_targets: 3}")
    assert names(targets.refresh(0).added) == ["a:1", "a:2", "a:3"]
    assert targets.rejected == {"too_many_targets": 7}


def test_a_config_map_update_that_swaps_a_directory_link_is_a_change() -> None:
    for version in ("v1", "v2"):
        Path(version).mkdir()
        Path(version, "a.yaml").write_text("same: size\n")
    Path("..data").symlink_to("v1")
    Path("a.yaml").symlink_to("..data/a.yaml")
    watch = FileWatch([Path("a.yaml")])
    Path("..new").symlink_to("v2")
    Path("..new").rename("..data")
    assert watch.look() == frozenset()
    assert watch.settling == {Path("a.yaml")}
    assert watch.look() == {Path("a.yaml")}
    assert watch.look() == watch.settling == frozenset()


def test_a_file_still_being_written_is_told_when_it_has_settled() -> None:
    path = Path("a.yaml")
    path.write_text("a")
    watch = FileWatch([path])
    for text in ("ab", "abc"):
        path.write_text(text)
        assert watch.look() == frozenset()
    assert watch.look() == {path}


def test_a_file_with_its_old_size_and_time_is_still_a_change() -> None:
    path = Path("a.yaml")
    path.write_text("old")
    before = path.stat()
    watch = FileWatch([path])
    Path("b.yaml").write_text("new")
    os.utime("b.yaml", ns=(before.st_atime_ns, before.st_mtime_ns))
    Path("b.yaml").rename(path)
    watch.look()
    assert watch.look() == {path}


def test_files_that_appear_and_go_away_are_changes_told_once() -> None:
    path = Path("a.yaml")
    watch = FileWatch([path])
    path.write_text("a")
    assert [watch.look() for _ in range(3)] == [frozenset(), {path}, frozenset()]
    path.unlink()
    assert [watch.look() for _ in range(3)] == [frozenset(), {path}, frozenset()]


@pytest.mark.fault(
    "a pod's annotation names another port all the time, and so another target, each with series of its own",
    "256 new targets an hour are polled of it; more are held back and said on /targets, and other pods lose nothing",
)
def test_a_pod_whose_port_changes_all_the_time_is_held_back() -> None:
    targets, polled = TargetSet(load_settings({}, {}), discovers=True), set()
    good = Target("ns/good:1", "http://10.0.0.2:1", namespace="ns", pod="good")
    for t in range(400):
        hostile = Target(f"ns/hostile:{t}", f"http://10.0.0.1:{t + 1}", namespace="ns", pod="hostile")
        targets.discovered((hostile, good))
        targets.refresh(t / 100)
        polled |= {target.name for target in targets.targets}
    assert 250 <= len(polled) <= 260
    assert "ns/good:1" in {target.name for target in targets.targets}
    assert [problem.split(":")[0] for problem in targets.problems] == ["pod ns/hostile"]
    assert targets.is_due(5.0)
    targets.refresh(3600.0)
    assert "ns/hostile:399" in {target.name for target in targets.targets}
