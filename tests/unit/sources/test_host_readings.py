"""Counters of the kernel to ratios, and containers to their control groups."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvpressure.sources import host
from kvpressure.sources.host import (
    Periods,
    container_id,
    find,
    periods,
    pressure_ratio,
    stalled_microseconds,
    throttled_ratio,
)

PSI = "some avg10=56.44 avg60=39.56 avg300=19.83 total=3393646704\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=7\n"
STAT = "usage_usec 99\nuser_usec 90\nsystem_usec 9\nnr_periods 120542\nnr_throttled 43210\nthrottled_usec 5\n"
ID, OTHER = "4f" * 32, "5a" * 32
UID = "6f7df9a4-4b5c-4719-b58f-c5ad743c908e"


def test_the_total_of_some_is_read_and_not_that_of_full():
    assert stalled_microseconds(PSI) == 3_393_646_704
    assert stalled_microseconds("full avg10=0.00 avg60=0.00 avg300=0.00 total=7\n") is None


def test_pressure_is_the_share_of_the_time_between_two_readings():
    assert pressure_ratio(1_000_000, 2_500_000, 5.0) == 0.3


@pytest.mark.parametrize(("before", "after", "seconds"), [(5, 4, 1.0), (4, 5, 0.0)])
def test_a_total_that_went_back_or_no_time_says_nothing(before: int, after: int, seconds: float):
    assert pressure_ratio(before, after, seconds) is None


@given(st.integers(0, 2**63), st.integers(0, 2**63), st.floats(0, 1e9))
def test_pressure_is_a_ratio_or_not_known(before: int, after: int, seconds: float):
    ratio = pressure_ratio(before, after, seconds)
    assert ratio is None or 0 <= ratio <= 1


def test_periods_are_read_from_both_versions_of_cpu_stat():
    assert periods(STAT) == Periods(120_542, 43_210)
    assert periods("nr_periods 5\nnr_throttled 1\nthrottled_time 8754129845124\n") == Periods(5, 1)
    assert periods("usage_usec 99\n") is None


def test_throttling_is_the_share_of_the_periods_between_two_readings():
    assert throttled_ratio(Periods(100, 40), Periods(150, 50)) == 0.2


def test_a_container_without_periods_is_not_known_to_be_unthrottled():
    assert throttled_ratio(Periods(0, 0), Periods(0, 0)) is None
    assert throttled_ratio(Periods(9, 3), Periods(2, 1)) is None
    assert throttled_ratio(Periods(100, 40), Periods(150, 40)) == 0.0


BURSTABLE = f"kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{UID.replace('-', '_')}.slice"
V2 = {
    "containerd, systemd": f"{BURSTABLE}/cri-containerd-{ID}.scope",
    "cri-o, systemd": f"{BURSTABLE}/crio-{ID}.scope",
    "docker, systemd": f"{BURSTABLE}/docker-{ID}.scope",
    "guaranteed": f"kubepods.slice/kubepods-pod{UID.replace('-', '_')}.slice/cri-containerd-{ID}.scope",
    "cgroupfs": f"kubepods/burstable/pod{UID}/{ID}",
    "drivers that differ": f"system.slice/containerd.service/kubepods-burstable-pod.slice:cri-containerd:{ID}",
    "kind": f"docker/{OTHER}/kubelet.slice/kubelet-kubepods.slice/kubelet-pod1.slice/cri-containerd-{ID}.scope",
}


@pytest.mark.parametrize("path", V2.values(), ids=V2)
@pytest.mark.parametrize("top", ["", "cpu,cpuacct", "cpu"], ids=["v2", "v1", "v1 alone"])
def test_a_containers_group_is_found_with_every_driver_and_runtime(tmp_path: Path, path: str, top: str):
    if not top:
        (tmp_path / "cgroup.controllers").write_text("cpu memory")
    else:
        (tmp_path / "memory" / path).mkdir(parents=True)
        (tmp_path / "memory" / path / "cpu.stat").write_text("")
    group = tmp_path / top / path
    group.mkdir(parents=True)
    (group / "cpu.stat").write_text(STAT)
    conmon = group.with_name(f"crio-conmon-{ID}.scope")
    conmon.mkdir()
    (conmon / "cpu.stat").write_text(STAT)
    assert find(tmp_path, {ID, "9b" * 32}) == {ID: group / "cpu.stat"}


@pytest.mark.parametrize(
    "name", ["kubepods.slice", f"crio-conmon-{ID}.scope", "init.scope", f"kubepods-pod{ID}.slice", "short-1.scope", ""]
)
def test_groups_that_are_no_containers_have_no_id(name: str):
    assert container_id(name) is None


def test_links_are_not_followed_and_the_walk_is_bounded(tmp_path: Path, monkeypatch):
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "loop").symlink_to(tmp_path)
    (tmp_path / "elsewhere").symlink_to("/")
    assert find(tmp_path, {ID}) == {}
    group = tmp_path / "a" / "b" / ID
    group.mkdir()
    (group / "cpu.stat").write_text(STAT)
    assert find(tmp_path, {ID}) == {ID: group / "cpu.stat"}
    monkeypatch.setattr(host, "MAX_DIRECTORIES", 2)
    assert find(tmp_path, {ID}) == {}
    monkeypatch.undo()
    monkeypatch.setattr(host, "MAX_DEPTH", 1)
    assert find(tmp_path, {ID}) == {}


@pytest.mark.parametrize("odd", ["", "../../etc", "a/b", "*"])
def test_an_odd_id_is_never_looked_for(tmp_path: Path, odd: str):
    assert find(tmp_path, {odd}) == {}
