"""Every rule of the bundle in servers of both generations: Debian's Prometheus, and that of `make tools-go`."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from kvpressure.bundle import KINDS, Options, bundle_files, write_bundle
from kvpressure.config.thresholds import load_thresholds
from tests.support.processes import eventually, free_port, get, running
from tests.support.tools import built, need

pytestmark = [pytest.mark.e2e, pytest.mark.slow]


def server(which: str) -> str:
    """Its path."""
    return need("prometheus", "prometheus") if which == "debian" else built("prometheus")


async def evaluated(program: str, folder: Path) -> list[dict[str, Any]]:
    """Its groups, as `/api/v1/rules` tells them once each was evaluated."""
    address, config = f"127.0.0.1:{free_port()}", folder / "prometheus.yml"
    job = {"job_name": "itself", "static_configs": [{"targets": [address]}]}
    rules = [f"{folder}/bundle/prometheus/{kind}/*.yaml" for kind in KINDS]
    files = {"rule_files": rules, "scrape_configs": [job]}
    config.write_text(json.dumps({"global": {"evaluation_interval": "1s", "scrape_interval": "1s"}} | files))
    words = [f"--config.file={config}", f"--storage.tsdb.path={folder / 'tsdb'}", f"--web.listen-address={address}"]
    async with running([program, *words], folder / "prometheus.log") as process:

        async def groups() -> list[dict[str, Any]] | None:
            answer = json.loads(await get(f"http://{address}/api/v1/rules"))
            found = answer["data"]["groups"]
            known = [rule["health"] for group in found for rule in group["rules"]]
            return found if known and "unknown" not in known else None

        return await eventually(groups, process)


@pytest.mark.parametrize("scrape_seconds", [15, 60])
@pytest.mark.parametrize("which", ["debian", "built"])
def test_it_loads_and_evaluates_every_rule(which: str, scrape_seconds: int, tmp_path: Path) -> None:
    options = Options(load_thresholds(), scrape_seconds=scrape_seconds, all_alerts=True)
    files = bundle_files(options, with_runbooks=False, with_dashboards=False)
    write_bundle(tmp_path / "bundle", files)
    groups = asyncio.run(evaluated(server(which), tmp_path))
    rules = [rule for group in groups for rule in group["rules"]]
    assert [(rule["name"], rule.get("lastError")) for rule in rules if rule["health"] != "ok"] == []
    alerts = {rule["name"] for rule in rules if rule["type"] == "alerting"}
    assert len(alerts) > 20, "with --all-alerts"
    assert max(len(group["rules"]) for group in groups) <= 20, "Mimir's default limit"
