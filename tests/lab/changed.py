"""Regimes run with something changed, and what clients got: wishes for `bench.scaling.worker`.

Regimes are those of the lab and of `bench/advice/regimes`. A wish has the regime's `name`, `flags` and `edge` to be
replaced, `shared` (that many servers share its clients, of which one is run), `long_last` (prompts beyond so many
tokens go last; may be missing), `card` (another card's table; may be missing), `seconds`, `warm` (seconds that do not
count) and `record` (a folder, or null). The answer: tokens a second, latencies of whole answers, and of those that the
edge cut.
"""

import itertools
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from tests.lab.fetch import NEWEST, package
from tests.lab.record import write
from tests.lab.regime import Card, Edge, Regime, changed, regimes
from tests.lab.worker import found
from tests.lab.world import Result

GENERATED: Final = re.compile(r"^vllm:generation_tokens_total\{[^}]*\} ([0-9.e+]+)$", re.MULTILINE)
REGIMES: Final = Path(__file__).parents[2] / "bench" / "advice" / "regimes"
"""Beside those of the lab: what only advice is about."""


def answer(wish: Mapping[str, Any], clock: Any) -> dict[str, Any]:
    """Return what clients got of one wish."""
    known = regimes() | regimes(REGIMES)
    return {"id": wish["id"], **_run(found(known, wish["name"]), wish, NEWEST, clock)}


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
    if wish.get("card"):
        made = replace(made, card=Card(table=wish["card"]))
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
