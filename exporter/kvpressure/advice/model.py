"""What advice is made of: the limits in force, the place where an engine runs, and the actions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from kvpressure.runtimes.advising import Advice, Change
from kvpressure.runtimes.registry import named

DECLARED: Final = "declared"
PAGE: Final = "page"
LEARNED: Final = "learned plateau of running"


@dataclass(frozen=True, slots=True)
class Limit:
    """A limit's value and who says so: `declared`, `page` or `learned plateau of running`."""

    value: float
    source: str = DECLARED

    def __str__(self) -> str:
        return f"{number(self.value)} ({self.source})"


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of one engine (a data-parallel rank); None is not known.

    Sequences and tokens are counts, `gpu_memory_utilization` is a ratio, `kv_capacity_tokens` is what all requests of
    the rank together can hold. `max_input_tokens` and `max_output_tokens` are those of the gateway in front.
    """

    max_num_seqs: Limit | None = None
    max_num_batched_tokens: Limit | None = None
    max_model_len: Limit | None = None
    gpu_memory_utilization: Limit | None = None
    max_input_tokens: Limit | None = None
    max_output_tokens: Limit | None = None
    kv_capacity_tokens: Limit | None = None


@dataclass(frozen=True, slots=True)
class Place:
    """Where an engine runs, as far as known; every name may come from outside and is quoted before it is used.

    `runtime` is the name of what serves, "" when not known, and decides how flags are written. `kubernetes` is None
    when not known: then commands for both ways of running are given. `kind` is the workload's kind for kubectl
    (`deploy`, `statefulset`, ...), `url` is how whoever asks reaches the engine.
    """

    kubernetes: bool | None = None
    namespace: str = ""
    kind: str = "deploy"
    workload: str = ""
    pod: str = ""
    container: str = ""
    unit: str = ""
    port: int | None = None
    url: str = ""
    target: str = ""
    model_name: str = ""
    runtime: str = ""

    @property
    def advice(self) -> Advice:
        """How advice is put there."""
        return named(self.runtime).advice

    @property
    def title(self) -> str:
        """What serves there, for sentences."""
        return named(self.runtime).title

    @property
    def serving_port(self) -> int:
        """Where the engine's API is, or would be."""
        return self.port or self.advice.port

    @property
    def in_kubernetes(self) -> bool | None:
        """Said, or told by a name that only Kubernetes gives; None when not known."""
        if self.kubernetes is not None:
            return self.kubernetes
        return True if self.namespace or self.workload or self.pod else False if self.unit else None


@dataclass(frozen=True, slots=True)
class Action:
    """One thing to do. `commands` are shell lines (comments begin with #); `placeholders` in them are to be replaced.

    `current` and `new` are texts for people, "" where nothing changes from a value to another; `flags` are the same
    change as flags of the engine's runtime. `checks` say what must be seen, and within how long, one line each.
    `order` counts from 1.
    """

    key: str
    title: str
    why: str
    current: str = ""
    new: str = ""
    cost: str = ""
    checks: tuple[str, ...] = ()
    commands: tuple[str, ...] = ()
    flags: Mapping[str, str] = field(default_factory=dict)
    placeholders: tuple[str, ...] = ()
    order: int = 0

    @property
    def verify(self) -> str:
        """The checks as one text, a line each."""
        return "\n".join(self.checks)


def changed(change: Change, checks: tuple[str, ...]) -> Action:
    """A change that a runtime knows of."""
    return Action(
        key=change.key,
        title=change.title,
        current=change.current,
        new=change.value,
        why=change.why,
        cost=change.cost,
        checks=checks,
        flags={change.flag: change.value},
    )


def number(value: float) -> str:
    """A value for people: whole numbers with thousands separators, others with as many digits as they need.

    >>> number(8160), number(0.7), number(2.25)
    ('8,160', '0.7', '2.25')
    """
    return f"{value:,.0f}" if float(value).is_integer() or abs(value) >= 100 else f"{value:.3g}"
