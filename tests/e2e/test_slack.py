"""What lands in a chat: the page of a model of which two of three replicas collapse, kept as docs/alerts.md.

promtool renders the generated rules' texts, Debian's Alertmanager posts them with the generated templates.
UPDATE_GOLDEN=1 writes the page again.
"""

import contextlib
import json
import os
import re
import shutil
import subprocess
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml
from aiohttp import web
from aiohttp.test_utils import TestServer

from kvpressure.bundle import Options, bundle_files
from kvpressure.config.thresholds import load_thresholds
from tests.support import built
from tests.support.alerting import configured
from tests.support.processes import Process, eventually
from tests.support.rule_texts import fired
from tests.support.tools import ROOT, need

pytestmark = pytest.mark.e2e
PAGE = ROOT / "docs" / "alerts.md"
ALERT = "KVPressureCacheTooSmall"
TEMPLATE = """## An alert as it arrives

Made by `tests/e2e/test_slack.py` with `--runbook-url {runbooks} --dashboard-url
{boards}`, for a model of which two of three replicas collapse, and posted by Debian's Alertmanager.

In Slack:

```text
{slack}
```

In Teams:

```text
{teams}
```

In PagerDuty:

```json
{pagerduty}
```
"""


def replica(number: int, family: str, value: float, **labels: str) -> dict[str, str]:
    own = {"target": f"chat/vllm-{number}:8000", "pod": f"vllm-{number}", "instance": "10.0.0.7:10405"}
    every = {"job": "kvpressure", "namespace": "chat", "model_name": "llama", "engine": "0", **own, **labels}
    inside = ", ".join(f'{name}="{text}"' for name, text in every.items())
    return {"series": f"kvpressure_{family}{{{inside}}}", "values": f"{value}x60"}


def target(number: int) -> dict[str, str]:
    own = f'target="chat/vllm-{number}:8000", namespace="chat", pod="vllm-{number}", instance="10.0.0.7:10405"'
    address = f"-n chat pod/vllm-{number}"
    return {"series": f'kvpressure_target_info{{job="kvpressure", {own}, address="{address}"}}', "values": "1x60"}


RECORDED = ("targets", "words", "deployment")


def rendered(folder: Path, runbooks: str, boards: str) -> tuple[dict[str, str], dict[str, str]]:
    """Labels and annotations of the page, from a promtool test that expects nothing."""
    options = Options(load_thresholds(), runbook_url=runbooks, dashboard_url=boards)
    files = bundle_files(options, with_runbooks=False, with_dashboards=False)
    for name in ("alerts/cache-too-small.yaml", *(f"recording/{name}.yaml" for name in RECORDED)):
        (folder / Path(name).name).write_text(files[f"prometheus/{name}"])
    series = []
    for number, collapsed in enumerate((1, 1, 0)):
        series += [
            replica(number, "bottleneck", collapsed, cause="kv_cache_pressure"),
            replica(number, "engine_up", 1),
            replica(number, "queue_unserved_seconds", 60 * collapsed),
            replica(number, "score_ratio", 0.9 - 0.1 * number),
            target(number),
        ]
    check = {"alertname": ALERT, "eval_time": "10m", "exp_alerts": []}
    test = {"name": "t", "interval": "15s", "input_series": series, "alert_rule_test": [check]}
    case = {
        "rule_files": [*(f"{name}.yaml" for name in RECORDED), "cache-too-small.yaml"],
        "evaluation_interval": "15s",
        "tests": [test],
    }
    (folder / "case.yaml").write_text(yaml.safe_dump(case))
    command = [need("promtool", "prometheus"), "test", "rules", str(folder / "case.yaml")]
    output = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    found = fired(output.stdout + output.stderr)[("t", ALERT, 600)]
    (page,) = [one for one in found if one[0]["severity"] == "critical"]
    return page


def receivers() -> dict[str, Any]:
    """The generated receivers by kind, secrets and what this Alertmanager does not know aside."""
    found = yaml.safe_load((built.bundle() / "alertmanager" / "receivers.yaml").read_text())
    assert found["templates"] == ["kvpressure.tmpl"]
    kinds = {kind: own[0] for one in found["receivers"] for kind, own in one.items() if kind != "name"}
    return {kind: {key: text for key, text in own.items() if "file" not in key} for kind, own in kinds.items()}


@contextlib.asynccontextmanager
async def chats(directory: Path, bodies: dict[str, Any]) -> AsyncIterator[tuple[Process, str]]:
    """Debian's Alertmanager with the generated receivers; what it posts lands in `bodies` by receiver.

    It is older than `msteamsv2_configs`: texts for Teams come through a receiver for Slack. `make e2e-rules` posts the
    card with a current Alertmanager's own packages.
    """

    async def receive(request: web.Request) -> web.Response:
        bodies[request.match_info["path"]] = await request.json()
        return web.json_response({"status": "success", "dedup_key": "x"}, status=202)

    app = web.Application()
    app.router.add_post("/{path}", receive)
    async with TestServer(app) as server:
        sink = f"http://127.0.0.1:{server.port}"
        own = receivers()
        all_of_them = {
            "name": "all",
            "slack_configs": [
                {**own["slack_configs"], "api_url": f"{sink}/slack"},
                {**own["msteamsv2_configs"], "api_url": f"{sink}/teams"},
            ],
            "pagerduty_configs": [{**own["pagerduty_configs"], "routing_key": "k", "url": f"{sink}/pagerduty"}],
        }
        shutil.copy(built.bundle() / "alertmanager" / "kvpressure.tmpl", directory)
        route = {"receiver": "all", "group_wait": "1s", "group_interval": "1s", "group_by": ["alertname"]}
        config = {"route": route, "receivers": [all_of_them], "templates": ["kvpressure.tmpl"]}
        async with configured(directory, yaml.safe_dump(config)) as manager:
            yield manager


