"""What vLLM's page shows with context parallelism, elastic expert parallelism and the like: capacity and verdict.

From the source of 0.33 (v1/core/kv_cache_utils.py, v1/engine/core.py and core_client.py, v1/engine/async_llm.py,
config/parallel.py): a block spans `block_size` tokens on each rank of decode context parallelism, which has to be 1,
the prefill context parallelism, or that times tensor parallelism; prefill context parallelism alone changes nothing.
Scaling elastic expert parallelism up registers all series anew, so that counters begin at 0 in a process that goes on;
the blocks of all ranks are added up, and tokens are of one rank. Scaling down leaves the series of retired ranks.
Dual batch overlap is on no page. `prefix_cache_retention_interval` is a label and decides which blocks can be found
again, not how many there are. Guessed: the numbers, and a page whose capacity changes while it serves
(vllm#56492 could not be read): its labels are exchanged, or the old series stays beside the new one.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

import pytest

from kvpressure.cli.replay import ReplayTarget
from kvpressure.engine_state import Pipeline, PipelineSettings
from kvpressure.engines.reader import PageReader
from kvpressure.model.samples import EngineSample
from kvpressure.model.verdict import Cause
from tests.support.verdicts import THRESHOLDS
from tests.wild.servers import Phase, Server, vllm

HEALTHY = Phase(1, running=8, usage=(0.3, 0.3), prompt=4000, generated=400, started=4, ended=4, steps=50)
FULL = Phase(1, running=8, waiting=12, usage=(0.998, 0.998), prompt=4000, generated=400, started=4, ended=4, steps=50)

PLAIN: Mapping[str, object] = {
    "block_size": 16,
    "num_gpu_blocks": 10_000,
    "kv_cache_size_tokens": 160_000,
    "kv_cache_max_concurrency": 4.8828125,
    "effective_attention_block_size": 16,
}

KINDS: Mapping[str, tuple[Mapping[str, object], int]] = {
    "prefill context parallelism alone": (PLAIN, 159_984),
    "both kinds of context parallelism, 4": (
        PLAIN | {"num_gpu_blocks": 2_500, "effective_attention_block_size": 64},
        159_936,
    ),
    "both, by 2 of tensor parallelism too": (
        PLAIN | {"num_gpu_blocks": 1_250, "effective_attention_block_size": 128},
        159_872,
    ),
    "dual batch overlap": (PLAIN, 159_984),
    "a retention interval": (PLAIN | {"prefix_cache_retention_interval": 4096}, 159_984),
}


def page(servers: Sequence[Server], phase: Phase, *more: str) -> bytes:
    """The page of some ranks."""
    lines = (line for server in servers for line in vllm(server, phase, 0.0))
    return "\n".join((*lines, *more, "process_start_time_seconds 1795599000", "")).encode()


def polled(seconds: int, phase: Phase, at: Callable[[int], tuple[list[Server], Sequence[str]]]) -> Iterator[bytes]:
    """A page a second."""
    for second in range(seconds):
        servers, more = at(second)
        for server in servers:
            server.passes(phase)
        yield page(servers, phase, *more)


def read(content: bytes) -> tuple[EngineSample, ...]:
    return PageReader().read(content, 1.0).engines


def causes(pages: Iterator[bytes]) -> dict[str, list[Cause]]:
    """What is said of each rank, poll after poll."""
    reader, pipeline, found = PageReader(), Pipeline(PipelineSettings(), THRESHOLDS), dict[str, list[Cause]]()
    for second, content in enumerate(pages):
        for view in pipeline.on_page(ReplayTarget("t"), reader.read(content, 1.8e9 + second)):
            if view.diagnosis is not None:
                found.setdefault(view.key.rank, []).append(view.diagnosis.cause)
    return found


def server(info: Mapping[str, object], engine: str = "0") -> Server:
    return Server(lengths=(1000, 100), seconds=(0.5, 2), info=info, engine=engine)


@pytest.mark.parametrize("kind", KINDS)
def test_the_capacity_is_that_of_the_page_and_the_layers_are_alike(kind: str):
    info, tokens = KINDS[kind]
    (engine,) = read(page([server(info)], HEALTHY))
    assert (engine.cache.capacity_tokens, engine.cache.layers_differ) == (tokens, False)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("phase", "cause"), [(HEALTHY, Cause.HEALTHY), (FULL, Cause.KV_CACHE_PRESSURE)])
def test_the_verdict_is_the_same_for_all(kind: str, phase: Phase, cause: Cause):
    one = server(KINDS[kind][0])
    assert causes(polled(45, phase, lambda _: ([one], ())))["0"][-1] is cause


def test_scaled_up_the_page_begins_anew_and_no_engine_is_called_stuck_or_restarting():
    of_two, of_four = ({**PLAIN, "num_gpu_blocks": ranks * 10_000} for ranks in (2, 4))
    before = [server(of_two, str(rank)) for rank in range(2)]
    fresh = {"prompt": 0.0, "generated": 0.0, "ended": 0.0, "started": 0.0, "preempted": 0.0, "steps": 0.0}
    after = [replace(server(of_four, str(rank)), **fresh) for rank in range(4)]
    engines = read(page(after, HEALTHY))
    assert {engine.cache.capacity_tokens for engine in engines if engine.cache} == {159_984}
    said = causes(polled(90, HEALTHY, lambda second: (before if second < 45 else after, ())))
    assert said.keys() == {"0", "1", "2", "3"}
    assert {rank: found[-1] for rank, found in said.items()} == dict.fromkeys(said, Cause.HEALTHY)
    assert set().union(*said.values()) <= {Cause.HEALTHY, Cause.UNKNOWN}


def test_scaled_down_a_retired_rank_that_stays_on_the_page_is_idle():
    ranks = [server({**PLAIN, "num_gpu_blocks": 20_000}, str(rank)) for rank in range(2)]
    busy, retired = ranks
    pages = []
    for _ in range(90):
        busy.passes(HEALTHY)
        lines = (*vllm(busy, HEALTHY, 0.0), *vllm(retired, Phase(1), 0.0))
        pages.append("\n".join((*lines, "")).encode())
    said = causes(iter(pages))
    assert (said["0"][-1], said["1"][-1]) == (Cause.HEALTHY, Cause.IDLE)


def test_a_capacity_that_changes_while_it_serves_is_followed():
    small, large = (server({**PLAIN, "num_gpu_blocks": n, "kv_cache_size_tokens": n * 16}) for n in (5_000, 10_000))
    pages = [*polled(60, FULL, lambda _: ([small], ())), *polled(60, HEALTHY, lambda _: ([large], ()))]
    assert [read(pages[place])[0].cache.capacity_tokens for place in (0, -1)] == [79_984, 159_984]  # type: ignore[union-attr]
    said = causes(iter(pages))["0"]
    assert (said[55], said[-1]) == (Cause.KV_CACHE_PRESSURE, Cause.HEALTHY)


def test_two_sizes_on_one_page_are_none():
    other = 'vllm:cache_config_info{engine="0",block_size="16",num_gpu_blocks="5000",kv_cache_size_tokens="80000"} 1'
    (engine,) = read(page([server(PLAIN)], HEALTHY, other))
    assert engine.cache is None or engine.cache.capacity_tokens is None
