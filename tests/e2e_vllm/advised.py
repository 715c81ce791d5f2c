"""`python -m tests.e2e_vllm.advised`: a real vLLM under KV pressure, what `triage --advice` prints done, measured.

Flags are replaced and vLLM is started anew; a cap on prompts keeps the clients away whose prompts are longer, as a
gateway would; of N replicas one is run, with its share of the clients. KV in 8 bits, which vLLM does not have on CPUs,
is a pool of twice as many blocks. Figures are of `MEASURED_SECONDS` after `WARM_SECONDS`.
"""

import argparse
import asyncio
import contextlib
import json
import re
import statistics
import sys
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from kvpressure.cli.say import say
from tests.e2e_vllm import servers
from tests.e2e_vllm.environment import CACHE, Environment, prepare
from tests.e2e_vllm.load import Load, Tally, driving
from tests.e2e_vllm.run import kvpressure
from tests.e2e_vllm.scenario import GENERATES, Scenario
from tests.support.processes import free_port, get

WARM_SECONDS: Final = 60.0
MEASURED_SECONDS: Final = 120.0
KNOWN: Final = ("--duration", "30", "--limit", "max-num-seqs=32")
BLOCKS: Final = "--num-gpu-blocks-override"
GENERATED: Final = re.compile(r"^vllm:generation_tokens_total\{[^}]*\} ([0-9.e+]+)$", re.MULTILINE)
GOODPUT_LOSS_MAX_RATIO: Final = 0.03
TOKENS_OFF_MAX_RATIO: Final = 0.15
"""Of the tokens/s that came, by which the prediction may be off."""

SITUATIONS: Final[Mapping[str, tuple[Load, ...]]] = {
    "collapse": (Load(12, 3000, 1000),),
    "two kinds of prompts": (Load(16, 200, 150), Load(6, 3200, 250)),
    "long answers": (Load(24, 100, 900),),
}


@dataclass(frozen=True, slots=True)
class Done:
    """What was printed, as it is done: flags by name, caps in tokens, replicas in all."""

    flags: Mapping[str, str] = field(default_factory=dict)
    cap_prompt: int | None = None
    cap_output: int | None = None
    replicas: int = 1

    def flags_of(self, before: Sequence[str]) -> tuple[str, ...]:
        """The command's flags with these in their place, or behind."""
        kept = list(before)
        for flag, value in self.flags.items():
            if flag in kept:
                kept[kept.index(flag) + 1] = value
            else:
                kept += [flag, value]
        return tuple(kept)

    def loads_of(self, loads: Sequence[Load]) -> tuple[Load, ...]:
        """Who is left for one replica. Prompts vary down to 85 % of a load's length; all of a load or none are kept."""
        kept = [load for load in loads if self.cap_prompt is None or load.prompt_tokens <= self.cap_prompt]
        short = [
            replace(one, output_tokens=min(one.output_tokens, self.cap_output or one.output_tokens)) for one in kept
        ]
        return tuple(replace(one, clients=max(1, round(one.clients / self.replicas))) for one in short)


@dataclass(frozen=True, slots=True)
class Got:
    """What the clients of one server got: tokens/s by its page, p95 of answers in seconds, whole answers in time."""

    tokens_per_second: float
    latency_p95: float
    ended: Sequence[float]

    def goodput(self, limit_seconds: float) -> float:
        """Answers a second within the limit."""
        return sum(one <= limit_seconds for one in self.ended) / MEASURED_SECONDS


def done(actions: Sequence[Mapping[str, Any]]) -> Done:
    """The printed actions as they are done. Raises RuntimeError for one that this run does not know how to do."""
    flags: dict[str, str] = {}
    made: dict[str, int] = {}
    for action in actions:
        key, new = action["key"], action["new"] or ""
        if key == "kv_cache_dtype":
            flags[BLOCKS] = str(2 * int(GENERATES[GENERATES.index(BLOCKS) + 1]))
        elif key in ("cap_tokens", "cap_prompt"):
            made["cap_prompt"] = _number(new)
        elif key == "cap_output":
            made["cap_output"] = _number(new)
        elif key == "add_replica":
            made["replicas"] = _number(new) if new else 2
        elif action["flags"] and key != "apply":
            flags |= action["flags"]
    return Done(flags, **made)


def _number(text: str) -> int:
    found = re.search(r"[\d,]+", text)
    if found is None:
        raise RuntimeError(f"no number in what was printed: {text!r}")
    return int(found.group().replace(",", ""))


