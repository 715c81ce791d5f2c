"""A document of a look back, made from a recording without a Prometheus."""

from functools import cache
from typing import Any

from kvpressure.config.thresholds import load_thresholds
from kvpressure.engines.reader import PageReader
from kvpressure.engines.recordings import TraceLine, read_trace
from kvpressure.model.schemas.incidents import VERSION
from kvpressure.prometheus.client import Server
from kvpressure.prometheus.names import Discovered, Target
from kvpressure_incidents.follow import Follower, Task
from tests.support.tools import FIXTURES

TARGET = Target((("instance", "llm:8000"), ("namespace", "prod"), ("pod", "llm-0")))


@cache
def incidents(trace: str = "ramp-into-pressure", step: float = 15.0) -> tuple[dict[str, Any], ...]:
    """The incidents of a recording that is scraped every `step` seconds."""
    thresholds = load_thresholds()
    task = Task(Server("http://none"), Discovered(TARGET, "vllm", step), (), None, (thresholds,), 120.0)
    follower, reader, due = Follower(task, step, thresholds), PageReader(), 0.0
    for line in read_trace(FIXTURES / "traces" / f"{trace}.jsonl.xz"):
        assert isinstance(line, TraceLine)
        if line.t >= due:
            due = line.t + 0.99 * step
            follower.page(reader.read(line.page, line.t))
    follower.stretch_ends(last=True)
    return tuple(follower.incidents())


def document(**changes: Any) -> dict[str, Any]:
    """A whole document; `changes` are to its one incident."""
    (one,) = incidents()
    return {
        "schema_version": VERSION,
        "kind": "incidents",
        "kvpressure": "0",
        "prometheus": "http://prometheus:9090",
        "selector": "",
        "since": one["began"] - 3600,
        "until": one["began"] + 3600,
        "thresholds": "0" * 12,
        "shortest_seconds": 120.0,
        "targets": 1,
        "targets_read": 1,
        "seconds_read": 3600.0,
        "samples_read": 240,
        "incidents": [{**one, **changes}],
        "exporter_alone": [],
        "backtest": None,
        "has_rules": False,
        "unjudged": [],
        "unread": [],
        "warnings": [],
    }
