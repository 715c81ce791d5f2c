"""The description of a runtime: its names, its pages, how it is started, what its log says, what to advise."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from kvpressure.commandline.options import Given
from kvpressure.runtimes.starting import Chart, KServe, Starting
from kvpressure.runtimes.table import OptionalSignal, Table

GIB: Final = 2**30

Wording = tuple[str, str, str]
"""Kind (`environment.LOG_KINDS`), words that a line of it holds, and the pattern that these must be part of ("" for
nothing more); words and pattern in lower case."""


@dataclass
class Facts:
    """What the lines of one start say of the KV cache; of several ranks' the smallest.

    `tokens` are those of one rank, `memory_bytes` what one worker has for them. Where no line says tokens they are
    `blocks` of a size that is solved from `concurrency_tokens`: the requests of the longest length that fit, times that
    length, known to within `concurrency_error_tokens`. `overridden` is how many blocks the memory was for, over those
    there are.
    """

    t: float | None = None
    tokens: int | None = None
    memory_bytes: float | None = None
    blocks: int | None = None
    concurrency_tokens: float | None = None
    concurrency_error_tokens: float | None = None
    overridden: float = 1.0


Note = Callable[[Facts, re.Match[str]], None]


def note_least(name: Literal["tokens", "blocks"]) -> Note:
    """Return a function that notes the number of a line, the smallest of several."""

    def note(facts: Facts, match: re.Match[str]) -> None:
        if count := logged_count(match[1]):
            setattr(facts, name, min(count, getattr(facts, name) or count))

    return note


@dataclass(frozen=True, slots=True)
class Wordings:
    """A runtime's log.

    `rows` are of trouble; a line that matches several kinds is of the first in the order of the kinds. `refusals` are
    words of rows whose message is a ValueError's: with any other row that is a request's own error. `words` are in each
    line that `facts` (pattern, and what notes it) are learned from, `banner` begins a new start. `quotes` matches lines
    that repeat what a client sent. `remedies` are patterns of a refusal to start that names a number, and the flag that
    takes it.
    """

    rows: tuple[Wording, ...] = ()
    refusals: tuple[str, ...] = ()
    words: tuple[str, ...] = ()
    facts: tuple[tuple[re.Pattern[str], Note], ...] = ()
    banner: str = ""
    quotes: str = ""
    remedies: tuple[tuple[re.Pattern[str], str], ...] = ()


def logged_count(text: str) -> int:
    """Return a number of a log, `12,345` or `12345`; 0 for none."""
    digits = text.replace(",", "")
    return int(digits) if digits.isdecimal() else 0


@dataclass(frozen=True, slots=True)
class Change:
    """A flag to set, with its value, and sentences: what it is, in force now, why, and the price."""

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

    `title` is a phrase in lower case, such as "raise --max-loras"; `new` is its new value in words, `current` the
    default, both "" where it is no setting. Where the page counts what it limits, `counted` says the new value in
    words, with {count} for the number, and `flag` sets it.
    """

    title: str
    why: str
    cost: str
    current: str = ""
    new: str = ""
    counted: str = ""
    flag: str = ""


def without_dashes(flags: Mapping[str, str]) -> dict[str, str]:
    """Return flags as they are named in sentences."""
    return {limit: flag.removeprefix("--") for limit, flag in flags.items()}


@dataclass(frozen=True, slots=True)
class Server:
    """What finds a running server, and its end.

    It listens on `port` by default. `process` is the name to find its processes by, `failures` the words of its log
    that say why it died (for grep -E), `series` the prefix of its series.
    """

    port: int
    process: str
    failures: str
    series: str


@dataclass(frozen=True, slots=True)
class AdvisedFlags:
    """The flags that advice sets, and their values.

    `limits` are written before `=VALUE` at the end of the command line, by the name of the limit. `caps` cap a request
    at {total} tokens, {output} of them of output and {rest} of the prompt, where no gateway does. `small_kv` is the
    value of the limit `kv_cache_dtype` that keeps the KV cache in 8 bits, `by_priority` that of `short_first` that
    makes it go by the number `priority` of each request, the lowest first. `other_sequences` is another flag that holds
    the batch at so many sequences. Each of the three is "" where the runtime has none.
    """

    limits: Mapping[str, str]
    caps: str
    small_kv: str = ""
    by_priority: str = ""
    other_sequences: str = ""

    def cap(self, total: int, output: int) -> str:
        """Return the flags that cap a request at so many tokens, and so many of output."""
        return self.caps.format(total=total, output=output, rest=max(1, total - output))

    def set(self, limit: str, value: str) -> dict[str, str]:
        """Return the flag that sets a limit, and its value ("" for a switch); empty where the runtime has none."""
        return {self.limits[limit]: value} if limit in self.limits else {}


