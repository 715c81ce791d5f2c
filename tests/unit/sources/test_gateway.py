"""Gateways: which engines are behind one, what it reports of its queue, and what it does not disturb when it fails."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

import pytest
from yarl import URL

from kvpressure.config.settings import PollSettings
from kvpressure.config.settings.keys import validate
from kvpressure.config.target import Target
from kvpressure.daemon.pollers import poll_names, tables_of
from kvpressure.engines.engine import EngineSource
from kvpressure.engines.reader import PageError, PageReader
from kvpressure.model.environment import GatewayReport
from kvpressure.net.schedule import SystemClock
from kvpressure.promtext.lines import Series
from kvpressure.promtext.scanner import PageScanner
from kvpressure.runtimes.gateways import MAX_WORKERS, NAMES, PoolReading, pools_of
from kvpressure.sources import gateway
from kvpressure.sources.gateway import SOURCE, GatewaySettings, GatewaySource
from kvpressure.sources.source import Known, Wiring
from tests.support import servers
from tests.support.servers import FaultServer

PAGES = Path(__file__).parents[2] / "fixtures" / "gateways"
DYNAMO = PAGES.parent / "dynamo"
LLM_D, GIE = "llm-d-router-0.10.0-epp", "inference-extension-without-pool-label-epp"
ENGINES = (
    Target("llama-0", pod="llama-0", namespace="a"),
    Target("llama-1", namespace="a"),
    Target("qwen-0"),
    Target("[2001:db8::7]:8000"),
)


def page(name: str) -> bytes:
    return (PAGES / f"{name}.prom").read_bytes()


def pools(body: bytes) -> tuple[PoolReading, ...]:
    return pools_of(*PageScanner(NAMES, lambda series: series).scan(body))


def made(url: str = "http://epp:9090", others: int = 0, **target: object) -> GatewaySource:
    rows = [{"url": url, **target}, *({"url": f"http://other-{n}:9090"} for n in range(others))]
    settings = validate(GatewaySettings, {"targets": rows})
    return GatewaySource(settings.targets[0], None, len(rows))


async def read(source: GatewaySource, body: bytes) -> tuple[GatewayReport, ...]:
    async with FaultServer(servers.page(body)) as server:
        source._page._url = URL(server.url + "/metrics")
        await source._guard.attempt(source._read)
        await source._page.aclose()
    return source.facts(Known(ENGINES)).reports


def test_what_is_on_a_scrape_under_two_names_counts_once_and_tenants_are_added():
    (pool,) = pools(page(LLM_D))
    assert (pool.pool, pool.signals["queue_requests"], pool.signals["kv_usage_ratio"]) == ("llama", 46, 0.79)
    assert pool.signals["waited_seconds"] / pool.signals["waited_requests"] == 12


STALE = (
    b'llm_d_epp_flow_control_stale_endpoints{detector="utilization-detector"} 3\n'
    b'llm_d_epp_flow_control_pool_saturation{inference_pool="llama",stage="prefill"} 0.2\n'
    b'llm_d_epp_flow_control_pool_saturation{inference_pool="llama",stage="effective"} 1\n'
)


def test_engines_that_it_cannot_read_are_of_the_only_pool_there_is_and_of_stages_the_fullest_counts():
    (pool,) = pools(page(LLM_D).replace(b'pool_saturation{inference_pool="llama"} 1.01\n', b"x 1\n") + STALE)
    assert (pool.pool, pool.signals["stale_engines"], pool.signals["saturation_ratio"]) == ("llama", 3, 1)
    two = pools(page(LLM_D) + STALE + b'llm_d_epp_flow_control_queue_size{inference_pool="qwen"} 1\n')
    assert [pool.pool for pool in two] == ["llama", "qwen"]
    assert not any("stale_engines" in pool.signals for pool in two)


@pytest.mark.parametrize("value", ["NaN", "-1", "+Inf", "1e308"])
def test_a_value_that_is_none_is_left_out(value):
    body = page(LLM_D).replace(b" 0.79\n", f" {value}\n".encode())
    assert "kv_usage_ratio" not in pools(body)[0].signals


def test_a_sum_that_is_too_high_is_left_out():
    (pool,) = pools(b"".join(b'llm_d_epp_flow_control_queue_size{priority="%d"} 9e15\n' % n for n in range(2)))
    assert pool.signals == {}


def test_a_queue_without_a_pool_is_of_the_only_pool_there_is():
    (pool,) = pools(page(GIE))
    assert (pool.pool, pool.signals["queue_requests"], pool.signals["kv_usage_ratio"]) == ("llama", 7, 0.8)


async def test_the_router_of_dynamos_frontend_queues_and_caches_do_not_matter_to_it():
    """16 are pending there and one waits in the worker; `dynamo_frontend_queued_requests` is 17."""
    (report,) = await read(made(), (DYNAMO / "frontend-1.4.0-kv-router.prom").read_bytes())
    assert (report.pool, report.queue_requests, report.kv_usage_max_ratio) == ("tiny", 16, None)


async def test_a_dynamo_frontend_that_does_not_queue_is_read_and_reports_none():
    source = made()
    (report,) = await read(source, (DYNAMO / "frontend-1.4.0.prom").read_bytes())
    assert (source.health()[0].up, report.queue_requests) == (True, None)


async def test_a_dynamo_frontend_under_another_prefix_has_its_queue_and_says_whom_the_queue_refused():
    """DYN_METRICS_PREFIX=nim_llm renames what its web server counts, and nothing of its router."""
    page = (DYNAMO / "frontend-1.6.1-renamed-refusing.prom").read_bytes()
    source = made()
    (report,) = await read(source, page)
    assert (report.pool, report.queue_requests) == ("tiny", 0)
    (pool,) = pools(page.replace(b"nim_llm_", b"dynamo_frontend_"))
    assert (pool.signals["refused_requests"], pool.signals["inflight_requests"]) == (662, 4)
    with pytest.raises(PageError, match="Dynamo's frontend"):
        PageReader().read(page, 1.0)


@pytest.mark.parametrize("signal", ["refused_requests", "failed_requests"])
def test_requests_that_a_frontend_does_not_serve_are_counted_over_a_minute_and_over_its_restarts(signal: str):
    source = made()
    for t, count in ((0.0, None), (30.0, 3), (60.0, 33), (90.0, 63)):
        source._count(t, PoolReading("", {} if count is None else {signal: count}, by_load=False))
    assert source._per_second(signal) == 1.0
    source._count(100.0, PoolReading("", {signal: 2}, by_load=False))
    assert source._per_second(signal) is None


def test_of_a_frontends_errors_those_count_that_are_no_clients_own():
    line = 'dynamo_frontend_requests_total{endpoint="completions",error_type="%s",model="tiny",status="error"} %d\n'
    errors = {"internal": 5, "response_timeout": 2, "cancelled": 70, "validation": 40, "overload": 9}
    page = (DYNAMO / "frontend-1.4.0.prom").read_bytes() + "".join(line % one for one in errors.items()).encode()
    (pool,) = pools(page)
    assert pool.signals["failed_requests"] == 7


LISTED = b"".join(
    b'inference_pool_per_pod_queue_size{model_server_pod="%s-rank-0",name="a"} 0\n' % pod for pod in (b"llama-0", b"x")
)


@pytest.mark.parametrize(
    ("others", "engines"), [(0, {"llama-0", "llama-1", "qwen-0", "[2001:db8::7]:8000"}), (1, {"llama-0"})]
)
async def test_pods_that_a_gateway_lists_are_its_engines_where_none_are_named(others, engines):
    """Targets without a pod may be any of them, where there is one gateway only."""
    (report,) = await read(made(others=others), b'inference_pool_ready_pods{name="a"} 2\n' + LISTED)
    assert report.engines == engines


async def test_all_engines_are_behind_the_only_gateway():
    (report,) = await read(made(), page(LLM_D))
    assert (report.pool, report.queue_requests) == ("llama", 46)
    assert report.engines == {"llama-0", "llama-1", "qwen-0", "[2001:db8::7]:8000"}
    assert report.queue_seconds is None, "nobody has left the queue since the first reading"


@pytest.mark.parametrize(
    ("target", "engines"),
    [
        ({"engines": ["llama-*"]}, {"llama-0", "llama-1"}),
        ({"namespace": "a", "engines": ["*-1"]}, {"llama-1"}),
        ({"engines": ["[2001:db8::*]:8000"]}, {"[2001:db8::7]:8000"}),
        ({"namespace": "b"}, set()),
    ],
)
async def test_engines_are_chosen_by_name_pod_and_namespace(target, engines):
    (report,) = await read(made(others=1, **target), page(LLM_D))
    assert report.engines == engines


async def test_a_gateway_that_no_target_is_behind_is_said():
    source = made(engines=["lama-*"])
    await read(source, page(LLM_D))
    (problem,) = source.facts(Known(ENGINES)).problems
    assert "no target is one of its engines" in problem
    assert source.facts(Known(())).problems == ()


async def test_of_several_gateways_one_that_does_not_say_which_engines_it_has_has_none_and_says_so():
    source = made(others=1)
    assert await read(source, page(LLM_D)) == ()
    (problem,) = source.facts(Known(ENGINES)).problems
    assert "set its engines or namespace" in problem


async def test_the_time_in_the_queue_is_of_those_that_left_it_in_the_last_minute():
    source = made()
    await read(source, page(LLM_D))
    later = page(LLM_D).replace(b"} 1200\n", b"} 1380\n").replace(b"} 100\n", b"} 110\n")
    (report,) = await read(source, later)
    assert report.queue_seconds == 18


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"<html>\n", "not_metrics"),
        (b"", "not_metrics"),
        (page("production-stack-02605e69-router"), "not_metrics"),
        (b'llm_d_epp_ready_endpoints{name="a"} 1\nllm_d_epp_ready_endpoints{name="b"} 1\n', "several_pools"),
        (b"llm_d_epp_ready_endpoints{name= 1\n", "malformed"),
        (b'llm_d_epp_ready_endpoints{name="a"} 1', "truncated"),
        (b"x" * (5 << 20), "too_large"),
        (b'{"a": 1}', "not_metrics"),
        (bytes(range(256)), "not_metrics"),
    ],
)
async def test_what_cannot_be_read_is_one_line_and_no_report(body, reason):
    source = made()
    assert await read(source, body) == ()
    (health,) = source.health()
    assert (health.up, health.reason, "\n" in health.error) == (False, reason, False)
    assert "/metrics" in health.error
    (report,) = await read(source, page(LLM_D))
    assert report.queue_requests == 46


async def test_a_series_that_is_there_twice_counts_once():
    (report,) = await read(made(), 2 * page(LLM_D))
    assert report.queue_requests == 46


async def test_no_page_is_read_in_the_event_loop(monkeypatch):
    threads = []

    def noted(series: Sequence[Series], values: Sequence[float]) -> tuple[PoolReading, ...]:
        threads.append(threading.get_ident())
        return pools_of(series, values)

    monkeypatch.setattr(gateway, "pools_of", noted)
    source = made()
    (report,) = await read(source, page(LLM_D))
    assert report.queue_requests == 46
    assert threads
    assert threading.get_ident() not in threads
    assert await read(source, b"llm_d_epp_ready_endpoints{name= 1\n" + b"# more\n" * 40_000) == ()
    assert source.health()[0].reason == "malformed"


async def test_a_pool_that_is_not_there_is_said():
    source = made(pool="qwen")
    assert await read(source, page(LLM_D)) == ()
    assert source.health()[0].reason == "no_pool"


async def test_a_gateway_that_fails_reports_nothing_until_it_is_read_again():
    source = made()
    assert await read(source, page(LLM_D))
    assert await read(source, b"gone\n") == ()
    assert await read(source, page(LLM_D))


@pytest.mark.parametrize(
    ("name", "whose"),
    [
        ("production-stack-02605e69-router", "vLLM production-stack's router"),
        ("aibrix-00669f5e-gateway", "AIBrix' gateway"),
        (GIE, "a gateway's endpoint picker"),
        (LLM_D, "a gateway's endpoint picker"),
    ],
)
def test_metrics_of_a_gateway_are_not_taken_for_an_engine(name, whose):
    with pytest.raises(PageError, match=whose) as raised:
        PageReader().read(page(name), 1.0)
    assert raised.value.reason == "gateway"


def test_a_gateway_is_known_by_its_queue_where_what_says_its_version_is_left_out():
    with pytest.raises(PageError, match="a gateway's endpoint picker") as raised:
        PageReader().read(b'llm_d_epp_flow_control_queue_size{inference_pool="llama"} 46\n', 1.0)
    assert raised.value.reason == "gateway"


@pytest.mark.parametrize("name", ["smg_worker_health", "sgl_router_worker_health"])
def test_sglangs_router_is_no_engine_although_its_metrics_have_no_name_of_one(name):
    with pytest.raises(PageError, match="SMG, a model gateway, not of an engine"):
        PageReader().read(f'{name}{{worker="http://10.0.0.1:30000"}} 1\n'.encode(), 1.0)


@pytest.mark.parametrize("name", ["production-stack-02605e69-router", "aibrix-00669f5e-gateway"])
async def test_a_router_that_is_listed_as_an_engine_has_a_clear_line_among_the_targets(name):
    async with FaultServer(servers.page(page(name))) as server:
        tables = tables_of(Target("a"))
        source = EngineSource(Target("a", server.url), PageReader(tables), poll_names(tables), PollSettings())
        assert await source.poll() is None
        health = source.health()
        await source.aclose()
    assert not health.up
    assert "not of an engine: name the engines behind it as targets" in health.error
    assert health.errors == {"gateway": 1}


def test_an_engine_whose_adapter_has_the_routers_count_of_pods_stays_an_engine():
    body = b'vllm:num_requests_running{engine="0",model_name="m"} 1\nvllm:healthy_pods_total{endpoint="default"} 1\n'
    assert len(PageReader().read(body, 1.0).engines) == 1


WIRING = Wiring(SystemClock(), lambda name, report: None, lambda container: False)


def test_without_gateways_there_is_no_source():
    assert list(SOURCE.make(GatewaySettings(), WIRING)) == []


@pytest.mark.parametrize(("namespace", "reports"), [("a", 0), ("", 1)])
async def test_pools_of_one_name_in_two_namespaces_are_two(namespace, reports):
    rows = [{"url": "http://epp:9090", "pool": "llama"}, {"url": "http://b:9090", "pool": "llama"}]
    rows[1]["namespace"] = namespace
    source, _ = SOURCE.make(validate(GatewaySettings, {"targets": rows}), WIRING)
    assert isinstance(source, GatewaySource)
    assert len(await read(source, page(LLM_D))) == reports


def dynamo(*workers: tuple[str, str], models: tuple[str, ...] = ("tiny",)) -> bytes:
    """A frontend of Dynamo's with so many models, and what it says of each worker."""
    lines = [f'dynamo_frontend_inflight_requests{{model="{model}"}} 1' for model in models]
    lines += [
        f'dynamo_frontend_worker_active_decode_blocks{{dp_rank="0",worker_id="{worker}",worker_type="{kind}"}} 7'
        for worker, kind in workers
    ]
    return "\n".join([*lines, ""]).encode()


