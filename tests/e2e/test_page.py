"""The page at `/` in a real browser."""

import asyncio
import contextlib
import json
import re
import signal
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.browser import PHONE, Browser, Watched, browser
from tests.support.processes import KVPRESSURE, PATIENCE_SECONDS, Process, eventually, free_port, get, running
from tests.support.servers import FaultServer, Replay, read_trace
from tests.support.tools import FIXTURES

pytestmark = pytest.mark.e2e
HOSTILE = (
    '<script>document.title="owned"</script>',
    '"><img src=x onerror=alert(1)>',
    "javascript:alert(1)",
    "</title></style></script><svg onload=alert(1)>",
)
BOTH = """async (stage) => {
  for (;;) {
    const [page, twin] = await Promise.all(
      ["/", "/api/v1/diagnosis"].map((path) => fetch(path).then((answer) => answer.text())));
    const main = new DOMParser().parseFromString(page, "text/html").querySelector("main");
    const found = JSON.parse(twin);
    const commands = main.querySelector(".actions pre");
    if (Number(main.dataset.t) !== found.t) continue;
    if (stage && !(commands && found.engines[0].answering && found.engines[0].stage === stage)) {
      await new Promise((resolve) => setTimeout(resolve, 50));
      continue;
    }
    if (stage) {  // it stays as it is: nothing is swapped while text is selected
      document.querySelector("main").replaceWith(document.adoptNode(main));
      getSelection().selectAllChildren(commands);
    }
    const number = (cell) => cell.querySelector("data") ? Number(cell.querySelector("data").value) : null;
    const rows = [...main.querySelectorAll("tr[data-symptom]")].map((row) => [row.dataset.symptom, {
      verdict: row.querySelector(".verdict").textContent, value: number(row.querySelector(".value")),
      threshold: number(row.querySelector(".limit")), text: row.querySelector(".text").textContent }]);
    return { twin: found, rows: Object.fromEntries(rows), badge: main.querySelector(".badge").textContent };
  }
}"""


@dataclass
class Demo:
    process: Process
    url: str

    async def engine(self) -> dict[str, Any]:
        engines = json.loads(await get(f"{self.url}/api/v1/diagnosis"))["engines"]
        return engines[0] if engines and engines[0]["answering"] else {}


@contextlib.asynccontextmanager
async def demo(directory: Path, speed: int) -> AsyncIterator[Demo]:
    port = free_port()
    command = [*KVPRESSURE, "demo", "--speed", str(speed), f"--web.listen-address=127.0.0.1:{port}"]
    async with running(command, directory / "demo.log") as process:
        found = Demo(process, f"http://127.0.0.1:{port}")
        await eventually(lambda: get(f"{found.url}/-/healthy"), process)
        yield found


def renamed(body: bytes, model_name: str) -> bytes:
    label = b'model_name="%s"' % model_name.replace('"', '\\"').encode()
    return re.sub(rb'model_name="[^"]*"', lambda _: label, body)


@contextlib.asynccontextmanager
async def hostile_exporter(directory: Path) -> AsyncIterator[tuple[Process, str]]:
    """Collapsed engines whose pages, and whose targets' names, carry markup; and one that is down."""
    port, pages = free_port(), read_trace(FIXTURES / "traces" / "long-context-collapse.jsonl.xz")
    targets: list[dict[str, object]] = [{"name": HOSTILE[1], "url": f"http://127.0.0.1:{free_port()}"}]
    async with contextlib.AsyncExitStack() as stack:
        for name in HOSTILE:
            replay = Replay([(t, renamed(body, name)) for t, body in pages], clock=asyncio.get_running_loop().time)
            server = await stack.enter_async_context(FaultServer(replay))
            targets.append({"name": f"{name} {server.port}", "url": server.url})
        settings = {"web": {"listen_address": f"127.0.0.1:{port}"}, "engines": {"targets": targets}}
        config = directory / "kvpressure.yaml"
        config.write_text(yaml.safe_dump(settings))
        command = [*KVPRESSURE, "run", "--config.file", str(config)]
        yield await stack.enter_async_context(running(command, directory / "run.log")), f"http://127.0.0.1:{port}"


async def refresh(watched: Watched) -> None:
    """Have the page fetch itself now, as when its tab comes to the front."""
    await watched.page.evaluate(
        """() => { window.before = document.querySelector("main");
                   document.dispatchEvent(new Event("visibilitychange")); }"""
    )


PRESSED = frozenset({"kv_cache_pressure"})
SWAPPED = 'document.querySelector("main") !== window.before'
FITS = "document.documentElement.scrollWidth <= document.documentElement.clientWidth"


async def test_the_incident_of_the_demo_appears_with_the_evidence_of_the_json_twin(tmp_path):
    async with browser() as chromium, demo(tmp_path, speed=10) as shown:
        watched = await chromium.open(shown.url)
        both = await asyncio.wait_for(watched.page.evaluate(BOTH, "collapsed"), PATIENCE_SECONDS)
        await check_evidence(watched, both)
        await check_phone_and_dark(chromium, shown.url)
        assert watched.complaints == []
        assert watched.hosts == {shown.url.removeprefix("http://")}


