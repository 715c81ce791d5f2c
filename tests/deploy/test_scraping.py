"""The PodMonitor and the example scrape configurations in a real Prometheus: the labels that series end up with."""

import asyncio
import contextlib
import functools
import http.server
import json
import re
import subprocess
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from deploy.render import MANIFESTS, ROOT

from kvpressure.config.settings import Settings
from tests.support import built
from tests.support.chart import Object
from tests.support.processes import Process, eventually, free_port, get, running
from tests.support.rules import promtool_each
from tests.support.tools import need

PROMETHEUS = ROOT / "deploy" / "prometheus"
POD = {
    "__meta_kubernetes_namespace": "watch",
    "__meta_kubernetes_pod_name": "kvpressure-x7k2p",
    "__meta_kubernetes_pod_container_name": "kvpressure",
    "__meta_kubernetes_pod_container_port_name": "metrics",
    "__meta_kubernetes_pod_node_name": "gpu-node-1",
    "__meta_kubernetes_pod_phase": "Running",
    "__meta_kubernetes_pod_label_app_kubernetes_io_name": "kvpressure",
}
ENGINE = {"target": "llm/chat-0:8000", "namespace": "llm", "pod": "chat-0", "model_name": "m", "engine": "0"}
CONTAINER = {"namespace": "llm", "pod": "chat-0", "container": "vllm"}
GPU = {"gpu_uuid": "GPU-1", "gpu_index": "0", "vendor": "nvidia"}
SERIES_PER_ENGINE = 150
"""docs/what-it-costs.md: about 110; with those of its container and of its source."""

SERIES = {
    "kvpressure_score_ratio": ENGINE,
    "kvpressure_gpu_memory_used_bytes": GPU,
    "kvpressure_container_restarts_total": CONTAINER,
}


def page() -> str:
    """A small page of the exporter."""
    braces = {name: ",".join(f'{key}="{value}"' for key, value in labels.items()) for name, labels in SERIES.items()}
    return "".join(f"# TYPE {name} gauge\n{name}{{{labels}}} 1\n" for name, labels in braces.items())


def by_the_operator(monitor: Object, **changes: object) -> Object:
    """The scrape configuration that the Prometheus operator makes of a PodMonitor's endpoint, but for discovery.

    The operator's own relabelings come first, those of the PodMonitor after them (its pkg/prometheus/promcfg.go).
    """
    endpoint = monitor["spec"]["podMetricsEndpoints"][0] | changes
    name = f"{monitor['metadata']['namespace']}/{monitor['metadata']['name']}"
    own = [
        {"source_labels": ["__meta_kubernetes_pod_container_port_name"], "regex": endpoint["port"], "action": "keep"},
        {"source_labels": ["__meta_kubernetes_namespace"], "target_label": "namespace"},
        {"source_labels": ["__meta_kubernetes_pod_container_name"], "target_label": "container"},
        {"source_labels": ["__meta_kubernetes_pod_name"], "target_label": "pod"},
        {"target_label": "job", "replacement": name},
        {"target_label": "endpoint", "replacement": endpoint["port"]},
    ]
    names = {"sourceLabels": "source_labels", "targetLabel": "target_label"}
    theirs = [{names.get(key, key): value for key, value in one.items()} for one in endpoint.get("relabelings", [])]
    return {
        "honor_labels": endpoint.get("honorLabels", False),
        "metrics_path": endpoint["path"],
        "relabel_configs": own + theirs,
    }


def monitor() -> Object:
    return yaml.safe_load((MANIFESTS / "prometheus-operator/podmonitor.yaml").read_text())


def example(name: str) -> Object:
    (job,) = yaml.safe_load((PROMETHEUS / name).read_text())["scrape_configs"]
    return job


def jobs() -> dict[str, Object]:
    """Scrape configurations by case; all but the last are ours."""
    ours = example("scrape-config-kubernetes.yaml")
    ours.pop("kubernetes_sd_configs")
    return {
        "podmonitor": by_the_operator(monitor()),
        "podmonitor-without-honor": by_the_operator(monitor(), honorLabels=False),
        "plain": ours,
        "plain-without-honor": ours | {"honor_labels": False},
        "nothing-dropped": by_the_operator(monitor(), honorLabels=False, relabelings=[]),
    }


def test_every_scrape_that_is_shipped_has_a_limit_that_the_largest_node_keeps() -> None:
    plain = [example(name) for name in ("scrape-config.yaml", "scrape-config-kubernetes.yaml")]
    (compose,) = yaml.safe_load((PROMETHEUS.parent / "compose" / "prometheus.yml").read_text())["scrape_configs"]
    limits = {monitor()["spec"]["sampleLimit"], *(job["sample_limit"] for job in (*plain, compose))}
    assert len(limits) == 1
    settings = Settings()
    assert limits.pop() > settings.limits.max_engines * SERIES_PER_ENGINE


