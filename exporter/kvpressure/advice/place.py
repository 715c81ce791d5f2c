"""Where an engine runs: what advice needs to name it in commands and queries."""

from __future__ import annotations

from dataclasses import dataclass

from kvpressure.runtimes.registry import named
from kvpressure.runtimes.runtime import Advice


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
        """The runtime's words and flags for advice."""
        return named(self.runtime).advice

    @property
    def title(self) -> str:
        """The runtime's name, for messages."""
        return named(self.runtime).title

    @property
    def serving_port(self) -> int:
        """The port of the engine's API, or its default."""
        return self.port or self.advice.port

    @property
    def in_kubernetes(self) -> bool | None:
        """Whether it runs in Kubernetes: set, or inferred from a name that only Kubernetes gives; None if not known."""
        if self.kubernetes is not None:
            return self.kubernetes
        return True if self.namespace or self.workload or self.pod else False if self.unit else None
