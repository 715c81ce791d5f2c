"""A regime: how the engine is started, who asks it for what, and what goes wrong; one small TOML file each."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Literal

from tests.lab.fetch import NEWEST, VERSIONS

FOLDER: Final = Path(__file__).parent / "regimes"
Span = tuple[float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Flags:
    """What `vllm serve` is started with, by vLLM's own names; and the pool that start-up would have found room for.

    `layers`: "full" attention, "window" (sliding window in every layer), "hybrid" (one group of full attention and
    `window_groups` groups of sliding-window layers that share the pool).
    """

    num_gpu_blocks: int = 2048
    block_size: int = 16
    max_num_seqs: int = 256
    max_num_active_seqs: int | None = None
    max_num_batched_tokens: int = 8192
    max_model_len: int = 8192
    scheduling_policy: str = "fcfs"
    enable_prefix_caching: bool = True
    kv_cache_metrics: bool = False
    enable_chunked_prefill: bool = True
    long_prefill_token_threshold: int = 0
    prefill_schedule_interval: int = 1
    watermark: float = 0.0
    scheduler_reserve_full_isl: bool = True
    max_loras: int | None = None
    num_speculative_tokens: int = 0
    max_num_queued_reqs: int | None = None
    max_num_queued_tokens: int | None = None
    runner: Literal["generate", "pooling"] = "generate"
    layers: Literal["full", "window", "hybrid"] = "full"
    sliding_window: int = 1024
    window_groups: int = 1
    encoder_budget: int = 0
    encoder_cache: int = 0
    gpu_memory_utilization: float = 0.9


@dataclass(frozen=True, slots=True, kw_only=True)
class SglangFlags:
    """What `sglang serve` is started with, by SGLang's own names; and the pool that start-up would have found room for.

    The other values are SGLang's defaults on a GPU with 80 GB.
    """

    max_total_tokens: int = 32768
    max_running_requests: int = 256
    chunked_prefill_size: int = 8192
    max_prefill_tokens: int = 16384
    context_length: int = 8192
    schedule_policy: str = "fcfs"
    schedule_conservativeness: float = 1.0
    disable_radix_cache: bool = False
    enable_mixed_chunk: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Seconds of one step of the model: all its work one after the other, as on a GPU that is never idle in a step."""

    step_seconds: float = 0.03
    prefill_token_seconds: float = 1 / 16_000
    sequence_seconds: float = 0.0002
    context_token_seconds: float = 1e-7
    accepted_ratio: float = 0.6
    """Of each drafted token, given that the one before it was accepted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """Steps take what a table that kvpressure ships says, not what `Cost` does: that of a model on a card.

    `host_layer_seconds` are added for every layer, as where kernels are launched one by one and the host is slow;
    `slower` multiplies the card's times.
    """

    table: str
    host_layer_seconds: float = 0.0
    slower: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Clients of one kind: `clients` send again `think_seconds` after each answer, `rate` (a second) do not wait.

    Lengths are uniform between two bounds, in tokens. `asks`: the `max_tokens` that clients ask for, where that is more
    than they get; 0: as many. `prefix` tokens of the prompt are shared by all requests of one
    of `prefix_groups` groups. A request with `grammar_seconds` needs that long of the compiler. One with a timeout is
    given up then and sent again. With `last_beyond` a longer prompt has the last priority, any other the first. A
    session with `pieces` sends its input piece by piece. An image has `image_tokens`.

    With `turns` a client holds sessions of so many turns, one after the other: each turn's prompt is all that was said
    before and `words` new tokens, after `think` seconds (evenly on a logarithmic scale); a session ends earlier where
    its next prompt could be longer than `longest`. Those of the first clients have begun before. Of `replicas` servers
    this is one, and their router sends every turn to any of them. `trace`: requests as they were recorded, of the
    `share` of its sessions.
    """

    clients: int = 0
    rate: float = 0.0
    begin: float = 0.0
    end: float = 1e9
    prompt: Span = (300, 300)
    output: Span = (100, 100)
    asks: int = 0
    prefix: int = 0
    prefix_groups: int = 1
    adapters: int = 0
    priorities: tuple[int, ...] = (0,)
    last_beyond: int = 0
    grammar: bool = False
    grammar_seconds: float = 0.0
    think_seconds: float = 0.05
    timeout_seconds: float = 0.0
    pieces: int = 0
    piece_gap_seconds: float = 1.0
    image_tokens: int = 0
    remote: bool = False
    turns: Span = (0, 0)
    words: Span = (0, 0)
    think: Span = (0.0, 0.0)
    longest: int = 0
    replicas: int = 1
    trace: str = ""
    share: float = 1.0


