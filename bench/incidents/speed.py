"""`python -m bench.incidents.speed FOLDER`: a look back at what `bench.incidents.month` made, timed and judged."""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Final

from bench.incidents.month import DAY, START
from tests.support.past import prometheus

LATE_SECONDS: Final = 120.0


def main() -> None:
    """Look, and print what it took and what was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--days", type=int, default=30)
    parser.add_argument("--workers", default="2")
    options = parser.parse_args()
    out = options.folder / "found.json"
    with prometheus(options.folder, options.folder / "data") as url, out.open("w") as file:
        end = START + options.days * DAY
        command = [sys.executable, "-m", "kvpressure", "incidents", "--prometheus", url, "--json"]
        command += ["--since", f"{START:.0f}", "--until", f"{end:.0f}", "--workers", options.workers]
        began, most = time.monotonic(), 0
        with subprocess.Popen(command, stdout=file) as process:
            while process.poll() is None:
                most = max(most, _resident(process.pid))
                time.sleep(0.2)
        took, used = time.monotonic() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    whole = resource.getrusage(resource.RUSAGE_CHILDREN)
    document = json.loads(out.read_text())
    truth = json.loads((options.folder / "truth.json").read_text())
    _judge(document, [one for one in truth if one["ended"] < end])
    own, all_ = used.ru_utime + used.ru_stime, whole.ru_utime + whole.ru_stime
    print(f"CPU: {own:.0f} s here, {all_ - own:.0f} s of the Prometheus (its start and its own upkeep included)")
    print(f"{took:.0f} s, at most {most / 1024:.0f} MiB resident in all processes together")
    hours = document["seconds_read"] / 3600
    print(f"{document['targets']} targets, {hours:.0f} h read, {document['samples_read']} samples")


def _resident(pid: int) -> int:
    """KiB of a process and its children."""
    children = Path(f"/proc/{pid}/task/{pid}/children")
    try:
        below = sum(_resident(int(child)) for child in children.read_text().split())
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    return below + sum(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS"))


def _judge(document: Any, truth: Any) -> None:
    found = right = 0
    met: set[int] = set()
    for one in truth:
        mine = [
            incident
            for incident in document["incidents"]
            if incident["pod"] == one["pod"]
            and incident["began"] < one["ended"] + LATE_SECONDS
            and incident["began"] + incident["seconds"] > one["began"]
        ]
        met.update(map(id, mine))
        found += bool(mine)
        right += any(incident["cause"] == one["cause"] for incident in mine)
        if not mine:
            print("missed", one)
    invented = [one for one in document["incidents"] if id(one) not in met]
    for one in invented:
        print("invented", one["pod"], one["cause"], one["began"] - START, one["seconds"])
    print(f"{len(truth)} true incidents, {found} found, {right} with the right cause, {len(invented)} invented")


if __name__ == "__main__":
    main()
