"""How advice is put to who runs a runtime: its flags, what it takes where nothing is set, and what it can do."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Change:
    """A flag that is worth setting, with its value, and sentences: what it is, in force now, why, and the price."""

    key: str
    title: str
    flag: str
    value: str
    current: str
    why: str
    cost: str


@dataclass(frozen=True, slots=True)
class Remedy:
    """What to raise where requests wait for one thing outside the batch, in sentences.

    `title` is a phrase that begins small, such as "raise --max-loras"; `new` is its new value in words, `current` what
    is in force unless set, both "" where it is no setting. Where the page counts what it is a limit of, `counted` says
    the new value in words, with {count} for the number, and `flag` sets it.
    """

    title: str
    why: str
    cost: str
    current: str = ""
    new: str = ""
    counted: str = ""
    flag: str = ""


@dataclass(frozen=True, slots=True)
class Advice:
    """Names and sentences, by the name of the limit where there is one for each.

    `serve` starts a server of the model MODEL by hand, on `port` where nothing else is said. `process` is what its
    processes are found by, `failures` the words of its log that tell why it died (for grep -E), `series` how its series
    begin. `flags` are written before `=VALUE` at the end of the command line; `words` are what a limit is called
    in a sentence; `unset` is what is in force where nobody set it, for people.

    `caps` are the flags that cap a request at so many tokens, and so many of output, where no gateway does. `step_why`
    and `step_cost` are of fewer tokens in a step, `sequences_cost` of more sequences. `too_little` says how a memory
    target shows that is too low, `larger_pool` what else enlarges the pool, `prefixes` how prefixes are shared, `told`
    where the log names the flags {flags} that are in force.

    `remedies` are of `deferred` and of limits that are no cap on sequences, by the detail that `verdict.DETAILS` has.
    `other_limits` names the flags of limits of the scheduler other than the number of sequences, which a page does not
    tell apart.

    `by_priority` is the value of its flag `short_first` that makes it go by the number `priority` of each request, the
    lowest first. `other_cap` is another flag that holds the batch at so many sequences.

    `small_kv` is the value of its flag `kv_cache_dtype` that keeps the KV cache in 8 bits.

    `frontends` is more processes that take requests in, `reserve` what keeps requests from being preempted out of the
    batch; None where there is no such flag.
    """

    serve: str
    port: int
    process: str
    failures: str
    series: str
    flags: Mapping[str, str]
    words: Mapping[str, str]
    unset: Mapping[str, str]
    caps: Callable[[int, int], str]
    step_why: str
    step_cost: str
    sequences_cost: str
    too_little: str
    larger_pool: str
    prefixes: str
    told: str
    frontends: Change | None = None
    reserve: Change | None = None
    remedies: Mapping[str, Remedy] = field(default_factory=dict)
    other_limits: str = ""
    other_cap: str = ""
    by_priority: str = ""
    small_kv: str = ""

    def change(self, limit: str, value: str) -> dict[str, str]:
        """Return the flag that sets a limit, and its value ("" for a switch); empty where the runtime has none."""
        return {self.flags[limit]: value} if limit in self.flags else {}


def _untold(gpu: str, gpu_bytes: float) -> int | None:  # noqa: ARG001 - one of several
    return None


@dataclass(frozen=True, slots=True)
class Audit:
    """A runtime's facts for the checklist.

    `undeclared` says of a limit, by name, what is in force without it; `defaults` are the values that the runtime takes
    by itself, by version and GPU, and `default_sequences` that for the sequences on a GPU by its name and bytes, None
    where that cannot be told. `largest_sequences` is the most of them, None where it has no such number. `needs_step`
    says that no more sequences may run than a step has tokens. `output_cap` is a value of the flag that bounds outputs
    at %d tokens, "" where there is none.
    """

    undeclared: Mapping[str, str]
    defaults: Mapping[str, tuple[int, ...]]
    default_sequences: Callable[[str, float], int | None] = _untold
    largest_sequences: int | None = None
    needs_step: bool = False
    output_cap: str = ""


@dataclass(frozen=True, slots=True)
class Planning:
    """What a plan must keep to, and how it says so.

    `most_sequences` is the runtime's own largest default, `step_tokens` its defaults of tokens in a step on most GPUs
    and on large ones, `step_default` the sentence for it. `memory_share` is the share of the memory that it takes where
    nothing is set. `activations_outside` says that the share holds weights and pool alone, and no activations,
    `needs_longest` that the runtime ends at start where the pool does not hold one longest request. `command` is what
    the flags are of, `flags` are by the names of what is planned. `unsized` is what is missing from a page that does
    not size the pool, `pool_log`, `memory_log` and `weights_log` are what the log calls its tokens, its memory and the
    weights. `windows` says how layers with a sliding window are counted. `cache_types` are the names of types of cached
    values that it spells in its own way.
    """

    command: str
    flags: Mapping[str, str]
    most_sequences: int
    step_tokens: tuple[int, int]
    step_default: str
    unsized: str
    pool_log: str
    memory_log: str
    weights_log: str
    windows: str
    memory_share: float = 0.9
    activations_outside: bool = False
    needs_longest: bool = True
    cache_types: Mapping[str, str] = field(default_factory=dict)
