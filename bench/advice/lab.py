"""Runs of the lab for this benchmark, and what clients got."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bench.scaling.worker import kept_answers

WORKERS: Final = 2


@dataclass(frozen=True, slots=True)
class Ran:
    """What the clients of all servers got. Latencies of whole answers in seconds, sorted."""

    tokens_per_second: float
    seconds: float
    latencies: tuple[float, ...]
    cut: int
    refused: int
    preempted: int
    servers: int = 1

    def goodput(self, limit_seconds: float) -> float:
        """Whole answers a second within the limit."""
        return self.servers * sum(one <= limit_seconds for one in self.latencies) / self.seconds

    @property
    def latency_p95(self) -> float | None:
        """Of whole answers; None without any."""
        if len(self.latencies) < 2:
            return self.latencies[0] if self.latencies else None
        return statistics.quantiles(self.latencies, n=20, method="inclusive")[18]


def run(wishes: Sequence[dict[str, Any]], kept: Path, *, workers: int = WORKERS) -> dict[str, Ran]:
    """Every wish by its id; those that the file `kept` has already are not run again."""
    told = kept_answers("tests.lab.changed", wishes, kept, workers=workers)
    return {wish["id"]: _ran(answer, wish["shared"]) for wish, answer in zip(wishes, told, strict=True)}


def _ran(told: dict[str, Any], servers: int) -> Ran:
    return Ran(
        told["tokens_per_second"] * servers,
        told["seconds"],
        tuple(sorted(told["latencies"])),
        len(told["cut"]) * servers,
        told["refused"] * servers,
        told["preempted"] * servers,
        servers,
    )