@dataclass(frozen=True, slots=True)
class AdviceWords:
    """What sentences of advice call things, and what they say of the runtime's own behaviour.

    By the name of the limit `limits` are their names and `unset` their defaults. `step_why` and `step_cost` are of
    fewer tokens in a step, `sequences_cost` of more sequences. `too_little` says how a memory target shows that is too
    low, `larger_pool` what else enlarges the pool, `prefixes` how prefixes are shared, `flags_in_log` where the log
    names the flags {flags} that are in force. `other_limits` names the flags of the scheduler's limits other than the
    number of sequences, between which a page does not distinguish, `other_pools` those of pools beside that of tokens,
    `connector` those by which blocks are kept for another engine or a tier.
    """

    limits: Mapping[str, str]
    unset: Mapping[str, str]
    step_why: str
    step_cost: str
    sequences_cost: str
    larger_pool: str
    prefixes: str
    flags_in_log: str
    other_limits: str
    too_little: str = ""
    other_pools: str = "a larger share of the memory for it"
    connector: str = "the connector of its KV cache off, or with a cap on what it keeps"


@dataclass(frozen=True, slots=True)
class Remedies:
    """Changes for what only this runtime has a remedy for.

    `details` are of `deferred` and of limits that are no cap on sequences, by the detail that `verdict.DETAILS` has.
    `frontends` is more processes that take requests in, `reserve` what keeps requests from being preempted out of the
    batch, `less_reserve` what admits more of them; None where there is no such flag.
    """

    details: Mapping[str, Remedy] = field(default_factory=dict)
    frontends: Change | None = None
    reserve: Change | None = None
    less_reserve: Change | None = None


@dataclass(frozen=True, slots=True)
class Advice:
    """What advice is written with."""

    server: Server
    flags: AdvisedFlags
    words: AdviceWords
    remedies: Remedies = field(default_factory=Remedies)


@dataclass(frozen=True, slots=True)
class Audit:
    """A runtime's facts for the checklist.

    `undeclared` says of a limit, by name, what is in force without it; `largest_step` is the most tokens that the
    runtime takes in a step by itself, `other_step` another option that bounds a step, `default_sequences` its sequences
    on a GPU by its name and bytes, None where not known. `largest_sequences` is the most of them, None where it has no
    such number. `needs_step`: no more sequences may run than a step has tokens. `output_cap` is a value of the flag
    that bounds outputs at %d tokens, "" where there is none. `removed` are options that some versions have: the last
    that is known with it, None for none, and the first without it; `version` is that of an image, None where not known.
    `pooling`: by its options it serves a model that generates nothing.
    """

    undeclared: Mapping[str, str]
    largest_step: int
    other_step: str = ""
    default_sequences: Callable[[str, float], int | None] = field(
        default=lambda gpu, gpu_bytes: None  # noqa: ARG005 - one of several
    )
    largest_sequences: int | None = None
    needs_step: bool = False
    output_cap: str = ""
    removed: Mapping[str, tuple[tuple[int, int] | None, tuple[int, int]]] = field(default_factory=dict)
    version: Callable[[str], tuple[int, int] | None] = field(default=lambda image: None)  # noqa: ARG005
    pooling: Callable[[Mapping[str, Given]], bool] = field(default=lambda options: False)  # noqa: ARG005


@dataclass(frozen=True, slots=True)
class Planning:
    """What a plan depends on, and the words for it.

    `most_sequences` is the runtime's own largest default, `step_tokens` its defaults of tokens in a step on most GPUs
    and on large ones, `step_default` the sentence for it. `memory_share` is the default share of the memory that it
    takes. `activations_outside`: the share is for weights and pool alone, and no activations. `needs_longest`: the
    runtime ends at start where the pool has no room for one longest request. `command` is the program of the flags,
    `flags` are by the names of what is planned. `unsized` is what is missing from a page without the size of the pool,
    `pool_log`, `memory_log` and `weights_log` are the log's words for its tokens, its memory and the weights. `windows`
    says how layers with a sliding window are counted. `cache_types` are the names of types of cached values that it
    spells in its own way. `by_memory`: the pool follows from the GPU's memory as it is modelled here; where it does
    not, nothing is planned.
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
    by_memory: bool = True
    cache_types: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Runtime:
    """One runtime. `name` is for settings and labels, `title` for sentences.

    `assumed` is true of the one that is assumed where nothing says what runs. `charts` are Helm charts that deploy it.
    `evidence` is what its page may have beyond the least that a verdict needs.
    """

    name: str
    title: str
    table: Table
    starting: Starting
    logs: Wordings
    advice: Advice
    audit: Audit
    planning: Planning
    kserve: KServe = field(default_factory=KServe)
    charts: tuple[Chart, ...] = ()
    evidence: tuple[OptionalSignal, ...] = ()
    assumed: bool = False
