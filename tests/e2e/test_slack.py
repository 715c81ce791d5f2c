"""What lands in a chat: the page of a model of which two of three replicas collapse, kept as docs/alerts.md.

promtool renders the generated rules' texts, Debian's Alertmanager posts them. UPDATE_GOLDEN=1 writes the page again.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml

from kvpressure.config.thresholds import load_thresholds
from kvpressure.tools.bundle import Options, bundle_files
from tests.support.alerting import alertmanager, webhook
from tests.support.processes import eventually
from tests.support.rule_texts import fired
from tests.support.tools import ROOT, need

pytestmark = pytest.mark.e2e
PAGE = ROOT / "docs" / "alerts.md"
ALERT = "KVPressureCacheTooSmall"
LONGEST_LINE = 140
"""Characters; two or three lines of a locked phone."""

VOLATILE = ("fingerprint", "startsAt", "endsAt", "generatorURL")
REPEATED = ("commonAnnotations", "commonLabels", "externalURL", "groupKey")
TEMPLATE = """## An alert as it arrives

Made by `tests/e2e/test_slack.py` from rules of `kvpressure generate`, with
`--runbook-url {runbooks} --dashboard-url {boards}`: rendered by promtool for a model
of which two of three replicas collapse, posted by Debian's Alertmanager to a webhook.

In Slack, with a template of title, description and the two links:

> **[{severity}] {summary}**
> {facts}
> `{command}`
> [Runbook][1] · [Board][2]

[1]: {runbook}
[2]: {board}

The body, less what differs each time ({volatile}) or is said
twice ({repeated}):

```json
{body}
```
"""


def replica(number: int, family: str, value: float, **labels: str) -> dict[str, str]:
    own = {"target": f"chat/vllm-{number}:8000", "pod": f"vllm-{number}", "instance": "10.0.0.7:10405"}
    every = {"job": "kvpressure", "namespace": "chat", "model_name": "llama", "engine": "0", **own, **labels}
    inside = ", ".join(f'{name}="{text}"' for name, text in every.items())
    return {"series": f"kvpressure_{family}{{{inside}}}", "values": f"{value}x60"}


def rendered(folder: Path, runbooks: str, boards: str) -> tuple[dict[str, str], dict[str, str]]:
    """Labels and annotations of the page, from a promtool test that expects nothing."""
    options = Options(load_thresholds(), runbook_url=runbooks, dashboard_url=boards)
    files = bundle_files(options, with_runbooks=False, with_dashboards=False)
    for name in ("alerts/cache-too-small.yaml", "recording/deployment.yaml"):
        (folder / Path(name).name).write_text(files[f"prometheus/{name}"])
    series = []
    for number, collapsed in enumerate((1, 1, 0)):
        series += [
            replica(number, "bottleneck", collapsed, cause="kv_cache_pressure"),
            replica(number, "engine_up", 1),
            replica(number, "queue_unserved_seconds", 60 * collapsed),
            replica(number, "score", 0.9 - 0.1 * number),
        ]
    check = {"alertname": ALERT, "eval_time": "10m", "exp_alerts": []}
    test = {"name": "t", "interval": "15s", "input_series": series, "alert_rule_test": [check]}
    case = {"rule_files": ["deployment.yaml", "cache-too-small.yaml"], "evaluation_interval": "15s", "tests": [test]}
    (folder / "case.yaml").write_text(yaml.safe_dump(case))
    command = [need("promtool", "prometheus"), "test", "rules", str(folder / "case.yaml")]
    output = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    found = fired(output.stdout + output.stderr)[("t", ALERT, 600)]
    (page,) = [one for one in found if one[0]["severity"] == "critical"]
    return page


async def test_a_page_is_a_fact_a_command_and_two_links_and_the_docs_show_it(tmp_path: Path) -> None:
    runbooks, boards = "https://runbooks.example.com", "https://grafana.example.com"
    labels, annotations = rendered(tmp_path, runbooks, boards)
    async with webhook() as hook, alertmanager(tmp_path, hook) as (process, url), aiohttp.ClientSession() as session:
        posted = [{"labels": labels, "annotations": annotations}]
        async with session.post(f"{url}/api/v2/alerts", json=posted) as response:
            assert response.status == 200, await response.text()

        async def came() -> bool:
            return bool(hook.bodies)

        await eventually(came, process)
    body: dict[str, Any] = {key: value for key, value in hook.bodies[0].items() if key not in REPEATED}
    assert body["receiver"] == "kvpressure-page"
    body["alerts"] = [{key: value for key, value in one.items() if key not in VOLATILE} for one in body["alerts"]]
    told = body["alerts"][0]["annotations"]
    facts, command = told["description"].split("\n")
    assert max(len(facts), len(command), len(told["summary"])) <= LONGEST_LINE
    assert command.startswith("Run: kubectl kvpressure triage -n chat pod/vllm-0")
    text = TEMPLATE.format(
        runbooks=runbooks,
        boards=boards,
        severity=labels["severity"].upper(),
        summary=told["summary"],
        facts=facts,
        command=command.removeprefix("Run: "),
        runbook=told["runbook_url"],
        board=told["dashboard_url"],
        volatile=", ".join(f"`{name}`" for name in VOLATILE),
        repeated=", ".join(f"`{name}`" for name in REPEATED),
        body=json.dumps(body, indent=1, ensure_ascii=False),
    )
    generated = PAGE.read_text().partition(TEMPLATE.partition("\n")[0])[0]
    if os.environ.get("UPDATE_GOLDEN"):
        PAGE.write_text(generated + text)
    assert PAGE.read_text() == generated + text, (
        "docs/alerts.md is stale: run with UPDATE_GOLDEN=1 and look at the diff"
    )
