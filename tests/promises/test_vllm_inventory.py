"""Every metric that vLLM can export is either read, or written down with why it is not."""

import fnmatch
import re
from pathlib import Path

import pytest

from kvpressure.runtimes.vllm.metrics import ALL_NAMES
from tests.lab import inventory
from tests.lab.fetch import NEWEST
from tests.support.pages import inventory as stored

DOCUMENT = Path(__file__).parents[2] / "docs" / "internals" / "vllm-metrics.md"
PARTS = ("", "_total", "_bucket", "_count", "_sum")


def unread() -> list[str]:
    return re.findall(r"^\| `(vllm:[a-z0-9_*]+)` \| \S", DOCUMENT.read_text(), re.MULTILINE)


def is_read(name: str) -> bool:
    return any(name.removesuffix("_total") + part in ALL_NAMES or name + part in ALL_NAMES for part in PARTS)


@pytest.mark.parametrize("name", stored()[NEWEST])
def test_a_metric_of_the_newest_version_is_read_or_written_down_as_not_read_with_a_reason(name):
    reasons = [pattern for pattern in unread() if fnmatch.fnmatchcase(name, pattern)]
    assert len(reasons) == (0 if is_read(name) else 1), reasons


def test_nothing_is_written_down_that_vllm_does_not_export():
    names = stored()[NEWEST]
    assert [pattern for pattern in unread() if not fnmatch.filter(names, pattern)] == []
    assert len(unread()) == len(set(unread())) > 20


def test_every_metric_read_is_exported_by_some_version():
    known = {name.removesuffix("_total") for version in stored().values() for name in version}
    ours = {name for name in ALL_NAMES if name.startswith("vllm:")}
    assert {n for n in ours if not any(n.removesuffix(p).removesuffix("_total") in known for p in PARTS)} == set()


def test_the_stored_names_have_the_type_that_a_page_needs():
    assert {facts["type"] for facts in stored()[NEWEST].values()} == set(inventory.TYPES)


def test_names_are_found_however_they_are_declared(tmp_path):
    for room in inventory.ROOMS:
        (tmp_path / room).mkdir()
    (tmp_path / "v1" / "some.py").write_text(
        'class Names:\n    A = "vllm:by_key"\n    B = "vllm:by_item"\nNAME = "vllm:by_constant"\n'
        'self._gauge_cls(name="vllm:by_keyword", multiprocess_mode="livesum")\nCounter("vllm:by_place")\n'
        "Histogram(NAME, buckets=(1, 2))\nmade = {Names.A: OffloadingCounterMetadata()}\n"
        'made[Names.B] = OffloadingGaugeMetadata()\ncounter_specs = [("vllm:by_list", "x")]\nsee("vllm:somehow")\n'
        '"""vllm:in_prose is not one"""\n'
    )
    assert inventory.declared(tmp_path) == {
        "vllm:by_constant": {"type": "histogram", "buckets": "(1, 2)"},
        "vllm:by_item": {"type": "gauge", "mode": "mostrecent"},
        "vllm:by_key": {"type": "counter"},
        "vllm:by_keyword": {"type": "gauge", "mode": "livesum"},
        "vllm:by_list": {"type": "counter"},
        "vllm:by_place": {"type": "counter"},
        "vllm:somehow": {},
    }
