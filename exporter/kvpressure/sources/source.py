"""What every source is: one `SOURCE` in its own file, which `daemon.node_sources` finds.

A registration is all that other rooms use of a source: its settings, the names of its health records, and how to make
it. What it reports is an `Environment`, which is merged field by field with those of the other sources.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Generic, TypeVar

from kvpressure.config.settings.section import Section
from kvpressure.config.target import Target
from kvpressure.model.environment import ContainerId, Environment
from kvpressure.model.record import record
from kvpressure.model.samples import GpuReport, GpuSample, SourceHealth
from kvpressure.net.schedule import Clock

SettingsT = TypeVar("SettingsT")

OnReport = Callable[[str, GpuReport], None]
"""Takes the source's name, as its health has it, and one report of it."""


@record
class Known:
    """What is known at each tick: the engines polled, the GPUs read, and what sources before this one reported.

    `discovers` is whether any source discovers engines.
    """

    targets: Sequence[Target] = ()
    gpus: Sequence[GpuSample] = ()
    environment: Environment = field(default_factory=Environment)
    discovers: bool = False


class Source(ABC):
    """Something outside that is read. Only `run` and `health` must be written.

    Everything but `run` returns at once, on the event loop.
    """

    discovers = False
    """Whether it discovers engines."""

    @property
    def listed(self) -> bool:
        """Whether all engines that it discovers have been listed once: before that, one that is missing may exist."""
        return True

    @abstractmethod
    async def run(self) -> None:
        """Read until cancelled, or return where there is nothing to read. Raises nothing but cancellation."""

    @abstractmethod
    def health(self) -> tuple[SourceHealth, ...]:
        """Return one record for each thing that is read; none while the source is off."""

    def facts(self, known: Known) -> Environment:  # noqa: ARG002 - not every source uses it
        """Return what it knows now, in its own fields. Called every second: `known` says what to read next."""
        return Environment()

    @property
    def targets(self) -> tuple[Target, ...]:
        """The engines it has found."""
        return ()

    def ended(self, container: ContainerId) -> bool:  # noqa: ARG002 - most know nothing of containers
        """Whether it knows that a container has run to its end, and so holds no device any more."""
        return False

    def detach(self) -> None:  # noqa: B027 - most have no driver
        """Close a driver for a while, if it has one open."""


@dataclass(frozen=True, slots=True)
class Wiring:
    """What a source gets beside its settings.

    Reports of GPUs go to `on_gpus` as they come; `ended` is true where any source's `ended` is; `replaced` are the
    sources of before a reload.
    """

    clock: Clock
    on_gpus: OnReport
    ended: Callable[[ContainerId], bool]
    replaced: Sequence[Source] = ()


@dataclass(frozen=True)
class Registration(Generic[SettingsT]):
    """How a source is made and named.

    `make` gets the `section` of the settings, which is of the type `settings`, and is called again when that changes;
    without a section it gets None, once. `names` are titles for people of the sources of its health records. A source
    that `gives_gpus` makes the exporter not ready while it hangs. Those whose changes of state are `logged_by_exporter`
    log none.
    """

    name: str
    make: Callable[[SettingsT, Wiring], Sequence[Source]]
    names: Mapping[str, str]
    section: str = ""
    settings: type[Section] | None = None
    gives_gpus: bool = False
    logged_by_exporter: bool = False


def merged(parts: Iterable[Environment]) -> Environment:
    """Return all reports as one: mappings and tuples together, of other fields the last that is known."""
    together: dict[str, Any] = {}
    for part in parts:
        for name in (each.name for each in fields(part)):
            before, value = together.get(name), getattr(part, name)
            if isinstance(value, Mapping):
                together[name] = {**before, **value} if before else value
            elif isinstance(value, tuple):
                together[name] = (*(before or ()), *value)
            elif value is not None:
                together[name] = value
    return Environment(**together)