async def check_evidence(watched: Watched, both: dict[str, Any]) -> None:
    (twin,) = both["twin"]["engines"]
    words = {True: "true", False: "false", None: "not known"}
    expected = {
        name: {"verdict": words[seen["state"]], **{key: seen[key] for key in ("value", "threshold", "text")}}
        for name, seen in twin["symptoms"].items()
    }
    assert both["rows"] == expected
    assert len(expected.keys() - {"evicting"}) == 15
    assert (twin["target"], twin["cause"], both["badge"]) == ("demo", "kv_cache_pressure", "KV cache pressure")
    assert twin["symptoms"]["admission_blocked"]["state"] is True
    assert await watched.page.locator(".evidence tr.true[data-symptom=admission_blocked]").is_visible()
    assert await watched.page.locator(".actions pre").first.is_visible()
    titles = await watched.page.locator("figure svg title").all_text_contents()
    assert any(title.startswith("admission blocked over the last 5 minutes: now ") for title in titles)


async def check_phone_and_dark(chromium: Browser, url: str) -> None:
    phone = await chromium.open(url, PHONE, color_scheme="dark", has_touch=True, is_mobile=True)
    assert await phone.page.evaluate(FITS)
    assert await phone.page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(13, 17, 23)"
    assert await phone.page.locator(".badge").first.is_visible()
    light = await chromium.open(url, color_scheme="light")
    assert await light.page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(246, 248, 250)"
    assert (phone.complaints, light.complaints) == ([], [])


async def test_what_pages_and_targets_call_themselves_is_only_ever_text(tmp_path):
    async with browser() as chromium, hostile_exporter(tmp_path) as (process, url):
        await eventually(lambda: engines(url, len(HOSTILE)), process)
        watched = await chromium.open(url)
        text = await watched.page.text_content("main")
        assert [name for name in HOSTILE if name not in text] == []
        assert "owned" not in await watched.page.title()
        made = "main :is(script, img, iframe, style), main [onload], main [onerror]"
        assert await watched.page.locator(made).count() == 0
        links = await watched.page.locator("a").evaluate_all("all => all.map((a) => a.getAttribute('href'))")
        assert [link for link in links if not link.startswith(("/", "#"))] == []
        phone = await chromium.open(url, PHONE)
        assert await phone.page.evaluate(FITS)
        assert (watched.complaints, phone.complaints) == ([], [])
        assert watched.hosts == {url.removeprefix("http://")}


async def engines(url: str, number: int, causes: frozenset[str] = frozenset()) -> bool:
    found = [one for one in json.loads(await get(f"{url}/api/v1/diagnosis"))["engines"] if one["answering"]]
    return len(found) == number and (not causes or {engine["cause"] for engine in found} == causes)


async def test_a_refresh_keeps_the_reader_where_he_is_and_says_when_the_exporter_is_gone(tmp_path):
    async with browser() as chromium, hostile_exporter(tmp_path) as (process, url):
        await eventually(lambda: engines(url, len(HOSTILE), PRESSED), process)
        watched = await chromium.open(url)
        page = watched.page
        first, second, *_ = await page.locator("details.engine").evaluate_all("all => all.map((one) => one.id)")
        await page.click(f"#{first} > summary")
        await page.click(f"#{second}-rest > summary")
        await page.evaluate("scrollTo(0, 240)")
        await page.evaluate("window.before = document.querySelector('main')")
        await watched.until(SWAPPED)
        assert await page.evaluate("scrollY") == 240
        assert not await page.locator(f"#{first}").evaluate("one => one.open")
        assert await page.locator(f"#{second}-rest").evaluate("one => one.open")
        assert await page.evaluate("document.activeElement.parentElement.id") == f"{second}-rest"
        await check_selection_is_kept(watched, second)
        assert watched.complaints == []
        await process.end(signal.SIGTERM)
        await refresh(watched)
        await watched.until("document.getElementById('refresh').textContent.includes('does not answer')")


async def check_selection_is_kept(watched: Watched, engine: str) -> None:
    """A command being copied must not be taken away under the cursor."""
    await watched.page.evaluate(
        "id => getSelection().selectAllChildren(document.querySelector(`#${id} .actions pre`))", engine
    )
    await refresh(watched)
    await watched.page.wait_for_timeout(300)
    assert not await watched.page.evaluate(SWAPPED)
    await watched.page.evaluate("getSelection().removeAllRanges()")


async def test_without_scripts_everything_is_there_and_the_page_reloads_itself(tmp_path):
    async with browser() as chromium, demo(tmp_path, speed=20) as shown:
        await eventually(shown.engine, shown.process)
        watched = await chromium.open(shown.url, java_script_enabled=False)
        assert "llama-3.1-8b" in await watched.page.inner_text("main")
        assert '<noscript><meta http-equiv="refresh" content="5"></noscript>' in await get(shown.url)
        assert await watched.page.locator("svg.strip").count() == 1
        assert watched.complaints == []
