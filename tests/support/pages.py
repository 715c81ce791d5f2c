"""Pages for the tests of `kvpressure.runtimes`: recorded ones, ones made like vLLM's, and what the oracle reads.

`python -m tests.support.pages` prints the golden table of signals by version.
"""

import json
import lzma
import sys
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Metric, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from kvpressure.engines.reader import PageReader
from kvpressure.promtext.lines import Series
from tests.support.signal_names import COUNTERS, GAUGES, HISTOGRAMS

FIXTURES = Path(__file__).parents[1] / "fixtures"
TRACES = sorted(path.name.removesuffix(".jsonl.xz") for path in (FIXTURES / "traces").glob("*.jsonl.xz"))
SINGLES = sorted(path.name for path in (FIXTURES / "pages").glob("*.prom"))
STARTED = "# TYPE process_start_time_seconds gauge\nprocess_start_time_seconds 1.79517006891e+09\n"
CACHE_LABELS = {"block_size": "16", "num_gpu_blocks": "1001", "enable_prefix_caching": "True"}
_EXTRA = {
    "vllm:num_requests_waiting_by_reason": ("reason", ("capacity", "deferred")),
    "vllm:engine_sleep_state": ("sleep_state", ("awake", "weights_offloaded", "discard_all")),
    "vllm:request_success": ("finished_reason", ("stop", "length", "abort")),
    "vllm:admission_rejections": ("reason", ("max_num_queued_reqs", "max_num_queued_tokens")),
    "vllm:spec_decode_num_accepted_tokens_per_pos": ("position", ("0", "1")),
}


@cache
def trace(name: str) -> tuple[bytes, ...]:
    """The pages of a recorded trace."""
    with lzma.open(FIXTURES / "traces" / f"{name}.jsonl.xz", "rt") as lines:
        return tuple(json.loads(line)["page"].encode() for line in lines)


def single(name: str) -> bytes:
    """A page recorded by itself."""
    return (FIXTURES / "pages" / name).read_bytes()


@cache
def inventory() -> dict[str, dict[str, dict[str, str]]]:
    """What each vLLM version declares: metric name to its type."""
    found: dict[str, dict[str, dict[str, str]]] = json.loads((FIXTURES / "data/vllm-metric-inventory.json").read_text())
    return found


def oracle(page: bytes, wanted: Iterable[bytes]) -> dict[Series, float]:
    """What prometheus_client reads; the last of several equal series counts. Raises what it raises."""
    names = {name.decode() for name in wanted}
    families = text_string_to_metric_families(page.decode("utf-8", "replace"))
    samples = (sample for family in families for sample in family.samples if sample.name in names)
    return {Series(sample.name, tuple(sorted(sample.labels.items()))): float(sample.value) for sample in samples}


class _Once:
    def __init__(self, families: list[Metric]) -> None:
        self.families = families

    def collect(self) -> Iterator[Metric]:
        yield from self.families


def filtered(page: bytes, names: Iterable[str]) -> bytes:
    """The page as prometheus_client answers it to `name[]`: its own filter and its own text."""
    wanted = set(names)
    restricted = [family._restricted_metric(wanted) for family in text_string_to_metric_families(page.decode())]
    registry = CollectorRegistry()
    registry.register(_Once([family for family in restricted if family]))
    return generate_latest(registry)


def made(version: str, *, engine: str | None = "0", cache_labels: Mapping[str, str] | None = None) -> bytes:
    """A page with all metrics of `version`, each with its own values, by prometheus_client; V0 has no `engine`."""
    registry = CollectorRegistry()
    labels = {"model_name": "m"} | ({"engine": engine} if engine is not None else {})
    declared = {
        name.removesuffix("_total") if one["type"] == "counter" else name: one["type"]
        for name, one in inventory()[version].items()
    }
    for number, (name, kind) in enumerate(sorted(declared.items()), start=1):
        if name != "vllm:cache_config_info":
            _fill(registry, name, kind, labels, number)
    info = (CACHE_LABELS if cache_labels is None else dict(cache_labels)) | (
        {"engine": engine} if engine is not None else {}
    )
    Gauge("vllm:cache_config_info", "cache", list(info), registry=registry).labels(**info).set(1)
    return STARTED.encode() + generate_latest(registry)


def _fill(registry: CollectorRegistry, name: str, kind: str, labels: dict[str, str], number: int) -> None:
    if name == "vllm:admission_rejections":
        labels = {"model_name": labels["model_name"]}
    extra, values = _EXTRA.get(name, ("", ("",)))
    makers: dict[str, Any] = {"gauge": Gauge, "counter": Counter, "histogram": Histogram}
    metric = makers[kind](name, name, [*labels, extra] if extra else [*labels], registry=registry)
    for value in values:
        _set(metric.labels(**labels, **({extra: value} if extra else {})), kind, number)


def _set(child: Any, kind: str, number: int) -> None:
    if kind == "gauge":
        child.set(0.5)
    elif kind == "counter":
        child.inc(number)
    else:
        for _ in range(number):
            child.observe(0.5)


def signal_table() -> str:
    """Which signals each version's page fills: one line per signal, one column per version."""
    pages = {version: PageReader().read(made(version), 0.0).engines[0] for version in inventory()}
    rows = [("gauge", name) for name in GAUGES] + [("counter", name) for name in COUNTERS]
    rows += [("histogram", name) for name in HISTOGRAMS]
    lines = ["signal                 " + " ".join(version.rjust(11) for version in pages)]
    for kind, name in rows:
        marks = ["yes" if name in getattr(engine, kind + "s") else "-" for engine in pages.values()]
        lines.append(name.ljust(23) + " ".join(mark.rjust(11) for mark in marks))
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.stdout.write(signal_table())
