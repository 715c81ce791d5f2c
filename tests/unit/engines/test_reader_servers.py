"""Pages that have several servers' engines under the same names: Ray's agent, Triton, and what collects from many."""

import re
from collections.abc import Callable, Iterator

import pytest

from kvpressure.cli.replay import ReplayTarget
from kvpressure.config.thresholds import load_thresholds
from kvpressure.engine_state import Pipeline, PipelineSettings
from kvpressure.engines.reader import PageReader
from kvpressure.model.samples import EngineSample
from tests.support.pages import trace

SAMPLE = re.compile(r"^vllm:(\w+)\{(.*)\} (\S+)$", re.MULTILINE)
Named = Callable[[str, str, str], str]


def of_server(number: int, named: Named, page: bytes) -> str:
    """The page of a server, as one that collects pages from several writes it."""
    name = f"{number}"
    return "".join(f"{named(name, *match.group(1, 2))} {match[3]}\n" for match in SAMPLE.finditer(page.decode()))


def ray(server: str, name: str, labels: str) -> str:
    session = 'Component="core_worker",SessionName="session_1",Version="2.52.0"'
    return f'ray_vllm_{name}{{{session},ReplicaId="r{server}",WorkerId="{server * 56}",{labels}}}'


def ray_before_replica_ids(server: str, name: str, labels: str) -> str:
    return ray(server, name, labels).replace(f'ReplicaId="r{server}",', "")


def federated(server: str, name: str, labels: str) -> str:
    return f'vllm:{name}{{instance="10.0.0.{server}:8000",job="vllm",{labels}}}'


def triton(server: str, name: str, labels: str) -> str:
    bound = re.search(r'le="[^"]*"', labels)
    name = name.replace("kv_cache_usage_perc", "gpu_cache_usage_perc")
    return f'vllm:{name}{{{bound[0] + "," if bound else ""}model="m{server}",version="1"}}'


def engines(*pages: bytes, named: Named) -> tuple[EngineSample, ...]:
    both = "".join(of_server(number, named, page) for number, page in enumerate(pages, 1))
    return PageReader().read(both.encode(), 1.0).engines


def verdicts(*names: str, named: Named) -> dict[tuple[str, str], set[str]]:
    """The causes of each engine of a page that has these recordings side by side."""
    reader, pipeline = PageReader(), Pipeline(PipelineSettings(), load_thresholds())
    found: dict[tuple[str, str], set[str]] = {}
    for t, pages in enumerate(zip(*map(trace, names), strict=False)):
        both = "".join(of_server(number, named, page) for number, page in enumerate(pages, 1))
        for view in pipeline.on_page(ReplayTarget("t"), reader.read(both.encode(), 1.8e9 + t)):
            if view.diagnosis is not None and view.diagnosis.detail != "too_few_polls":
                found.setdefault((view.key.model_name, view.key.rank), set()).add(view.diagnosis.cause.value)
    return found


@pytest.mark.recorded
@pytest.mark.parametrize(
    ("named", "first", "second"),
    [
        (ray, ("tiny", "0@r1"), ("tiny", "0@r2")),
        (ray_before_replica_ids, ("tiny", f"0@{'1' * 56}"), ("tiny", f"0@{'2' * 56}")),
        (federated, ("tiny", "0@10.0.0.1:8000"), ("tiny", "0@10.0.0.2:8000")),
        (triton, ("m1", "0"), ("m2", "0")),
    ],
)
def test_each_server_of_a_page_has_its_own_verdict(
    named: Named, first: tuple[str, str], second: tuple[str, str]
) -> None:
    found = verdicts("light-load", "long-context-collapse", named=named)
    assert found == {first: {"healthy"}, second: {"kv_cache_pressure"}}


@pytest.mark.recorded
def test_the_only_server_of_a_page_has_the_engines_name_alone() -> None:
    page = trace("long-context-collapse")[20]
    (alone,), (plain,) = engines(page, named=ray), PageReader().read(page, 1.0).engines
    assert alone.engine == "0"
    assert alone.gauges == plain.gauges
    assert alone.histograms == plain.histograms
    assert alone.cache == plain.cache


@pytest.mark.recorded
def test_each_server_has_its_own_cache_configuration() -> None:
    small, large = trace("light-load")[0], trace("light-load")[0]
    large = re.sub(rb'num_gpu_blocks="\d+"', b'num_gpu_blocks="9001"', large)
    large = re.sub(rb'kv_cache_size_tokens="\d+"', b'kv_cache_size_tokens="144032"', large)
    first, second = engines(small, large, named=ray)
    assert first.cache.capacity_tokens != second.cache.capacity_tokens == 144_000


@pytest.mark.recorded
def test_ranks_that_only_one_server_has_keep_their_name() -> None:
    def renumbered(server: str, name: str, labels: str) -> str:
        return ray(server, name, labels.replace('engine="0"', f'engine="{server}"'))

    page = trace("light-load")[0]
    assert [one.engine for one in engines(page, page, named=renumbered)] == ["1", "2"]


def lines(*labels: str) -> Iterator[str]:
    for name in ("num_requests_running", "num_requests_waiting", "prompt_tokens_total", "num_preemptions_total"):
        yield from (f'vllm:{name}{{engine="0",model_name="m",{one}}} 1' for one in labels)


@pytest.mark.parametrize(
    "labels",
    [
        ('pid="1"', 'pid="2"'),  # API processes of one server
        ('Host="a"', 'other="b"'),
        ('pod=""', 'pod="b"'),
    ],
)
def test_labels_that_do_not_name_servers_are_merged(labels: tuple[str, str]) -> None:
    (engine,) = PageReader().read("\n".join([*lines(*labels), ""]).encode(), 1.0).engines
    assert engine.engine == "0"
    assert engine.gauges["running"] == 2.0


def test_ranks_of_one_sglang_engine_are_merged_before_its_first_request() -> None:
    names = (
        "num_running_reqs",
        "num_queue_reqs",
        "token_usage",
        "max_total_num_tokens",
        "num_retracted_requests_total",
    )
    page = "".join(f'sglang:{name}{{model_name="m",tp_rank="{rank}"}} 1\n' for name in names for rank in (0, 1))
    (engine,) = PageReader().read(page.encode(), 1.0).engines
    assert (engine.engine, engine.gauges["running"]) == ("0", 1.0)


def test_sglang_behind_ray_is_told_apart_by_the_label_that_both_its_processes_have() -> None:
    scheduler = ("num_running_reqs", "num_queue_reqs", "token_usage")
    page = ""
    for replica in "ab":
        own = f'model_name="m",replica="{replica}"'
        page += "".join(f'ray_sglang_{name}{{WorkerId="s{replica}",tp_rank="0",{own}}} 0.5\n' for name in scheduler)
        page += f'ray_sglang_num_requests_total{{WorkerId="t{replica}",ReplicaId="{replica}",{own}}} 4\n'
    found = PageReader().read(page.encode(), 1.0)
    assert [(one.engine, one.counters) for one in found.engines] == [
        ("0@a", {"finished": 4.0}),
        ("0@b", {"finished": 4.0}),
    ]
    assert not found.multiprocess
