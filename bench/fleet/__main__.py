"""`python -m bench.fleet [ENGINES ...]`: what fleets of 1,000 and 10,000 engines cost a Prometheus.

Each size is scraped with either profile: 25 minutes and 10 GB in all, on a machine with nothing else to do. Ends with 1
when a rule group takes more than a quarter of its interval. Writes results.json, where sizes that were not asked for
stay, and the table of docs/internals/accuracy/scaling.md.

What it takes is told by a real Prometheus with the bundle's rules, which scrapes the fleet, and by the kernel. Pages
are real ones of a recording, under other names for each engine, one page a node.
"""

from __future__ import annotations

import dataclasses
import gzip
import json
import re
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

from bench.written import write_part
from kvpressure.config.target import Target
from kvpressure.exposition import Snapshot, text
from kvpressure.exposition.profile import Profile
from kvpressure.exposition.text import OwnProcess
from kvpressure.model.view import EngineView
from tests.support import built
from tests.support.past import prometheus
from tests.support.snapshots import collapsed, healthy

ENGINES_PER_NODE: Final = 8
"""One for each GPU of the usual node."""
SICK_ONE_IN: Final = 50
MODELS: Final = 20
"""Deployments that a fleet's engines belong to."""
SCRAPE_SECONDS: Final = 15
SETTLE_SECONDS: Final = 330.0
"""Longer than the longest interval of a group, so that each is evaluated with everything scraped."""


@dataclass(frozen=True, slots=True)
class Group:
    """A rule group: how often it is evaluated, and how long the slowest time took."""

    name: str
    interval_seconds: float
    seconds: float

    @property
    def share(self) -> float:
        """Of its interval; above 1 it cannot keep up."""
        return self.seconds / self.interval_seconds


@dataclass(frozen=True, slots=True)
class Run:
    """A fleet of `engines`; bytes are those of all pages, once each. The CPU is all of Prometheus', on average."""

    profile: str
    engines: int
    exported_series: int
    head_series: int
    page_bytes: int
    gzip_bytes: int
    memory_bytes: int
    cpu_cores: float
    slowest: tuple[Group, ...]


def measure(engines: int, profile: Profile) -> Run:
    """Serve, scrape, evaluate. Raises RuntimeError where a rule fails."""
    bodies = list(pages(engines, profile))
    with tempfile.TemporaryDirectory(prefix="fleet-") as folder, _serving(bodies) as port:
        config = json.dumps(configuration(port, len(bodies), profile))
        with prometheus(Path(folder), Path(folder) / "tsdb", config=config) as url:
            found = _watch(url)
    return Run(
        profile=profile.value,
        engines=engines,
        exported_series=sum(len(re.findall(rb"(?m)^[^#\n]", body)) for body in bodies),
        page_bytes=sum(map(len, bodies)),
        gzip_bytes=sum(len(gzip.compress(body, 1)) for body in bodies),
        **found,
    )


def pages(engines: int, profile: Profile) -> Iterator[bytes]:
    """One page per node, as text; one engine in `SICK_ONE_IN` is under KV cache pressure, the others are well."""
    sick = collapsed()
    for begin in range(0, engines, ENGINES_PER_NODE):
        numbers = range(begin, min(begin + ENGINES_PER_NODE, engines))
        yield text.render(_node(sick, numbers, profile), openmetrics=False, own=[OwnProcess()])


def _node(sick: Snapshot, numbers: range, profile: Profile) -> Snapshot:
    well = healthy(sick.engines[0])
    one = dataclasses.replace(sick.engines[0], step="add_replica")
    views = tuple(_named(one if number % SICK_ONE_IN == 0 else well, number) for number in numbers)
    sources = tuple(dataclasses.replace(sick.sources[0], target=view.key.target, up=True, errors={}) for view in views)
    targets = tuple(Target(view.key.target, namespace=view.namespace, pod=view.pod, created=1.0) for view in views)
    exporter = {**sick.exporter, "targets": float(len(targets))}
    return dataclasses.replace(
        sick, engines=views, sources=sources, targets=targets, exporter=exporter, profile=profile
    )


def _named(view: EngineView, number: int) -> EngineView:
    names = {"target": f"chat/vllm-{number}:8000", "model_name": f"model-{number % MODELS}"}
    key, shown = view.key._replace(**names), view.shown._replace(**names)
    return dataclasses.replace(view, key=key, shown=shown, namespace="chat", pod=f"vllm-{number}")


