"""`python -m bench.fleet.expressions PROFILE BUNDLE [ENGINES]`: CPU of every rule, beside those of another bundle.

A Prometheus scrapes a fleet and evaluates this bundle's rules for some minutes. Then it stops scraping and evaluating,
and is asked for each expression of either bundle at that last moment, so that nothing but the expression takes its CPU,
and both are asked for the same series. Not in it: what series cost that rules write, and waiting for a busy CPU.
BUNDLE is a folder of `kvpressure generate --all-alerts --profile PROFILE`, of another commit for instance. Takes ten
minutes, most of them idle.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import sys
import tempfile
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bench.fleet.server import SETTLE_SECONDS, configuration, exporters, started
from kvpressure.config import strict_yaml
from kvpressure.exposition.profile import Profile
from tests.support import built

REPEATS: Final = 7
QUIET_SECONDS: Final = 5.0
CHEAP_SECONDS: Final = 2e-6
"""Of an engine: groups that take less are not told."""


@dataclass(frozen=True, slots=True)
class Rule:
    """One expression, and how often it is evaluated."""

    group: str
    name: str
    expr: str
    interval_seconds: float


def rules(bundle: Path) -> Iterator[Rule]:
    """Every rule of a bundle's files; an alert's name ends in its severity."""
    for path in sorted(bundle.glob("prometheus/*/*.yaml")):
        for group in strict_yaml.load(path.read_text(), path.name).data["groups"]:
            every = float(_seconds(group["interval"]))
            for rule in group["rules"]:
                name = rule.get("record") or f"{rule['alert']} {rule['labels']['severity']}"
                yield Rule(group["name"], name, rule["expr"], every)


def _seconds(duration: str) -> int:
    return int(duration[:-1]) * {"s": 1, "m": 60}[duration[-1]]


async def main(profile: Profile, other: Path, engines: int) -> None:
    """Measure and print, a row per group that costs anything."""
    bundles = {"before": list(rules(other)), "after": list(rules(built.bundle(profile)))}
    with tempfile.TemporaryDirectory(prefix="fleet-") as folder:
        async with exporters(engines, profile) as (port, nodes):
            found = await _measured(Path(folder), configuration(port, nodes, profile), bundles)
    print("\n".join(table(profile, engines, found)))


async def _measured(
    folder: Path, config: Mapping[str, Any], bundles: Mapping[str, Sequence[Rule]]
) -> dict[str, dict[Rule, float]]:
    """CPU seconds of one evaluation, by bundle and rule."""
    async with started(folder, config, "--web.enable-lifecycle") as (url, pid):
        await asyncio.sleep(SETTLE_SECONDS)
        at = time.time()
        (folder / "prometheus.yml").write_text(json.dumps({"global": config["global"]}))
        await asyncio.to_thread(_post, f"{url}/-/reload", b"")
        await asyncio.sleep(QUIET_SECONDS)
        return await asyncio.to_thread(_asked, url, pid, at, bundles)


def _post(url: str, body: bytes) -> None:
    with urllib.request.urlopen(url, body, timeout=300) as answer:
        answer.read()


def _asked(url: str, pid: int, at: float, bundles: Mapping[str, Sequence[Rule]]) -> dict[str, dict[Rule, float]]:
    found: dict[str, dict[Rule, float]] = {name: {} for name in bundles}
    same: dict[str, float] = {}
    for name, wanted in bundles.items():
        for rule in wanted:
            if rule.expr not in same:
                same[rule.expr] = _cpu_seconds(url, pid, at, rule.expr)
            found[name][rule] = same[rule.expr]
    return found


def _cpu_seconds(url: str, pid: int, at: float, expr: str) -> float:
    """Of one evaluation, the middle one of several: some of them pay for everybody's garbage."""
    body = urllib.parse.urlencode({"query": expr, "time": f"{at:.3f}"}).encode()
    found = []
    for _ in range(REPEATS):
        before = _used_seconds(pid)
        _post(f"{url}/api/v1/query", body)
        found.append(_used_seconds(pid) - before)
    return statistics.median(found)


def _used_seconds(pid: int) -> float:
    """Of all threads, as the scheduler counts them."""
    return sum(int(task.read_text().split()[0]) for task in Path(f"/proc/{pid}/task").glob("*/schedstat")) / 1e9


def table(profile: Profile, engines: int, found: Mapping[str, Mapping[Rule, float]]) -> Iterator[str]:
    """Lines: the cores of all, then groups that cost anything, the costliest first, each with its rules."""

    def cost(told: Mapping[Rule, float], group: str) -> float:
        return sum(seconds for rule, seconds in told.items() if rule.group == group)

    def most(group: str) -> float:
        return max(cost(told, group) for told in found.values())

    cores = [sum(seconds / rule.interval_seconds for rule, seconds in told.items()) for told in found.values()]
    yield f"{profile.value}: {engines} engines; CPU ms of one evaluation, {' and '.join(found)}"
    yield f"  {'all groups, cores':<75} {' '.join(f'{one:9.4f}' for one in cores)}"
    for group in sorted({rule.group for told in found.values() for rule in told}, key=most, reverse=True):
        if most(group) < engines * CHEAP_SECONDS:
            continue
        yield f"  {group:<75} {_row(*(cost(told, group) for told in found.values()))}"
        for name in dict.fromkeys(rule.name for told in found.values() for rule in told if rule.group == group):
            costs = [[s for r, s in told.items() if (r.group, r.name) == (group, name)] for told in found.values()]
            yield f"    {name:<73} {_row(*(sum(one) if one else None for one in costs))}"


def _row(*costs: float | None) -> str:
    return " ".join(f"{1000 * one:9.1f}" if one is not None else f"{'-':>9}" for one in costs)


if __name__ == "__main__":
    asyncio.run(main(Profile(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]) if sys.argv[3:] else 1_000))