async def measured(
    environment: Environment, flags: Sequence[str], loads: Sequence[Load], folder: Path, name: str
) -> Any:
    """What clients get of a server with these flags; and what `triage` prints of it meanwhile, advice and all."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    scenario = Scenario(name, (), flags=tuple(flags))
    async with servers.vllm(environment, scenario, port, folder / f"vllm-{name}.log"), _driven(url, loads) as tallies:
        await asyncio.sleep(WARM_SECONDS)
        began, before = time.monotonic(), _tokens(await get(f"{url}/metrics"))
        advice = asyncio.create_task(kvpressure("triage", "--advice", url, *KNOWN, "--json"))
        await asyncio.sleep(MEASURED_SECONDS)
        after, seconds = _tokens(await get(f"{url}/metrics")), time.monotonic() - began
        _, said = await advice
    ended = [took for tally in tallies for at, took in tally.seconds if at >= began]
    p95 = statistics.quantiles(ended, n=20, method="inclusive")[18] if len(ended) > 1 else float("nan")
    return Got((after - before) / seconds, p95, ended), json.loads(said)["engines"][0]


@contextlib.asynccontextmanager
async def _driven(url: str, loads: Sequence[Load]) -> AsyncIterator[list[Tally]]:
    async with contextlib.AsyncExitStack() as stack:
        yield [await stack.enter_async_context(driving(url, load, seed=number)) for number, load in enumerate(loads)]


def _tokens(page: str) -> float:
    return sum(map(float, GENERATED.findall(page)))


def judged(name: str, before: Got, after: Got, told: Mapping[str, Any], did: Done, then: str) -> tuple[list[str], bool]:
    """Lines for people, and whether what was printed lost nothing."""
    expected = next(
        (one["expected"] for one in reversed(told["actions"]) if one["key"] == "verify" and one["expected"]), None
    ) or next((one["expected"] for one in told["actions"] if one["expected"]), None)
    limit = expected["limit_seconds"] if expected else float("inf")
    tokens = did.replicas * after.tokens_per_second
    goodput = before.goodput(limit), did.replicas * after.goodput(limit)
    held = bool(did.flags or did.cap_prompt or did.cap_output or did.replicas > 1) and goodput[1] >= goodput[0] * (
        1 - GOODPUT_LOSS_MAX_RATIO
    )
    shift = expected["tokens_per_second"] if expected else None
    off = abs(shift["after"] / tokens - 1) if shift else float("inf")
    inside = shift is not None and shift["low"] <= tokens <= shift["high"]
    close = off <= TOKENS_OFF_MAX_RATIO
    lines = [
        f"{name}: {told['cause']}; done: {did}",
        f"  tokens/s {before.tokens_per_second:.0f} -> {tokens:.0f}; {then}",
        f"  p95 {before.latency_p95:.1f} -> {after.latency_p95:.1f} s",
        f"  answers a second within {limit:.0f} s {goodput[0]:.2f} -> {goodput[1]:.2f}",
        f"  expected: {expected['text'] if expected else 'nothing could be predicted'}",
        f"{'ok    ' if held else 'MISSED'} {name}: something was advised, and goodput does not fall by more than 3 %",
        f"{'ok    ' if close else 'MISSED'} {name}: tokens/s predicted within 15 %: {off:.0%} off, in range: {inside}",
    ]
    return lines, held and close


async def live(environment: Environment, name: str, folder: Path) -> bool:
    """One situation from its pressure to what came of the advice."""
    loads = SITUATIONS[name]
    before, told = await measured(environment, GENERATES, loads, folder, "before")
    (folder / "advice.json").write_text(json.dumps(told, indent=1))
    did = done(told["actions"])
    after, then = await measured(environment, did.flags_of(GENERATES), did.loads_of(loads), folder, "after")
    lines, held = judged(name, before, after, told, did, f"then {then['cause']}")
    say(*lines)
    return held


def main() -> int:
    """Every situation, or those of `--situation`."""
    parser = argparse.ArgumentParser(prog="python -m tests.e2e_vllm.advised", description=__doc__)
    parser.add_argument("--situation", action="append", choices=SITUATIONS)
    given = parser.parse_args()
    environment = prepare(say)
    held = True
    for name in given.situation or SITUATIONS:
        folder = CACHE / "run" / "advised" / name.replace(" ", "-")
        folder.mkdir(parents=True, exist_ok=True)
        held &= asyncio.run(asyncio.wait_for(live(environment, name, folder), 1200))
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
