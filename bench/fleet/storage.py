"""What a sample takes on disk: recordings as an exporter would have told them, in a block that promtool writes."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kvpressure.config.thresholds import load_thresholds
from kvpressure.engine_state import Pipeline, PipelineSettings
from kvpressure.engines.reader import PageReader
from kvpressure.engines.recordings import TraceLine, read_trace
from kvpressure.exposition import Snapshot, text
from kvpressure.exposition.profile import Profile
from tests.support.snapshots import FakeTarget
from tests.support.tools import FIXTURES

STEP_SECONDS: Final = 15.0
HOURS: Final = 2
"""As long as a block of Prometheus is; a recording is told over and over until then."""
START: Final = 1_700_006_400.0
_SAMPLE: Final = re.compile(r"^([a-zA-Z_:]\w*(?:\{.*\})?) (\S+)$")


@dataclass(frozen=True, slots=True)
class Stored:
    """A block: its samples, and its bytes, index included."""

    samples: int
    bytes: int

    @property
    def bytes_per_sample(self) -> float:
        """On disk."""
        return self.bytes / self.samples


def stored(profile: Profile) -> Stored:
    """Every recording of the fixtures as one engine's series, for as long as a block."""
    with tempfile.TemporaryDirectory(prefix="fleet-") as folder:
        lines = Path(folder) / "samples.om"
        count = _write(lines, profile)
        data = Path(folder) / "data"
        command = ["promtool", "tsdb", "create-blocks-from", "openmetrics", "-q", str(lines), str(data)]
        subprocess.run(command, check=True)
        return Stored(count, sum(path.stat().st_size for path in data.rglob("*") if path.is_file()))


def _write(path: Path, profile: Profile) -> int:
    """Samples of one name come together, as OpenMetrics asks; gives how many."""
    by_name: dict[str, list[tuple[float, str]]] = {}
    for trace in sorted((FIXTURES / "traces").glob("*.jsonl.xz")):
        for series, value, t in _samples(trace, profile):
            by_name.setdefault(series.partition("{")[0], []).append((t, f"{series} {value} {t:.3f}\n"))
    with path.open("w") as file:
        for rows in by_name.values():
            file.writelines(line for _, line in sorted(rows))
        file.write("# EOF\n")
    return sum(map(len, by_name.values()))


def _samples(trace: Path, profile: Profile) -> Iterator[tuple[str, str, float]]:
    """Series, value and time of every scrape. Only what is said of engines: the rest is a few series of a node."""
    polls = [line for line in read_trace(trace) if isinstance(line, TraceLine)]
    length = polls[-1].t - polls[0].t + 1.0
    pipeline, reader = Pipeline(PipelineSettings(), load_thresholds()), PageReader()
    target, scraped = FakeTarget(name=trace.name.partition(".")[0], gpus=()), 0.0
    for poll in polls:
        views = pipeline.on_page(target, reader.read(poll.page, poll.t))
        since = poll.t - polls[0].t
        if since < scraped:
            continue
        scraped += STEP_SECONDS
        page = text.render(Snapshot(poll.t, tuple(views), profile=profile), openmetrics=False).decode()
        found = [match.groups() for line in page.splitlines() if (match := _SAMPLE.match(line))]
        for again in range(int(HOURS * 3600 // length)):
            t = START + again * length + since
            yield from ((series, value, t) for series, value in found)
