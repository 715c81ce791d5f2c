"""Calm for four minutes, then five of trouble: loads that the pool held, and others beside or after them.

Each is a regime of the lab, in no file of it, that `bench.scaling.worker` runs and records.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from tests.lab.fetch import NEWEST
from tests.lab.record import write
from tests.lab.regime import parse
from tests.lab.worker import play

CALM_SECONDS: Final = 240
SECONDS: Final = 540

_LATE: Final = {"begin": CALM_SECONDS}

SITUATIONS: Final[Mapping[str, Mapping[str, Any]]] = {
    "more of the same": {
        "flags": {"num_gpu_blocks": 512},
        "load": [
            {"clients": 6, "prompt": [800, 900], "output": [300, 350]},
            {"clients": 14, "prompt": [800, 900], "output": [300, 350], **_LATE},
        ],
    },
    "a few more than fit": {
        "flags": {"num_gpu_blocks": 512},
        "load": [
            {"clients": 6, "prompt": [800, 900], "output": [300, 350]},
            {"clients": 4, "prompt": [800, 900], "output": [300, 350], **_LATE},
        ],
    },
    "long contexts come": {
        "flags": {"num_gpu_blocks": 1024},
        "load": [
            {"clients": 16, "prompt": [200, 300], "output": [150, 200]},
            {"clients": 12, "prompt": [2500, 3000], "output": [850, 1000], **_LATE},
        ],
    },
    "long answers come": {
        "flags": {"num_gpu_blocks": 1024},
        "load": [
            {"clients": 16, "prompt": [200, 300], "output": [150, 200]},
            {"clients": 24, "prompt": [200, 300], "output": [1500, 2000], **_LATE},
        ],
    },
    "long prompts, short answers come": {
        "flags": {"num_gpu_blocks": 1024},
        "load": [
            {"clients": 16, "prompt": [200, 300], "output": [150, 200]},
            {"clients": 16, "prompt": [3000, 4000], "output": [20, 40], **_LATE},
        ],
    },
    "a rate that grows": {
        "flags": {"num_gpu_blocks": 768},
        "load": [
            {"rate": 0.8, "prompt": [800, 900], "output": [300, 350]},
            {"rate": 1.6, "prompt": [800, 900], "output": [300, 350], **_LATE},
        ],
    },
    "a rate with a longer tail": {
        "flags": {"num_gpu_blocks": 1024},
        "load": [
            {"rate": 3.0, "prompt": [200, 300], "output": [150, 200]},
            {"rate": 0.6, "prompt": [2500, 3000], "output": [850, 1000], **_LATE},
        ],
    },
    "the core hangs for two minutes": {
        "flags": {"num_gpu_blocks": 2048},
        "load": [{"clients": 12, "prompt": [300, 400], "output": [200, 300]}],
        "fault": [{"kind": "hang", "at": 300, "until": 420}],
    },
    "nothing happens": {
        "flags": {"num_gpu_blocks": 2048},
        "load": [
            {"clients": 8, "prompt": [300, 400], "output": [200, 300]},
            {"clients": 8, "prompt": [300, 400], "output": [200, 300], **_LATE},
        ],
    },
}


def answer(wish: Mapping[str, Any], clock: Any) -> dict[str, Any]:
    """Run and record one: its `name`, `table` (what a regime's file would say) and `folder`."""
    regime = replace(parse(wish["name"], {"about": "-", "expect": "-", **wish["table"]}), expect="")
    played = play(regime, NEWEST, clock)
    write(regime, NEWEST, played.book, played.result, Path(wish["folder"]))
    return {"name": wish["name"]}