@contextmanager
def _serving(bodies: Sequence[bytes]) -> Iterator[int]:
    class Page(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            body = bodies[int(self.path.split("/")[1])]
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Nobody reads it."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Page) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_port
        server.shutdown()


def configuration(port: int, nodes: int, profile: Profile) -> dict[str, Any]:
    """Prometheus' own, with every rule of the profile's bundle: scrapes the pages of `exporters`."""
    jobs = [
        {
            "targets": [f"127.0.0.1:{port}"],
            "labels": {"__metrics_path__": f"/{number}/metrics", "instance": f"node-{number}:10405"},
        }
        for number in range(nodes)
    ]
    return {
        "global": {"scrape_interval": f"{SCRAPE_SECONDS}s", "evaluation_interval": f"{SCRAPE_SECONDS}s"},
        "rule_files": [str(path) for path in sorted(built.bundle(profile).glob("prometheus/*/*.yaml"))],
        "scrape_configs": [{"job_name": "kvpressure", "static_configs": jobs}],
    }


def _watch(url: str) -> dict[str, Any]:
    """The slowest evaluations of the three slowest groups over `SETTLE_SECONDS`; what it holds and took by then."""
    worst: dict[str, Group] = {}
    end = time.monotonic() + SETTLE_SECONDS
    while time.monotonic() < end:
        time.sleep(5.0)
        for one in _groups(url):
            before = worst.get(one.name)
            worst[one.name] = one if before is None or one.seconds > before.seconds else before
    lines = _got(f"{url}/metrics").decode().splitlines()
    own = dict(line.rsplit(" ", 1) for line in lines if line[:1] != "#")
    return {
        "slowest": tuple(sorted(worst.values(), key=lambda group: -group.share)[:3]),
        "head_series": int(float(own["prometheus_tsdb_head_series"])),
        "memory_bytes": int(float(own["process_resident_memory_bytes"])),
        "cpu_cores": float(own["process_cpu_seconds_total"]) / SETTLE_SECONDS,
    }


def _got(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=30) as response:
        body: bytes = response.read()
        return body


def _groups(url: str) -> Sequence[Group]:
    try:
        groups = json.loads(_got(f"{url}/api/v1/rules"))["data"]["groups"]
    except (urllib.error.URLError, TimeoutError):
        return ()
    failed = [rule["name"] for group in groups for rule in group["rules"] if rule["health"] == "err"]
    if failed:
        raise RuntimeError(f"{', '.join(failed)} could not be evaluated: is the machine busy with something else?")
    return [Group(group["name"], group["interval"], group["evaluationTime"]) for group in groups]


RESULTS: Final = Path(__file__).parent / "results.json"
SIZES: Final = (1_000, 10_000)
BAR_RATIO: Final = 0.25
HEADINGS: Final = (
    "profile",
    "engines",
    "series an engine",
    "KiB a scrape, an engine (gzip)",
    "series kept, with rules'",
    "Prometheus' memory, GiB",
    "its CPU, cores",
    "slowest group, share of its interval",
)


def main(sizes: Sequence[int]) -> int:
    """Measure, print, write."""
    runs = [measure(engines, profile) for engines in sizes for profile in Profile]
    for run in runs:
        print(f"{run.profile}: {run.engines} engines, {run.head_series} series, {run.cpu_cores:.3f} cores")
        for group in run.slowest:
            missed = "MISSED" if group.share > BAR_RATIO else ""
            print(f"  {group.name:<45} {group.seconds:8.3f} s of {group.interval_seconds:>4} s  {missed}")
    before = json.loads(RESULTS.read_text()) if RESULTS.exists() else []
    rows = {(row["engines"], row["profile"]): row for row in (*before, *map(dataclasses.asdict, runs))}
    results = [rows[key] for key in sorted(rows)]
    RESULTS.write_text(json.dumps(results, indent=1) + "\n")
    write_part("scaling.md", "bench.fleet", _table(results))
    return int(any(group.share > BAR_RATIO for run in runs for group in run.slowest))


def _table(results: Iterable[Mapping[str, Any]]) -> str:
    """As Markdown, a row for each run."""
    rows = [HEADINGS, ("---", *["--:"] * (len(HEADINGS) - 1)), *map(_cells, results)]
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def _cells(run: Mapping[str, Any]) -> tuple[str, ...]:
    engines, slowest = run["engines"], run["slowest"][0]
    page, gzipped = (run[key] / engines / 1024 for key in ("page_bytes", "gzip_bytes"))
    return (
        run["profile"],
        f"{engines:,}",
        f"{run['exported_series'] / engines:.1f}",
        f"{page:.1f} ({gzipped:.2f})",
        f"{run['head_series']:,}",
        f"{run['memory_bytes'] / 2**30:.2f}",
        f"{run['cpu_cores']:.2f}",
        f"{slowest['name']}, {slowest['seconds'] / slowest['interval_seconds']:.1%}",
    )


if __name__ == "__main__":
    sys.exit(main([int(word) for word in sys.argv[1:]] or SIZES))
