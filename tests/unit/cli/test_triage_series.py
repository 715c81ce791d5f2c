"""`triage --prometheus`: which replicas are looked at, and how, at a real Prometheus that holds their past."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from bench.simulator.scenarios import episode
from kvpressure.cli import main
from kvpressure.cli.findings import EngineFacts, Finding
from kvpressure.cli.triage.series import Look
from kvpressure.config.thresholds import load_thresholds
from kvpressure.prometheus.answers import PrometheusError
from kvpressure.prometheus.client import Prometheus, Server
from tests.support.fake_prometheus import FakePrometheus
from tests.support.past import START, Scrape, past, simulated

pytestmark = [pytest.mark.recorded, pytest.mark.process]

NOW = START + 590
UP = b"up 1\n"
DOWN = b"up 0\n"


def labels(pod: str, cluster: str = "east") -> dict[str, str]:
    return {"cluster": cluster, "namespace": "prod", "pod": pod, "instance": f"{pod}:8000", "job": "vllm"}


def engine(
    cause: Any, seed: int, pod: str, *, until: float = NOW, cluster: str = "east", late: float = 0.0
) -> Iterator[Scrape]:
    its = labels(pod, cluster)
    yield from (
        scrape
        for scrape in simulated(episode(cause, seed), seed, its, 15.0, START + late)
        if scrape.t <= min(until, NOW)
    )
    yield from (Scrape(START + 15 * number, its, UP) for number in range(40) if START + 15 * number <= until)


def scrapes() -> Iterator[Scrape]:
    yield from engine("healthy", 1, "llama-0")
    yield from engine("kv_cache_pressure", 2, "llama-1", late=200)
    yield from engine("healthy", 3, "llama-2", until=NOW - 300)
    yield from (Scrape(NOW - 285 + 15 * number, labels("llama-2"), DOWN) for number in range(20))
    yield from engine("healthy", 6, "llama-4", until=NOW - 400)
    yield from (Scrape(NOW - 385 + 15 * number, labels("llama-4"), UP) for number in range(26))
    yield from engine("healthy", 4, "llama-3", until=NOW - 400)  # replaced: no target any more
    yield from engine("healthy", 5, "llama-0", cluster="west")


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with past(tmp_path_factory.mktemp("past"), scrapes()) as address:
        yield address


def looked(url: str, model: str = "", namespace: str = "") -> dict[str, Finding]:
    with Prometheus(Server(url)) as client:
        look = Look(client, EngineFacts(), load_thresholds(), NOW)
        found = [finding for target in look.discover(model, namespace) for finding in look.findings(target, model)]
        return {finding.target: finding for finding in look.with_advice(found)}


def test_every_replica_that_is_a_target_has_its_state_and_those_that_were_replaced_are_gone_from_it(url: str) -> None:
    found = looked(url)
    assert {name: finding.state for name, finding in found.items()} == {
        "east/prod/llama-0": "serves",
        "east/prod/llama-1": "waits",
        "east/prod/llama-2": "unreadable",
        "east/prod/llama-4": "unreadable",
        "west/prod/llama-0": "serves",
    }
    assert list(found).index("east/prod/llama-1") < list(found).index("east/prod/llama-0")
    assert found["east/prod/llama-1"].cause == "kv_cache_pressure"
    assert found["east/prod/llama-1"].actions
    assert found["east/prod/llama-2"].problem == "the Prometheus cannot scrape it (up is 0)"
    assert found["east/prod/llama-4"].problem.startswith("the Prometheus scrapes it")
    assert {finding.cluster for finding in found.values()} == {"east", "west"}


def test_what_is_not_there_is_said_with_what_is(url: str) -> None:
    model = next(finding.view.key.model_name for finding in looked(url).values() if finding.view is not None)
    assert len(looked(url, model, "prod")) == 5
    for asked, said in (
        (("qwen", ""), f"no engine of model qwen; its models are {model}"),
        ((model, "dev"), f"no engine of model {model} and namespace dev"),
    ):
        with pytest.raises(PrometheusError, match=said):
            looked(url, *asked)


def asked(*words: str) -> Result:
    return CliRunner().invoke(main, ["triage", *words])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--prometheus", "http://127.0.0.1:9", ":8000"), "give it without engines"),
        (("--prometheus", "http://127.0.0.1:9", "--watch"), "--watch"),
        (("--model", "llama"), "--model is for --prometheus URL"),
        (("--prometheus", "http://ali:secret@127.0.0.1:9"), "must not hold credentials"),
    ],
)
def test_what_is_refused(words: tuple[str, ...], said: str) -> None:
    result = asked(*words)
    assert (result.exit_code, said in result.output, "secret" not in result.output) == (2, True, True), result.output


def test_credentials_are_those_of_the_http_config(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("s3cret\n")
    (tmp_path / "http.yml").write_text(f"authorization: {{credentials_file: {tmp_path / 'token'}}}\n")

    def nothing(_: Any) -> tuple[int, dict[str, Any]]:
        return 200, {"status": "success", "data": []}

    with FakePrometheus(nothing) as server:
        result = asked("--prometheus", server.url, "--http.config.file", str(tmp_path / "http.yml"))
        assert (result.exit_code, "it scrapes nothing" in result.output) == (2, True), result.output
        assert {request.headers["authorization"] for request in server.requests} == {"Bearer s3cret"}
    (tmp_path / "http.yml").write_text(json.dumps({"basic_auth": 1}))
    assert asked("--prometheus", server.url, "--http.config.file", str(tmp_path / "http.yml")).exit_code == 2
