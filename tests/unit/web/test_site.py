import gzip
import json

import pytest
from aiohttp.test_utils import TestClient, TestServer

from kvpressure.exposition import Snapshot, status, text
from kvpressure.exposition.panel import ident
from kvpressure.model.schemas import SCHEMAS
from kvpressure.web.site import Site
from tests.support.schemas import check
from tests.support.snapshots import collapsed
from tests.support.views import engine_view
from tests.support.web_kit import FakeExporter, anyone, nobody

pytestmark = pytest.mark.recorded

PROMETHEUS = {"Accept": "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.3"}


@pytest.fixture
def exporter() -> FakeExporter:
    return FakeExporter(collapsed(seconds=10))


@pytest.fixture
async def client(exporter):
    async with TestClient(TestServer(Site(exporter, "/metrics", anyone).app()), auto_decompress=False) as made:
        yield made


async def test_metrics_are_plain_text_by_default(client, exporter):
    response = await client.get("/metrics", headers={"Accept-Encoding": "identity"})
    assert response.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
    page, own = await response.read(), b"# HELP process_virtual_memory_bytes"
    assert page.partition(own)[0] == text.render(exporter.current, openmetrics=False)
    assert page.count(own) == 1


async def test_openmetrics_and_gzip_are_given_to_who_asks(client, exporter):
    response = await client.get("/metrics", headers={**PROMETHEUS, "Accept-Encoding": "gzip"})
    assert response.headers["Content-Type"].startswith("application/openmetrics-text; version=1.0.0")
    assert response.headers["Content-Encoding"] == "gzip"
    page = gzip.decompress(await response.read())
    assert page.startswith(text.render(exporter.current, openmetrics=True).removesuffix(b"# EOF\n"))
    assert page.endswith(b"# EOF\n")


async def test_targets_tell_every_source_its_health_error_and_age(client):
    sources = json.loads(await (await client.get("/targets")).read())["sources"]
    assert [source["up"] for source in sources] == [True, False, True]
    assert sources[1]["error"] == "no answer within 0.8 s"
    assert sources[1]["errors"] == {"timeout": 7}
    assert (sources[0]["age_seconds"], sources[1]["age_seconds"]) == (0.0, None)


async def test_a_browser_gets_the_sources_as_a_page_with_names_that_people_use(client):
    browser = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
    response = await client.get("/targets", headers=browser)
    page = await response.text()
    assert response.headers["Content-Type"].startswith("text/html")
    assert "Accept" in response.headers["Vary"]
    assert "script-src" in response.headers["Content-Security-Policy"]
    assert "Engine metrics page" in page
    assert "no answer within 0.8 s" in page
    assert page.index("no answer within 0.8 s") < page.index(">up<")  # what is down comes first
    told = await client.get("/targets?format=json", headers=browser)
    assert len((await told.json())["sources"]) == 3


async def test_the_probes_answer(client, exporter):
    assert (await client.get("/-/healthy")).status == 200
    assert (await client.get("/-/ready")).status == 200
    exporter.reasons = ["nvml: no reading within 5 s"]
    response = await client.get("/-/ready")
    assert (response.status, await response.text()) == (503, "nvml: no reading within 5 s\n")


async def test_the_page_shows_engines_gpus_and_what_is_wrong(client):
    page = await (await client.get("/")).text()
    assert "chat/vllm-0:8000" in page
    assert "NVIDIA H200" in page
    assert "no answer within 0.8 s" in page
    assert "not known" in page  # the MIG instance's utilization


async def test_nothing_that_comes_from_outside_is_markup(client, exporter):
    evil = "<script>alert(1)</script>"
    exporter.current = Snapshot(0.0, (engine_view(evil, f'"><img src=x onerror={evil}>', evil),))
    response = await client.get("/")
    page = await response.text()
    assert page.count("<script") == 1
    assert "<img" not in page
    assert "default-src 'none'" in response.headers["Content-Security-Policy"]


async def test_only_the_page_may_run_its_own_script(client):
    policies = {path: (await client.get(path)).headers["Content-Security-Policy"] for path in ("/", "/targets")}
    assert "script-src 'sha256-" in policies["/"]
    assert policies["/targets"] == "default-src 'none'"


async def test_the_page_is_drawn_once_per_snapshot_and_engine_asked_for(client, exporter, monkeypatch):
    calls = []
    real = status.status_html
    monkeypatch.setattr(status, "status_html", lambda *args: calls.append(args[-1]) or real(*args))
    engine = ident(exporter.current.engines[0].key)
    for path in ("/", "/", f"/?engine={engine}", f"/?engine={engine}", "/?engine=nobody"):
        assert (await client.get(path)).status == 200
    exporter.current = Snapshot(exporter.current.t)
    assert "No engine is configured or found." in await (await client.get(f"/?engine={engine}")).text()
    assert calls == ["", engine, ""]


async def test_the_answer_names_its_schema_which_is_served_beside_it(client):
    (link,) = [link for name, link in (await client.get("/api/v1/diagnosis")).links.items() if name == "describedby"]
    response = await client.get(link["url"].path)
    assert response.headers["Content-Type"].startswith("application/schema+json")
    assert json.loads(await response.read()) == SCHEMAS["diagnosis"]
    missing = await client.get("/api/v1/schemas/other")
    assert (missing.status, await missing.text()) == (404, "no such schema; there are diagnosis, incidents\n")


async def test_the_diagnosis_is_json_for_programs(client, exporter):
    document = json.loads(await (await client.get("/api/v1/diagnosis")).read())
    check("diagnosis", document)
    engine, unread = document["engines"]
    assert (engine["target"], engine["cause"]) == ("chat/vllm-0:8000", "kv_cache_pressure")
    assert (unread["target"], unread["cause"], unread["answering"]) == ('odd "name"\\\n', None, False)
    assert [gpu["gpu_uuid"] for gpu in document["gpus"]] == ["GPU-11", "MIG-22"]


async def test_an_empty_exporter_says_so(client, exporter):
    exporter.current = Snapshot(0.0)
    assert "No engine is configured or found." in await (await client.get("/")).text()


async def test_without_credentials_only_the_probes_answer(exporter):
    async with TestClient(TestServer(Site(exporter, "/metrics", nobody).app())) as client:
        statuses = [(await client.get(path)).status for path in ("/metrics", "/", "/targets", "/-/healthy", "/-/ready")]
        assert statuses == [401, 401, 401, 200, 200]
        assert (await client.get("/metrics")).headers["WWW-Authenticate"].startswith("Basic")


async def test_another_telemetry_path_moves_the_metrics(exporter):
    async with TestClient(TestServer(Site(exporter, "/m", anyone).app())) as client:
        assert (await client.get("/m")).status == 200
        assert (await client.get("/metrics")).status == 404
        assert 'href="/m"' in await (await client.get("/")).text()


async def test_posting_is_refused(client):
    assert (await client.post("/metrics", data=b"x" * 100)).status == 405