@contextlib.contextmanager
def exporter() -> Iterator[str]:
    """An address that serves `page`."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.end_headers()
            self.wfile.write(page().encode())

        def log_message(self, *_: object) -> None: ...

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@contextlib.asynccontextmanager
async def prometheus(folder: Path, scraped: str) -> AsyncIterator[tuple[Process, str]]:
    """Debian's Prometheus with every case as a job; the pod's discovery labels come from a file."""
    program = need("prometheus", "prometheus")
    configs = []
    for case, job in jobs().items():
        (folder / f"{case}.json").write_text(json.dumps([{"targets": [scraped], "labels": POD | {"case": case}}]))
        found = {"file_sd_configs": [{"files": [str(folder / f"{case}.json")]}]}
        configs.append(job | found | {"job_name": case, "scrape_interval": "1s"})
    # In the plain example the job's name is the job label.
    for config in configs:
        if config["job_name"].startswith("plain"):
            config["relabel_configs"] = [
                *config["relabel_configs"],
                {"target_label": "job", "replacement": "kvpressure"},
            ]
    (folder / "prometheus.yml").write_text(yaml.safe_dump({"scrape_configs": configs}))
    address = f"127.0.0.1:{free_port()}"
    flags = [f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/tsdb"]
    async with running([program, *flags, f"--web.listen-address={address}"], folder / "log") as process:
        yield process, f"http://{address}"


async def _labels(folder: Path) -> dict[tuple[str, str], dict[str, str]]:
    """Labels that each series has in Prometheus, by case and metric."""
    with exporter() as address:
        async with prometheus(folder, address) as (process, url):

            async def scraped() -> list[Any]:
                query = '{case!="",__name__=~"up|kvpressure_.*"}'.replace("+", "%2B")
                text = await get(f"{url}/api/v1/query?query={query.replace(' ', '')}")
                found = [one["metric"] for one in json.loads(text)["data"]["result"]]
                return found if len(found) == 4 * len(jobs()) else []

            found = await eventually(scraped, process)
    return {(labels.pop("case"), labels.pop("__name__")): labels for labels in found}


@pytest.fixture(scope="module")
def labels(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], dict[str, str]]:
    return asyncio.run(_labels(tmp_path_factory.mktemp("prometheus")))


OURS = pytest.mark.parametrize("case", [case for case in jobs() if case != "nothing-dropped"])
TARGET = {"job": "kvpressure", "node": "gpu-node-1"}


@OURS
def test_series_keep_the_labels_that_the_exporter_gave_them(case: str, labels: Any) -> None:
    def found(metric: str) -> dict[str, str]:
        return {key: value for key, value in labels[case, metric].items() if key != "instance"}

    assert found("kvpressure_score_ratio") == ENGINE | TARGET
    assert found("kvpressure_container_restarts_total") == CONTAINER | TARGET
    assert found("kvpressure_gpu_memory_used_bytes") == GPU | TARGET


@OURS
def test_the_target_itself_carries_job_instance_and_node_alone(case: str, labels: Any) -> None:
    # What KVPressureExporterDown groups by; a namespace here would make it one page for each namespace of exporters.
    assert labels[case, "up"].keys() == {"job", "node", "instance"}
    assert labels[case, "up"]["job"] == "kvpressure"
    assert re.fullmatch(r"127\.0\.0\.1:\d+", labels[case, "up"]["instance"]), "runbook links lead to it"


def test_without_the_charts_relabelings_the_engines_labels_would_be_pushed_aside(labels: Any) -> None:
    found = labels["nothing-dropped", "kvpressure_score_ratio"]
    assert (found["namespace"], found["exported_namespace"]) == ("watch", "llm")
    assert found["job"] == "kvpressure/kvpressure"


@functools.cache
def with_all_discoveries(promtool: str) -> bool:
    """Debian builds Prometheus without Kubernetes discovery."""
    words = [need(promtool, "prometheus"), "check", "config", str(PROMETHEUS / "scrape-config-kubernetes.yaml")]
    result = subprocess.run(words, capture_output=True, text=True, check=False, timeout=300)
    return "field kubernetes_sd_configs not found" not in result.stderr


@promtool_each
@pytest.mark.parametrize("name", ["scrape-config.yaml", "scrape-config-kubernetes.yaml"])
def test_promtool_finds_nothing_in_the_example_configurations(promtool: str, name: str, tmp_path: Path) -> None:
    config = yaml.safe_load((PROMETHEUS / name).read_text())
    if not with_all_discoveries(promtool):
        config["scrape_configs"][0].pop("kubernetes_sd_configs", None)
    config["rule_files"] = [str(built.bundle().parent / pattern) for pattern in config["rule_files"]]
    (tmp_path / "prometheus.yml").write_text(yaml.safe_dump(config))
    words = [need(promtool, "prometheus"), "check", "config", str(tmp_path / "prometheus.yml")]
    result = subprocess.run(words, capture_output=True, text=True, check=False, timeout=300)
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.count("SUCCESS") >= 20, "the rules are checked too"


def test_the_examples_name_the_job_that_the_rules_look_for_and_let_the_exporters_labels_win() -> None:
    for name in ("scrape-config.yaml", "scrape-config-kubernetes.yaml"):
        job = example(name)
        assert (job["job_name"], job["honor_labels"], job["scrape_interval"]) == ("kvpressure", True, "15s")
