import asyncio
import json

import pytest

from tests.support.commands import TRACES, kvpressure, serving
from tests.support.processes import free_port

pytestmark = pytest.mark.e2e

SECONDS = "12"


async def test_a_live_engine_is_simulated_with_other_flags_drawn_and_searched(tmp_path):
    picture = tmp_path / "load.svg"
    changes = ("--set", "max-num-seqs=64", "--set", "replicas=2")
    async with serving("sequence-cap-queue") as live, serving("sequence-cap-queue") as again:
        compared, searched, refused = await asyncio.gather(
            kvpressure("whatif", live.url, "--duration", SECONDS, *changes, "--picture", picture),
            kvpressure("whatif", again.url, "--duration", SECONDS, "--search", "--slo-p95-seconds", "0.4", "--json"),
            kvpressure("whatif", f"http://127.0.0.1:{free_port()}"),
        )
    assert compared[0] == 0, compared
    for words in ("clients that wait for their answers", "max-num-seqs 64", "replicas 2", "goodput/s"):
        assert words in compared[1]
    assert ">max-num-seqs 64, replicas 2<" in picture.read_text()
    assert searched[0] == 0, searched
    best = json.loads(searched[1])["search"]["best"]
    # 32 run at most, 30 more wait: whoever looks for the best limits finds that one.
    assert int(best["set"]["max-num-seqs"]) > 32
    assert refused[0] == 2
    assert "connection refused by" in refused[2]


async def test_a_recording_of_ours_is_simulated_as_it_was_recorded(tmp_path):
    recording = tmp_path / "incident.jsonl.xz"
    async with serving("preemption-thrash") as live:
        recorded = await kvpressure("record", live.url, "-o", recording, "--duration", SECONDS)
    assert recorded[0] == 0, recorded
    code, out, err = await kvpressure("whatif", "--trace", recording, "--set", "max-input-tokens=1000", "--json")
    assert code == 0, err
    today, capped = json.loads(out)["rows"]
    assert today["figures"]["tokens_per_second"]["value"] > 0
    assert capped["set"] == {"max-input-tokens": "1000"}
    shown = await kvpressure("whatif", "--trace", TRACES / "preemption-thrash.jsonl.xz")
    assert shown[0] == 0
