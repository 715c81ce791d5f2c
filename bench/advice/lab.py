"""Runs of the lab for this benchmark: a few processes, each of which takes wishes one after the other."""

from __future__ import annotations

import itertools
import json
import statistics
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, TextIO

from bench.scaling.worker import answers

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
    """Every wish by its id; those that the file `kept` has already are not run again.

    Raises RuntimeError where a process ends in between.
    """
    kept.parent.mkdir(parents=True, exist_ok=True)
    told = {_key(one["wish"]): one["told"] for one in _lines(kept)}
    # Recordings are read afterwards: they have to be those of this run.
    left = [wish for wish in wishes if wish["record"] or _key(wish) not in told]
    with kept.open("a") as file, ThreadPoolExecutor(workers) as pool:
        parts = [left[number::workers] for number in range(workers)]
        for wish, answer in itertools.chain(*pool.map(partial(_process, file), [part for part in parts if part])):
            told[_key(wish)] = answer
    return {wish["id"]: _ran(told[_key(wish)], wish["shared"]) for wish in wishes}


def _lines(kept: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in kept.read_text().splitlines()] if kept.exists() else []


def _key(wish: dict[str, Any]) -> str:
    return json.dumps({name: value for name, value in wish.items() if name != "record"}, sort_keys=True)


def _process(file: TextIO, wishes: Sequence[dict[str, Any]]) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """One process; each answer is kept as it comes."""
    found = []
    for wish, answer in zip(wishes, answers("tests.lab.changed", wishes), strict=True):
        found.append((wish, answer))
        file.write(json.dumps({"wish": wish, "told": answer}) + "\n")
        file.flush()
    return found


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
