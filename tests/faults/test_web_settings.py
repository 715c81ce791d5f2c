"""What settings and links could make the server do: a metrics page in a wrong place, a command to a foreign host."""

from __future__ import annotations

import html
from pathlib import Path

import pytest
from click.testing import CliRunner

from kvpressure.cli import main
from kvpressure.exposition import runbooks

BAD = {
    "/-/healthy": "is taken: /- is another page of the exporter; choose a path such as /metrics",
    "/-/metrics": "is taken: /-",
    "/-": "is taken: /-",
    "/": "is taken: / ",
    "/targets": "is taken: /targets",
    "/api/v1/diagnosis": "is taken: /api",
    "/api/metrics": "is taken: /api",
    "/runbooks": "is taken: /runbooks",
    "/runbooks/KVPressureCacheTooSmall": "is taken: /runbooks",
    "/{alert}": "must be a path of letters, digits and . _ ~ - between slashes, such as /metrics",
    "/metrics{tail:.*}": "must be a path",
    "/metrics?x=1": "must be a path",
    "/metrics#x": "must be a path",
    "/%2d/healthy": "must be a path",
    "/a/../-/healthy": "must be a path",
    "/./metrics": "must be a path",
    "//metrics": "must be a path",
    "metrics": "must be a path",
    "": "must be a path",
}


@pytest.mark.fault(
    "a `telemetry_path` is the path of another page, of an open health path, or contains route syntax",
    "check-config and run refuse it with the line and a valid choice",
)
@pytest.mark.parametrize("path", BAD)
def test_a_telemetry_path_that_is_taken_or_no_path_is_refused(path: str, tmp_path: Path) -> None:
    file = tmp_path / "kvpressure.yaml"
    file.write_text(f"web:\n  telemetry_path: '{path}'\n")
    for command in ("check-config", "run"):
        result = CliRunner().invoke(main, [command, "--config.file", str(file)])
        assert result.exit_code == 2
        assert f"kvpressure.yaml:2: web.telemetry_path: {BAD[path]}" in result.output


@pytest.mark.parametrize(
    "path", ["/metrics", "/vllm/metrics", "/metrics/", "/-metrics", "/apis", "/targets.prom", "/m.v1"]
)
def test_any_other_telemetry_path_is_taken(path: str, tmp_path: Path) -> None:
    file = tmp_path / "kvpressure.yaml"
    file.write_text(f"web:\n  telemetry_path: '{path}'\n")
    result = CliRunner().invoke(main, ["check-config", "--config.file", str(file)])
    assert result.exit_code == 0, result.output


ELSEWHERE = (
    "node-1:10405@evil.example",
    "evil.example/x?",
    "http://evil.example",
    "//evil.example",
    "evil.example#",
    "evil.example\\",
    "-oProxyCommand=x",
    "a b",
    "[::1]@evil.example",
    "node-1:10405:evil.example",
)


@pytest.mark.fault(
    "a link to a runbook has an invalid `?instance=`",
    "no command of the page uses another host, and no link leaves the site",
)
@pytest.mark.parametrize("instance", ELSEWHERE)
def test_an_instance_that_is_no_address_is_not_filled_in(instance: str) -> None:
    page = html.unescape(runbooks.page_html("KVPressureExporterDown", {"instance": instance}))
    assert "http://$INSTANCE/-/ready" in page
    assert instance not in page


@pytest.mark.parametrize("instance", ["10.0.0.1:10405", "node-1.example:10405", "[2001:db8::1]:10405", "localhost"])
def test_an_instance_as_prometheus_writes_it_is_filled_in(instance: str) -> None:
    page = html.unescape(runbooks.page_html("KVPressureExporterDown", {"instance": instance}))
    assert "$INSTANCE" not in page.split("<main>")[1]
    assert instance in page
