"""What a scenario is: a server, what is done to it, in order, and what must be said of it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

from tests.e2e_vllm.load import Load

LIGHT = Load(4, 50, 100, pause_seconds=0.2)
VERDICT_SECONDS = 45.0


class Event(Enum):
    """What else happens at the beginning of a phase."""

    RESTART = "vLLM is killed, and booted again"
    STOP = "the process of the engine core is stopped (SIGSTOP); the API process lives on"
    CONTINUE = "the process of the engine core goes on (SIGCONT)"


@dataclass(frozen=True, slots=True)
class Phase:
    """One load for some time.

    `causes` are the right verdicts, the first of them within `verdict_seconds`; `details` are their right details, ()
    where these are not judged, and `says` are words that the evidence must have. `triage_exit` is what `kvpressure
    triage` ends with, None where it is not run; with `plans`, `plan --url` is run as well.

    The alert `fires` must fire within `fires_within_seconds`, or only may where that is None; no other alert about the
    KV cache and no other critical one may become true. It must resolve within `resolves_within_seconds` of the phase's
    end, whatever phases come then.

    `event` happens after the load has lasted `lead_seconds`, and time counts from there. With `settings` the exporter
    is given other ones at the beginning.
    """

    name: str
    load: Load
    seconds: float
    causes: frozenset[str]
    triage_exit: int | None = None
    details: frozenset[str] = frozenset()
    says: str = ""
    verdict_seconds: float = VERDICT_SECONDS
    fires: str = ""
    fires_within_seconds: float | None = None
    resolves_within_seconds: float | None = None
    plans: bool = False
    event: Event | None = None
    lead_seconds: float = 0.0
    settings: Mapping[str, Any] | None = None


HEALTHY = frozenset({"healthy"})
PRESSURE = frozenset({"kv_cache_pressure"})

GENERATES = (
    *("--max-model-len", "4096", "--max-num-seqs", "32"),
    *("--block-size", "32", "--num-gpu-blocks-override", "256"),
)
"""A pool of 255 blocks of 32 tokens."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """A server from its boot to its end. `model` is a folder of `environment.MODELS`.

    In `flags`, `{models}` stands for the folder that all of these lie in. With `kv_events` the engine publishes them.
    """

    name: str
    phases: tuple[Phase, ...]
    model: str = "generating"
    flags: tuple[str, ...] = GENERATES
    settings: Mapping[str, Any] = field(default_factory=dict)
    kv_events: bool = False

    def publishing(self, port: int, replay_port: int) -> Scenario:
        """The same with a server that publishes its KV events there, and an exporter that reads them."""
        # vLLM binds where the first address has a wildcard, and connects elsewhere.
        endpoints = {"endpoint": f"tcp://*:{port}", "replay_endpoint": f"tcp://127.0.0.1:{replay_port}"}
        config = json.dumps({"enable_kv_cache_events": True, "publisher": "zmq", **endpoints})
        flags = (*self.flags, "--kv-events-config", config.replace("{", "{{").replace("}", "}}"))
        read = {"kv_events": {"port": port, "replay_port": replay_port}}
        return replace(self, flags=flags, settings={**self.settings, "target": read})


@dataclass(frozen=True, slots=True)
class Bars:
    """What must hold on a slow shared machine; the detection benchmark holds tighter ones on recordings."""

    right_ratio: float = 0.95
    """Of the seconds after the time that a verdict may take."""
    page_bytes_per_second: float = 8000.0


KV_ALERTS = frozenset(
    {
        "KVPressureCacheTooSmall",
        "KVPressurePreemptionThrash",
        "KVPressureBatchCollapsed",
        "KVPressureMemoryHighComputeLow",
        "KVPressureSLOBurn",
    }
)
ALL_OF_ONE = dict.fromkeys(("KVPressureEngineStuck", "KVPressureEngineNotAnswering"), "KVPressureReplicasFailing")
PAGING = frozenset({"warning", "critical"})