async def posted(directory: Path, *states: list[dict[str, Any]]) -> dict[str, Any]:
    """What the three get, by receiver, after the last of these states of the alerts."""
    bodies: dict[str, Any] = {}
    async with chats(directory, bodies) as (process, url), aiohttp.ClientSession() as session:
        for alerts in states:
            bodies.clear()
            async with session.post(f"{url}/api/v2/alerts", json=alerts) as response:
                assert response.status == 200, await response.text()

            async def came() -> bool:
                return len(bodies) == 3

            await eventually(came, process)
    return bodies


async def test_what_is_over_has_no_first_step_and_no_command_anywhere(tmp_path: Path) -> None:
    labels, annotations = rendered(tmp_path, "https://runbooks.example.com", "https://grafana.example.com")
    now = datetime.now(UTC)
    fires = {"labels": labels, "annotations": annotations, "startsAt": (now - timedelta(minutes=5)).isoformat()}
    over = {**fires, "endsAt": (now - timedelta(seconds=1)).isoformat()}
    bodies = await posted(tmp_path, [fires], [over])
    (slack,), (teams,) = bodies["slack"]["attachments"], bodies["teams"]["attachments"]
    title = f"[RESOLVED] {annotations['summary']}"
    assert slack["title"] == teams["title"] == title
    for text in (slack["text"], teams["text"]):
        assert re.match(r"Over since \d\d:\d\d UTC\.\n", text)
        assert "https://runbooks.example.com" in text
    assert bodies["pagerduty"]["event_action"] == "resolve"
    assert not re.search(r"First|Run\b|triage|kubectl", json.dumps(bodies))


async def test_a_page_is_a_fact_a_command_and_two_links_and_the_docs_show_it(tmp_path: Path) -> None:
    runbooks, boards = "https://runbooks.example.com", "https://grafana.example.com"
    labels, annotations = rendered(tmp_path, runbooks, boards)
    bodies = await posted(tmp_path, [{"labels": labels, "annotations": annotations}])
    facts, command = annotations["description"].split("\n")
    command = command.removeprefix("Run: ")
    assert command == "kubectl kvpressure triage -n chat pod/vllm-0"
    (slack,), (teams,) = bodies["slack"]["attachments"], bodies["teams"]["attachments"]
    title = f"[CRITICAL] {annotations['summary']}"
    assert slack["title"] == teams["title"] == bodies["pagerduty"]["payload"]["summary"] == title
    assert slack["text"].splitlines()[:2] == [facts, f"`{command}`"]
    assert teams["text"].split("\n\n")[:2] == [facts, f"`{command}`"]
    pager = bodies["pagerduty"]["payload"]
    assert pager["severity"] == "critical"
    pager["custom_details"] = {key: pager["custom_details"][key] for key in ("facts", "run", "runbook", "board")}
    assert pager["custom_details"] == {
        "facts": f"{facts}\n",
        "run": f"{command}\n",
        "runbook": annotations["runbook_url"],
        "board": annotations["dashboard_url"],
    }
    text = TEMPLATE.format(
        runbooks=runbooks,
        boards=boards,
        slack=f"{slack['title']}\n{slack['text']}".strip(),
        teams=f"{teams['title']}\n\n{teams['text']}".strip(),
        pagerduty=json.dumps({key: pager[key] for key in ("summary", "severity", "custom_details")}, indent=1),
    )
    assert not re.search(r"unknown|no value|Runbook>?\W*$|<@|<!", text)
    generated = PAGE.read_text().partition(TEMPLATE.partition("\n")[0])[0]
    if os.environ.get("UPDATE_GOLDEN"):
        PAGE.write_text(generated + text)
    assert PAGE.read_text() == generated + text, (
        "docs/alerts.md is stale: run with UPDATE_GOLDEN=1 and look at the diff"
    )


async def test_many_alerts_are_one_message_and_a_name_calls_nobody(tmp_path: Path) -> None:
    alerts = [
        {
            "labels": {"alertname": ALERT, "severity": "warning", "target": f"t{number}"},
            "annotations": {
                "summary": f"<!channel> on [t{number}](http://evil)",
                "description": f"<@U{number}> [pay](http://evil)\nRun: triage t{number}",
            },
        }
        for number in range(7)
    ]
    bodies = await posted(tmp_path, alerts)
    for name in ("slack", "teams"):
        (attachment,) = bodies[name]["attachments"]
        assert attachment["title"] == "[WARNING] !channel on t0(http://evil) (and 6 more)"
        assert "<" not in attachment["text"]
        assert name == "slack" or "](http://evil" not in attachment["text"]
        assert [f"`triage t{number}`" in attachment["text"] for number in range(7)] == [True] * 5 + [False] * 2
    assert bodies["pagerduty"]["payload"]["custom_details"]["run"].count("triage") == 7