FaultKind = Literal[
    "hang", "pause", "sleep", "weights", "reset_prefix_cache", "restart", "silence", "drop", "stall", "late_gauges"
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """What goes wrong, from second `at` to `until`.

    hang: the engine core makes no step. pause, sleep: as their endpoints do, with `mode`. weights: paused with "keep",
    and every running request is preempted. restart: no server, and a new one. silence: /metrics does not answer. drop:
    the engine core loses what it has and what comes. stall: transfers of KV stand still. late_gauges: the statistics of
    steps reach the API process only at the end.
    """

    kind: FaultKind
    at: float
    until: float
    mode: str = "keep"


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """A connector of another KV store, faked: `consumer` loads prompts' KV, `producer` holds finished requests' blocks
    until they are fetched, `offload` looks up first and then loads the share `hit_ratio` of prompts it has seen."""

    role: Literal["consumer", "producer", "offload"] = "consumer"
    tokens_per_second: float = 50_000.0
    at_once: int = 8
    latency_seconds: float = 0.05
    lookup_seconds: float = 0.0
    fetch_seconds: float = 0.5
    hit_ratio: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Frontend:
    """Seconds of the one API process for each request that comes and for each output of a step."""

    request_seconds: float = 0.0
    output_seconds: float = 0.0
    page_seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Edge:
    """What a gateway in front does: refuses prompts above a length, and lets no answer be longer than another."""

    max_prompt: int | None = None
    max_output: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Regime:
    """One run of `seconds` virtual seconds. `rows` are rows of the table of situations that it shows.

    `expect` names the cause that has to be true for a good part of it: a regime that does not show what it was
    written for fails its run. `since` is the first pinned version that has the flags it uses; one that is not
    `everywhere` runs on the newest version only. Where it is `declared`, verdicts are made by somebody who could read
    the watermark among the flags, which no page tells.
    """

    name: str
    family: str
    about: str
    expect: str
    rows: tuple[int, ...] = ()
    everywhere: bool = False
    seconds: int = 180
    seed: int = 1
    since: str = VERSIONS[-1]
    declared: bool = False
    flags: Flags = field(default_factory=Flags)
    sglang: SglangFlags | None = None
    cost: Cost = field(default_factory=Cost)
    card: Card | None = None
    frontend: Frontend = field(default_factory=Frontend)
    transfer: Transfer | None = None
    edge: Edge = field(default_factory=Edge)
    load: tuple[Load, ...] = ()
    fault: tuple[Fault, ...] = ()

    def runs_on(self, version: str) -> bool:
        """Whether that version has what the regime uses."""
        old = _ordered(version) < _ordered(self.since)
        return version == NEWEST or (self.everywhere and not old)


class RegimeError(Exception):
    """A regime's file cannot be used; the message says which and why."""


def regimes(folder: Path = FOLDER) -> dict[str, Regime]:
    """Every regime by name: one a file, its family the first part of its name. Raises RegimeError."""
    return {path.stem: read(path) for path in sorted(folder.glob("*.toml"))}


def read(path: Path) -> Regime:
    """The regime of a file. Raises RegimeError."""
    try:
        return parse(path.stem, tomllib.loads(path.read_text()))
    except (tomllib.TOMLDecodeError, TypeError, ValueError) as error:
        raise RegimeError(f"{path.name}: {error}") from error


def parse(name: str, table: Mapping[str, Any]) -> Regime:
    """A regime from what a file says. Raises TypeError on an unknown key."""
    values = dict(table)
    kinds = {"flags": Flags, "sglang": SglangFlags, "cost": Cost, "card": Card}
    for key, kind in (*kinds.items(), ("frontend", Frontend), ("transfer", Transfer)):
        if key in values:
            values[key] = kind(**_frozen(values[key]))
    for key, row in (("load", Load), ("fault", Fault)):
        values[key] = tuple(row(**_frozen(item)) for item in values.get(key, ()))
    made = Regime(name=name, family=name.split("-", maxsplit=1)[0], **_frozen(values))
    if not made.load or not made.about or not made.expect:
        raise ValueError("needs load, about and expect")
    return made


def changed(regime: Regime, **flags: object) -> Regime:
    """The same with other flags: what advice is measured with."""
    return replace(regime, flags=replace(regime.flags, **flags))  # type: ignore[arg-type]


def _frozen(values: Mapping[str, Any]) -> dict[str, Any]:
    return {key: tuple(value) if isinstance(value, list) else value for key, value in values.items()}


def _ordered(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))
