"""A real Prometheus that holds the past of engines: recorded or simulated pages, as its scrapes saw them."""

import json
import re
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from click.testing import CliRunner, Result

from bench.simulator.service import Scenario, ServerDownError, SimulatedServer
from kvpressure.cli import main
from tests.support.processes import free_port
from tests.support.prometheus import wait_until_ready
from tests.support.tools import need

START = 1_700_000_000.0
LABELLED = "global: {scrape_interval: 15s, external_labels: {prometheus_replica: a}}\n"
"""With labels for others than itself: a Thanos sidecar wants some."""
_LINE = re.compile(rb"^([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{([^\n]*)\})? ([^ \n]+)", re.MULTILINE)


@dataclass(frozen=True)
class Scrape:
    """One page of one target, at `t` (unix seconds)."""

    t: float
    labels: Mapping[str, str]
    page: bytes


def pod_labels(pod: str, namespace: str = "prod") -> dict[str, str]:
    """The labels of the target of an engine in a pod."""
    return {"namespace": namespace, "pod": pod, "instance": f"{pod}:8000", "job": "vllm"}


def incidents(url: str, *words: str) -> Result:
    """What `incidents` says of a Prometheus that holds three hours around START."""
    span = ("--since", f"{START - 3600:.0f}", "--until", f"{START + 7200:.0f}", "--workers", "1")
    return CliRunner().invoke(main, ["incidents", "--prometheus", url, *span, *words])


def simulated(scenario: Scenario, seed: int, labels: Mapping[str, str], step: float, begin: float) -> Iterator[Scrape]:
    """A scenario from `begin` on; scrapes at which the server is down find nothing."""
    server = SimulatedServer(scenario, seed)
    for number in range(int(scenario.seconds / step)):
        t = server.start + (number + 0.5) * step
        try:
            yield Scrape(begin + t - server.start, labels, server.page(t))
        except ServerDownError:
            continue


def openmetrics(scrapes: Iterable[Scrape], keep: re.Pattern[bytes] | None = None) -> Iterator[bytes]:
    """The samples of all pages, with their targets' labels."""
    for scrape in scrapes:
        own = ",".join(f"{name}={json.dumps(value)}" for name, value in scrape.labels.items()).encode()
        stamp = b" %.3f\n" % scrape.t
        for name, labels, value in _LINE.findall(scrape.page):
            if not name.endswith(b"_created") and (keep is None or keep.match(name)):
                yield name + b"{" + (labels.rstrip(b",") + b"," if labels else b"") + own + b"} " + value + stamp
    yield b"# EOF\n"


def make_blocks(folder: Path, scrapes: Iterable[Scrape]) -> Path:
    """The data folder of a Prometheus."""
    return blocks_of(folder, openmetrics(scrapes))


def blocks_of(folder: Path, lines: Iterable[bytes], *options: str) -> Path:
    """The data folder of a Prometheus that has these samples too, given as OpenMetrics."""
    file, data = folder / "samples.om", folder / "data"
    with file.open("wb") as out:
        out.writelines(lines)
    promtool = need("promtool", "prometheus")
    command = [promtool, "tsdb", "create-blocks-from", *options, "openmetrics", "-q", str(file), str(data)]
    made = subprocess.run(command, capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stderr
    file.unlink()
    return data


@contextmanager
def prometheus(folder: Path, data: Path, *flags: str, config: str = LABELLED) -> Iterator[str]:
    """The address of a Prometheus on these blocks. RuntimeError with its last words when it does not come up."""
    program, port = need("prometheus", "prometheus"), free_port()
    (folder / "prometheus.yml").write_text(config)
    command: Sequence[str] = (
        program,
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={data}",
        "--storage.tsdb.retention.time=100y",
        f"--web.listen-address=127.0.0.1:{port}",
        "--log.level=error",
        *flags,
    )
    log = folder / "prometheus.log"
    with log.open("w") as output, subprocess.Popen(command, stdout=output, stderr=output) as process:
        try:
            url = f"http://127.0.0.1:{port}"
            wait_until_ready(url, process, log)
            yield url
        finally:
            process.terminate()


@contextmanager
def past(folder: Path, scrapes: Iterable[Scrape], *flags: str) -> Iterator[str]:
    """The address of a Prometheus that holds these scrapes."""
    try:
        with prometheus(folder, make_blocks(folder, scrapes), *flags) as url:
            yield url
    finally:
        shutil.rmtree(folder / "data", ignore_errors=True)
