"""`python -m tests.lab.sglang [REGIME...]`: SGLang's regimes, each also with a pool that is no limit.

Recordings go to .cache/lab/sglang, or --out; `--vary SEED` runs them on other servers, as `python -m tests.lab` does. A
row says what was true, what clients got, and what they would have got with the pool without limit: where the pool is
the truth they must get more of it, and nobody else may. Ends with 1 when a run shows something else than it should.
"""

import argparse
import random
import sys
import tomllib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from tests.lab.clock import BEGIN, Clock
from tests.lab.fetch import CACHE, SGLANG, fetch
from tests.lab.record import Played, numbers, write
from tests.lab.regime import Regime, parse
from tests.lab.server import Server
from tests.lab.vary import varied

REGIMES: Final = Path(__file__).with_name("regimes.toml")
GAINED_RATIO: Final = 1.05
"""What clients have to gain without the pool's limit where it is what held them back."""
UNLIMITED_TOKENS: Final = 4_000_000


def regimes() -> dict[str, Regime]:
    """Return every regime of SGLang by name."""
    return {name: parse(name, table) for name, table in tomllib.loads(REGIMES.read_text()).items()}


def without_limit(regime: Regime) -> Regime:
    """Return the same with a pool in which everybody fits."""
    assert regime.sglang is not None
    return replace(regime, sglang=replace(regime.sglang, max_total_tokens=UNLIMITED_TOKENS))


def play(regime: Regime, package: Path, clock: Clock) -> Played:
    """Run it from the beginning of time."""
    clock.now = BEGIN
    random.seed(regime.seed)
    server = Server(regime, package, SGLANG.version, clock)
    return Played(regime, server.book, server.run())


def main() -> int:
    """Run, record, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="regimes, or beginnings of their names; all when none is given")
    parser.add_argument("--vary", type=int, metavar="SEED", help="on other servers than those the regimes describe")
    parser.add_argument("--out", type=Path, default=CACHE / "sglang")
    options = parser.parse_args()
    package, clock = fetch(SGLANG.version), Clock()
    clock.install()
    failed = 0
    for name, regime in regimes().items():
        if options.names and not name.startswith(tuple(options.names)):
            continue
        one = regime if options.vary is None else varied(regime, options.vary)
        given, free = play(one, package, clock), play(without_limit(one), package, clock)
        told = write(one, SGLANG.version, given.book, given.result, options.out / SGLANG.version)
        gained = numbers(free.result, one.seconds)
        told["failed"] = told["failed"] or ("" if options.vary is not None else _contradiction(one, told, gained))
        failed += bool(told["failed"])
        print(_row(one, told, gained), flush=True)
    print(f"{failed} failed")
    return int(failed > 0)


def _gain(told: Mapping[str, Any], free: Mapping[str, Any]) -> float:
    return free["tokens_per_second"] / told["tokens_per_second"] if told["tokens_per_second"] else 0.0


def _contradiction(regime: Regime, told: Mapping[str, Any], free: Mapping[str, Any]) -> str:
    """Return why the counterfactual speaks against what is said to be true, "" where it does not."""
    pressed, gain = regime.expect == "kv_cache_pressure", _gain(told, free)
    waited = (told["first_token_p95"] or 0.0) > GAINED_RATIO * (free["first_token_p95"] or 0.0)
    if pressed != (gain >= GAINED_RATIO or (pressed and waited)):
        return f"{regime.expect}, and tokens x {gain:.2f} without the pool's limit"
    return ""


def _row(regime: Regime, told: Mapping[str, Any], free: Mapping[str, Any]) -> str:
    truth = ", ".join(f"{word} {seconds}" for word, seconds in told["truth"].items())
    first = f"TTFT p95 {told['first_token_p95']} -> {free['first_token_p95']} s"
    gained = (
        f"{told['tokens_per_second']} -> {free['tokens_per_second']} tokens/s, {first}, {told['preempted']} retracted"
    )
    return f"{regime.name:24} {truth}; {gained}{'; FAILED: ' * bool(told['failed'])}{told['failed']}"


if __name__ == "__main__":
    sys.exit(main())
