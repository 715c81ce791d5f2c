"""Every source of a real exporter means harm at the same time; `python -m bench.bench_hostile` prints the figures.

`ATTACK_SECONDS=60` attacks for a minute instead of some seconds.
"""

import os
import sys
from pathlib import Path

import pytest

from bench.bench_hostile import BAR_MIB, measured

SECONDS = float(os.environ.get("ATTACK_SECONDS", "8"))


@pytest.mark.fault(
    "sixty-four publishers of KV events, a gateway, GPUs, logs, the API server's watch and web clients flood at once",
    "one budget of CPU holds for all of them: a good engine is polled, memory stays below the chart's limit, and what "
    "is dropped is counted",
)
@pytest.mark.process
async def test_all_sources_together_leave_the_polls_their_time(tmp_path: Path) -> None:
    found = await measured(tmp_path, SECONDS, attacked=True)
    sys.stdout.write(f"{found}\n")
    assert found["polls"] >= SECONDS / 2, "it was two polls in 24 seconds"
    assert found["mib"] < BAR_MIB, "it was 917 MiB and more"
    assert found["skipped"] > 0
    assert found["cpu"] < 1.0
