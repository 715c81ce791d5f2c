"""A log that floods: what it costs is bounded, what it reports is counted all the same."""

import pytest

from kvpressure.model.environment import ContainerId
from kvpressure.sources.logs import follower as follower_module
from kvpressure.sources.logs.follower import Follower
from kvpressure.sources.logs.live import READ_BYTES
from kvpressure.sources.logs.tally import MAX_LINES, Tally

STAMP = b"2026-01-01T00:00:00.000000000Z stderr"
OOM = b"torch.OutOfMemoryError: CUDA out of memory\n"
POD = ContainerId("ns", "vllm-0", "vllm")


class Flood:
    """Gives the same block, four times at each read, as a budget of 1 MiB does."""

    def __init__(self, block: bytes) -> None:
        self.block = block

    def read(self, budget: int, sink: Follower) -> None:
        for _ in range(4):
            sink.data(self.block, old=False)

    def close(self) -> None:
        """Nothing is open."""


@pytest.mark.parametrize(
    "line",
    [
        b"nccl\n",
        STAMP + b" F " + OOM,
        STAMP + b" P torch.OutOfMemory\n" + STAMP + b" F Error: CUDA out of memory\n",
    ],
)
def test_a_flood_of_telling_lines_is_counted_in_incidents_and_looked_at_in_part(
    monkeypatch: pytest.MonkeyPatch, line: bytes
):
    looked: list[bool] = []
    real = Tally.take

    def counting(*args: object, **options: object) -> bool:
        looked.append(real(*args, **options))  # type: ignore[arg-type]
        return looked[-1]

    monkeypatch.setattr(follower_module.Tally, "take", counting)
    flooded = Follower(POD, Flood(line * (READ_BYTES // len(line))), 0.0)
    flooded.read(READ_BYTES * 4, 1_800_000_000.0)
    assert sum(looked) <= MAX_LINES
    report = flooded.report()
    assert report.counts["device_oom"] == (0 if line == b"nccl\n" else 1)
    looked.clear()
    flooded.read(READ_BYTES * 4, 1_800_000_001.0)
    assert looked, "the next second is looked at again"


def test_a_flood_of_one_wording_hides_no_other():
    block = b"nccl error\n" * 5000 + OOM
    flooded = Follower(POD, Flood(block), 0.0)
    flooded.read(READ_BYTES * 4, 1_800_000_000.0)
    report = flooded.report()
    assert report.counts["device_oom"] == 1
