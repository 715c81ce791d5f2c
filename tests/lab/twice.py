"""`python -m tests.lab.twice REGIME...`: a regime with the pool it has, or others, and with a pool without limit.

What differs between the two runs is what the pool's size costs its clients. A row for each run: prompt tokens found of
those asked for, tokens generated a second, mean TTFT, requests that run and wait, usage, the share of computed prompt
tokens that had been evicted before, the share of the time that this takes, and a block's age at eviction between its
two bounds. Regimes are those of the lab, those of the working set (with `~SEED` as another seed has them), and `trace`
with a share of the sessions of a recorded production chat.

    python -m tests.lab.twice workingset-calm-060
    python -m tests.lab.twice workingset-table --seconds 600 --pool 160000 320000 480000 640000 800000 960000
    python -m tests.lab.twice trace --share 0.2 --pool 400000 --seconds 900
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

from tests.lab import working_set
from tests.lab.fetch import NEWEST, VERSIONS, fetch
from tests.lab.record import cache_numbers
from tests.lab.regime import Regime, regimes
from tests.lab.worker import play, prepare

COLUMNS: Final = {
    "pool": "pool",
    "hits": "hits",
    "tokens_per_second": "tokens/s",
    "first_token_mean": "TTFT s",
    "running": "running",
    "waiting": "waiting",
    "usage": "usage",
    "again_ratio": "again",
    "again_work": "of time",
    "age_least": "age >=",
    "age": "age s",
    "turnover": "<= turnover",
}
POOL: Final = 400_000


def main() -> int:
    """Run, print; 1 when a run contradicts itself."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="+", metavar="REGIME")
    parser.add_argument("--pool", type=int, nargs="+", metavar="TOKENS", help="instead of the regime's own")
    parser.add_argument("--share", type=float, default=0.2, help="of the sessions of the trace")
    parser.add_argument("--seed", type=int, help="of the clients")
    parser.add_argument("--seconds", type=int)
    parser.add_argument("--version", choices=VERSIONS, default=NEWEST)
    parser.add_argument("--json", action="store_true", help="a line of JSON for each run")
    options = parser.parse_args()
    chosen = [_changed(_found(name, options.share), options) for name in options.names]
    clock = prepare(fetch(options.version))
    wrong = 0
    for regime in chosen:
        if not options.json:
            print(f"\n{regime.name}: {regime.about}\n| {' | '.join(COLUMNS.values())} |\n|{' --: |' * len(COLUMNS)}")
        for run in _runs(regime, options.pool):
            played = play(run, options.version, clock)
            wrong += len(played.result.checks)
            told = cache_numbers(played)
            print(json.dumps({"regime": regime.name, **told}) if options.json else _row(told), flush=True)
    return int(wrong > 0)


def _found(name: str, share: float) -> Regime:
    if name == "trace":
        return working_set.trace(share, POOL)
    found = working_set.find(name) or regimes().get(name)
    if found is None:
        raise SystemExit(f"there is no regime {name}")
    return found


def _changed(regime: Regime, options: argparse.Namespace) -> Regime:
    seed = regime.seed if options.seed is None else options.seed
    return replace(regime, seconds=options.seconds or regime.seconds, seed=seed, expect="")


def _runs(regime: Regime, pools: list[int] | None) -> Iterator[Regime]:
    if pools is None:
        yield regime
    for pool in pools or ():
        yield replace(regime, flags=working_set.with_pool(regime.flags, pool))
    yield working_set.without_limit(regime)


def _row(told: Mapping[str, Any]) -> str:
    return f"| {' | '.join('-' if told[name] is None else f'{told[name]:,}' for name in COLUMNS)} |"


if __name__ == "__main__":
    sys.exit(main())
