import html
import re
import shlex
import shutil
import subprocess
import sys
import zipfile
from html.parser import HTMLParser

import pytest
from aiohttp.test_utils import TestClient, TestServer

from kvpressure.exposition import runbooks
from kvpressure.model.verdict import Cause
from kvpressure.model.view import CALM
from kvpressure.web.site import RUNBOOKS, Site
from tests.support.runbook_pages import ALERTS, HOSTILE, PAGES, blocks
from tests.support.snapshots import collapsed
from tests.support.tools import ROOT
from tests.support.web_kit import FakeExporter, anyone, nobody

pytestmark = [pytest.mark.recorded, pytest.mark.process]

CHAT = {"namespace": "prod", "pod": "llama-0", "target": "prod/llama-0:8000", "model": "llama", "engine": "0"}


@pytest.fixture
async def client():
    site = Site(FakeExporter(collapsed(seconds=10)), "/metrics", anyone)
    async with TestClient(TestServer(site.app())) as made:
        yield made


class Tags(HTMLParser):
    """The tags of a page in order, and what they refer to."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.refers: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(f"{tag} {sorted(name for name, _ in attrs)}")
        self.refers += [value or "" for name, value in attrs if name in ("href", "src", "action", "style")]


@pytest.mark.parametrize("name", ALERTS)
async def test_every_runbook_is_served_as_html(client, name):
    response = await client.get(f"/runbooks/{name}")
    page = await response.text()
    assert (response.status, response.content_type) == (200, "text/html")
    assert f'<h1 id="{name.lower()}">{name}</h1>' in page
    assert all(f'<h2 id="{section}">' in page for section in ("meaning", "diagnosis", "prevention"))


@pytest.mark.parametrize("path", ["/runbooks/", "/runbooks/README"])
async def test_the_list_is_served_and_leads_to_every_runbook(client, path):
    page = await (await client.get(path, params=CHAT)).text()
    for name in ALERTS:
        link = re.search(rf'href="({name}\?[^"]*)"', page)
        assert link
        assert "namespace=prod&amp;pod=llama-0" in link[1]


async def test_the_address_without_its_slash_leads_to_the_list_and_keeps_the_values(client):
    response = await client.get("/runbooks?pod=a%20b", allow_redirects=False)
    assert (response.status, response.headers["Location"]) == (302, "runbooks/?pod=a%20b")


@pytest.mark.parametrize("name", ["Nope", "KVPressureCacheTooSmall.md", "..%2F..%2Fserver", "<script>", "x" * 3000])
async def test_an_unknown_runbook_is_not_found_and_the_list_is_shown(client, name):
    response = await client.get(f"/runbooks/{name}")
    page = await response.text()
    assert response.status == 404
    assert "There is no runbook named" in page
    assert all(f'href="{alert}"' in page for alert in ALERTS)
    assert "<script" not in page


async def test_commands_and_queries_are_filled_in(client):
    page = html.unescape(await (await client.get("/runbooks/KVPressureCacheTooSmall", params=CHAT)).text())
    assert "kubectl kvpressure triage -n prod pod/llama-0" in page
    assert 'kvpressure_admission_blocked_ratio{target="prod/llama-0:8000",engine="0"}' in page
    assert "$" not in page.split("<main>")[1]


async def test_without_values_commands_keep_their_placeholders_and_there_is_a_form_for_them(client):
    page = await (await client.get("/runbooks/KVPressureCacheTooSmall")).text()
    assert "kubectl kvpressure triage -n $NAMESPACE pod/$POD" in page
    assert re.findall(r'<input name="(\w+)"', page) == ["namespace", "pod", "target", "model", "engine"]


@pytest.mark.parametrize("name", PAGES)
async def test_hostile_values_are_text_and_one_shell_word(client, name):
    values = {parameter: value for parameter, value in HOSTILE.items() if parameter != "instance"}  # is no address
    calm = Tags(await (await client.get(f"/runbooks/{name}", params=dict.fromkeys(values, "x"))).text())
    page = await (await client.get(f"/runbooks/{name}", params=HOSTILE)).text()
    assert Tags(page).tags == calm.tags
    assert "<b>" not in page
    for block in blocks(name, "bash"):
        assert html.escape(runbooks.fill(block, "bash", values)).replace("&#x27;", "'") in page
        if "-n $NAMESPACE" in block:
            assert f"-n {shlex.quote(HOSTILE['namespace'])}" in html.unescape(page)


async def test_values_without_sense_are_not_taken(client):
    query = {"namespace": "a\x1b[201~\nb", "pod": "x" * 513, "other": "y"}
    page = html.unescape(await (await client.get("/runbooks/KVPressureEngineStuck", params=query)).text())
    assert "-n 'a?[201~?b'" in page
    assert "pod/$POD" in page
    assert "other" not in page.split("<main>")[0].split("</style>")[1]


@pytest.mark.parametrize("name", PAGES)
async def test_a_page_needs_nothing_from_outside(client, name):
    response = await client.get(f"/runbooks/{name}", params=CHAT)
    found = Tags(await response.text())
    assert all(re.fullmatch(r"\.\./|\./(\?.*)?|(\w+)\?.*", target) for target in found.refers), found.refers
    assert not [tag for tag in found.tags if tag.split()[0] in ("script", "img", "link", "iframe")]
    policy = response.headers["Content-Security-Policy"]
    assert policy.startswith("default-src 'none'; style-src 'sha256-")
    assert "unsafe" not in policy


async def test_links_within_the_site_are_answered(client):
    for name in PAGES:
        for target in set(Tags(await (await client.get(f"/runbooks/{name}")).text()).refers):
            page, _, heading = target.partition("#")
            path = "/" if page == "../" else f"/runbooks/{page.removeprefix('./')}"
            response = await client.get(path)
            assert response.status == 200, target
            assert not heading or f'id="{heading}"' in await response.text(), target


async def test_html_in_markdown_stays_text():
    rendered = runbooks._markdown().render("<script>alert(1)</script> [x](javascript:alert(1))")
    assert "<script" not in rendered
    assert "href" not in rendered


async def test_without_credentials_there_is_no_runbook():
    site = Site(FakeExporter(collapsed(seconds=10)), "/metrics", nobody)
    async with TestClient(TestServer(site.app())) as client:
        assert [(await client.get(path)).status for path in ("/runbooks/", "/runbooks/KVPressureEngineStuck")] == [
            401,
            401,
        ]


def test_every_cause_that_asks_something_has_its_runbook():
    assert set(RUNBOOKS) == set(Cause) - CALM - {Cause.UNKNOWN}
    assert set(RUNBOOKS.values()) <= set(ALERTS)


def test_an_exporter_that_nobody_reads_has_no_markdown_library_in_memory():
    code = "import kvpressure.web.site, kvpressure.daemon.exporter, sys; sys.exit('markdown_it' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_an_installed_wheel_has_the_runbooks(tmp_path):
    tree = tmp_path / "tree"
    ignore = shutil.ignore_patterns("__pycache__", "*.egg-info")
    for folder in ("exporter", "docs/runbooks"):
        shutil.copytree(ROOT / folder, tree / folder, symlinks=True, ignore=ignore)
    for file in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / file, tree / file)
    build = f"import setuptools.build_meta as b; print(b.build_wheel({str(tmp_path)!r}))"
    done = subprocess.run([sys.executable, "-c", build], cwd=tree, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    names = zipfile.ZipFile(next(tmp_path.glob("*.whl"))).namelist()
    assert {f"kvpressure/runbooks/{name}.md" for name in PAGES} <= set(names)
    assert "kvpressure/exposition/templates/runbook.css" in names
