"""`python -m tests.lab.changed VERSION FOLDER < WISHES`: regimes run with something changed, and what clients got.

Regimes are those of the lab and of FOLDER. A wish is a line of JSON: the regime's `name`, `flags` and `edge` to be
replaced, `shared` (that many servers share its clients, of which one is run), `long_last` (prompts beyond so many
tokens go last; may be missing), `seconds`, `warm` (seconds that do not count) and `record` (a folder, or null). A line
of JSON answers each: tokens a second, latencies of whole answers, and of those that the edge cut.
"""

from __future__ import annotations

import itertools
import json
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from tests.lab.fetch import package
from tests.lab.record import write
from tests.lab.regime import Edge, Regime, changed, regimes
from tests.lab.worker import found, prepare
from tests.lab.world import Result

GENERATED: Final = re.compile(r"^vllm:generation_tokens_total\{[^}]*\} ([0-9.e+]+)$", re.MULTILINE)


def main(arguments: Sequence[str]) -> int:
    """Run what is wished for, one after the other."""
    version, folder = arguments
    clock = prepare(package(version))
    known = regimes() | regimes(Path(folder))
    for line in sys.stdin:
        wish = json.loads(line)
        print(json.dumps({"id": wish["id"], **_run(found(known, wish["name"]), wish, version, clock)}), flush=True)
    return 0


def shared(regime: Regime, servers: int) -> Regime:
    """What one of so many servers gets of the clients."""
    loads = (
        replace(one, clients=max(1, round(one.clients / servers)) if one.clients else 0, rate=one.rate / servers)
        for one in regime.load
    )
    return replace(regime, load=tuple(loads))


def long_last(regime: Regime, tokens: float) -> Regime:
    """Requests with longer prompts say so, and go last."""
    loads = (replace(one, last_beyond=int(tokens)) for one in regime.load)
    return replace(changed(regime, scheduling_policy="priority"), load=tuple(loads))


def _run(regime: Regime, wish: Mapping[str, Any], version: str, clock: Any) -> dict[str, Any]:
    from tests.lab.clock import BEGIN  # noqa: PLC0415 - vLLM's names come after the stand-ins
    from tests.lab.server import Server  # noqa: PLC0415

    made = replace(shared(changed(regime, **wish["flags"]), wish["shared"]), edge=Edge(**wish["edge"]))
    made = replace(made, seconds=wish["seconds"], expect="")
    if wish.get("long_last"):
        made = long_last(made, wish["long_last"])
    clock.now = BEGIN
    server = Server(made, package(version), version, clock)
    result = server.run()
    if wish["record"]:
        write(made, version, server.book, result, Path(wish["record"]))
    return _told(result, BEGIN + wish["warm"])


def _told(result: Result, since: float) -> dict[str, Any]:
    pages = [page for page in result.pages if page.t >= since]
    tokens = [sum(map(float, GENERATED.findall(page.text))) for page in pages]
    grown = sum(max(0.0, after - before) for before, after in itertools.pairwise(tokens))
    ended = [one for one in result.answers if one.t >= since]
    whole = [round(one.seconds, 3) for one in ended if one.ok and not one.cut]
    return {
        "tokens_per_second": grown / (pages[-1].t - pages[0].t),
        "seconds": pages[-1].t - since,
        "latencies": whole,
        "cut": [round(one.seconds, 3) for one in ended if one.ok and one.cut],
        "refused": sum(not one.ok for one in ended),
        "preempted": result.preempted,
    }


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