APART = (("11", "prefill"), ("12", "decode"))


@pytest.mark.parametrize(
    ("body", "roles"),
    [
        (dynamo(*APART), dict(APART)),
        (dynamo(("12", "decode")), {}),  # one that does both is called so too
        (dynamo(*APART, ("13", "encode"), ("", "prefill")), dict(APART)),
        (dynamo(*APART, models=("tiny", "large")), {}),  # whose workers they are is not said
    ],
)
def test_dynamos_frontend_says_what_workers_do_where_prefill_and_decode_are_apart(body: bytes, roles: dict[str, str]):
    assert all(pool.roles == roles for pool in pools(body))


def test_workers_without_an_end_are_not_all_remembered():
    (pool,) = pools(dynamo(*((str(number), "prefill") for number in range(5000))))
    assert len(pool.roles) == MAX_WORKERS


async def test_what_a_gateway_says_of_workers_is_in_its_report():
    """As Dynamo's own frontend wrote it; the worker that decodes has its id on a page of its own."""
    (report,) = await read(made(), (DYNAMO / "frontend-1.4.0-prefill-decode.prom").read_bytes())
    (decodes,) = PageReader().read((DYNAMO / "decode-worker-1.4.0.prom").read_bytes(), 1.0).engines
    assert report.roles == {"9938083420200839857": "prefill", decodes.worker: "decode"}
    assert report.role_queues == {"prefill": 0, "decode": 0}
